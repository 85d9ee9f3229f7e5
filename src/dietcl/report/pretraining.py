"""Pictures of a pre-training: the loss curve and the reconstructions."""

import json
from pathlib import Path

import numpy as np

from dietcl.plural import plural
from dietcl.report.figure_style import figure_style
from dietcl.report.figures import plot, reconstructions
from dietcl.report.style import PALETTE

_TITLE = "Masked pre-training"


def draw_pretraining(folder: Path) -> str:
    """Write loss.png and reconstructions.png from events and samples; returns a sentence about the data."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    updates = [event for event in events if event["event"] == "update"]
    with figure_style(), np.load(folder / "samples.npz") as samples:
        figure, axes = plot(7, 4, _TITLE, "Update", "Loss on masked patches")
        axes.plot([event["update"] for event in updates], [event["loss"] for event in updates], color=PALETTE[0], lw=1)
        figure.savefig(folder / "loss.png")
        triples = {name: samples[name] for name in ("originals", "masked", "reconstructed")}
        reconstructions(triples, list(range(len(samples["originals"]))), _TITLE).savefig(folder / "reconstructions.png")
    end = events[-1]
    wait = end["data_wait"] / max(end["seconds"], 1e-9)
    return f"waited for data {wait:.1%} of the time; {plural(end['substituted'], 'image')} drawn could not be read"
