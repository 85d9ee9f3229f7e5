"""Pictures of a pre-training: the loss curve and the reconstructions."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def draw_pretraining(folder: Path) -> str:
    """Write loss.png and reconstructions.png from events and samples; returns what to say of the data."""
    from matplotlib.figure import Figure

    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    updates = [event for event in events if event["event"] == "update"]
    axes.plot([event["update"] for event in updates], [event["loss"] for event in updates], color="#0072b2", lw=1)
    axes.set(xlabel="update", ylabel="loss on masked patches", title="Masked pre-training")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "loss.png")
    with np.load(folder / "samples.npz") as samples:
        rows: dict[str, Any] = {
            "original": samples["originals"],
            "what the encoder sees": samples["masked"],
            "reconstruction": samples["reconstructed"],
        }
        count = len(samples["originals"])
        figure = Figure(figsize=(1.2 * count, 4.2), dpi=150, layout="constrained")
        grid = figure.subplots(len(rows), count, squeeze=False)
        for line, (title, images) in zip(grid, rows.items(), strict=True):
            for place, image in zip(line, images, strict=True):
                place.imshow(image, interpolation="nearest")
                place.set_axis_off()
            line[0].set_title(title, loc="left", fontsize=9)
        figure.savefig(folder / "reconstructions.png")
    end = events[-1]
    wait = end["data_wait"] / max(end["seconds"], 1e-9)
    return f"waited for data {wait:.1%} of the time; {end['substituted']:,} images drawn could not be read"
