"""Pictures of a pre-training: the loss curve and the reconstructions."""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dietcl.plural import plural


def draw_pretraining(folder: Path) -> str:
    """Write loss.png and reconstructions.png from events and samples; returns a sentence about the data."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    updates = [event for event in events if event["event"] == "update"]
    axes.plot([event["update"] for event in updates], [event["loss"] for event in updates], color="#0072b2", lw=1)
    axes.set(xlabel="update", ylabel="loss on masked patches", title="Masked pre-training")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "loss.png")
    titles = {"originals": "original", "masked": "what the encoder sees", "reconstructed": "reconstruction"}
    with np.load(folder / "samples.npz") as samples:
        count = len(samples["originals"])
        figure = Figure(figsize=(1.2 * count, 4.2), dpi=150, layout="constrained")
        grid = figure.subplots(len(titles), count, squeeze=False)
        for line, (name, title) in zip(grid, titles.items(), strict=True):
            for place, image in zip(line, samples[name], strict=True):
                place.imshow(image, interpolation="nearest")
                place.set_axis_off()
            line[0].set_title(title, loc="left", fontsize=9)
    figure.savefig(folder / "reconstructions.png")
    end = events[-1]
    wait = end["data_wait"] / max(end["seconds"], 1e-9)
    return f"waited for data {wait:.1%} of the time; {plural(end['substituted'], 'image')} drawn could not be read"
