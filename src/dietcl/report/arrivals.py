"""What arrives when along a stream, and the plots of it: the label rate, and the classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.report.style import PALETTE, QUIET
from dietcl.streams.index import Index
from dietcl.streams.stream import Stream, TimeStep


@dataclass(frozen=True)
class Arrivals:
    """Which classes arrive when, by the labels of the manifest; a class is its code there."""

    order: tuple[int, ...]  # classes in the order of their first training image
    new: tuple[tuple[int, ...], ...]  # of each time step
    present: tuple[frozenset[int], ...]  # of each time step


def find_arrivals(stream: Stream, index: Index) -> Arrivals:
    """Look up the classes of all training images, hidden labels included."""
    seen: set[int] = set()
    order, new, present = [], [], []
    for step in stream.steps:
        codes, count = np.unique(index.label[training_rows(stream, step)], return_counts=True)
        there = dict(zip(codes.tolist(), count.tolist(), strict=True))
        there.pop(-1, None)
        # The most frequent first: with many classes in a time step, these are what it is about.
        fresh = sorted(there.keys() - seen, key=lambda code: (-there[code], code))
        seen |= there.keys()
        order += fresh
        new.append(tuple(fresh))
        present.append(frozenset(there))
    return Arrivals(tuple(order), tuple(new), tuple(present))


def training_rows(stream: Stream, step: TimeStep) -> npt.NDArray[np.uint32]:
    """Return the manifest rows of a time step's training images, those with a revealed label first."""
    rows: npt.NDArray[np.uint32] = stream.index_row[np.concatenate([step.labeled, step.unlabeled])]
    return rows


def label_rate(stream: Stream, asked: float) -> Any:
    """Draw the realized label rate and the number of labels per time step."""
    t = np.array([step.t for step in stream.steps])
    labeled = np.array([len(step.labeled) for step in stream.steps])
    there = np.array([len(step.labeled) + len(step.unlabeled) for step in stream.steps])
    rate = np.where(there > 0, 100 * labeled / np.maximum(1, there), np.nan)
    figure, (above, below) = _panels(stream, "labels revealed")
    above.plot(t, rate, color=PALETTE[0], lw=2, marker="o" if len(t) <= 60 else None, ms=4, label="realized")
    above.axhline(100 * asked, color=PALETTE[1], lw=1.4, ls=(0, (3.6, 1.5)), label=f"asked for: {100 * asked:.4g} %")
    above.set_ylabel("Label rate (%)")
    above.set_ylim(0, 1.15 * max(100 * asked, float(np.nanmax(rate, initial=0.0))) or 1)
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    below.bar(t, labeled, _bar(t), color=PALETTE[0])
    below.set(ylabel="Labeled images", xlabel="Time step")
    _number_bars(below, t, labeled)
    return figure


def classes(stream: Stream, arrivals: Arrivals) -> Any:
    """Draw the classes so far and the new ones per time step, with an image and with a label."""
    t = np.array([step.t for step in stream.steps])
    arrived = np.array([len(new) for new in arrivals.new])
    revealed = np.array([len(step.new_classes) for step in stream.steps])
    figure, (above, below) = _panels(stream, "classes along the stream")
    mark: Any = {"marker": "o" if len(t) <= 60 else None, "ms": 4}
    above.plot(
        t, np.cumsum(arrived), color=PALETTE[5], lw=3.4, **mark, label="with an image (labels as in the manifest)"
    )
    above.plot(t, np.cumsum(revealed), color=PALETTE[0], lw=1.6, **mark, label="with a revealed label")
    above.set_ylabel("Classes so far")
    above.set_ylim(0, 1.1 * max(1, len(arrivals.order)))
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    width = _bar(t)
    below.bar(t - width / 4, arrived, width / 2, color=PALETTE[5])
    below.bar(t + width / 4, revealed, width / 2, color=PALETTE[0])
    below.set(ylabel="New classes", xlabel="Time step")
    _number_bars(below, t, np.maximum(arrived, revealed))
    return figure


def _panels(stream: Stream, title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.0, 5.4), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(f"{shorten(stream.name, 60)}: {title}", x=0.015, ha="left", fontsize=11, fontweight="bold")
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    first, last = stream.steps[0].t, stream.steps[-1].t
    margin = 0.6 if last > first else 1.6  # a single bar is no wall
    axes[0].set_xlim(first - margin, last + margin)
    if first == last:
        axes[0].set_xticks([first])
    axes[1].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes[1].grid(visible=False, axis="x")
    return figure, axes


def _bar(t: npt.NDArray[Any]) -> float:
    return 0.82 if len(t) <= 200 else 1.0  # gaps between hundreds of bars would be all that is seen


def _number_bars(axes: Any, t: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Write each value above its bar where there is room."""
    axes.set_ylim(0, 1.18 * max(1, int(values.max(initial=0))))
    if len(t) <= 25:
        for x, value in zip(t.tolist(), values.tolist(), strict=True):
            axes.text(x, value, f"{value:,}", fontsize=7.5, color=QUIET, ha="center", va="bottom")


def shorten(text: str, most: int) -> str:
    """Return a text in one line of at most so many letters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
