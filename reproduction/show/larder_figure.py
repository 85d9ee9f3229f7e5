"""The figure that explains Larder: what there is to learn from along the stream, and what that brings."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dietcl.report.style import MATPLOTLIB, QUIET, RIGHT, WRONG
from reproduction.show.figure_data import Floats, along, known_mean
from reproduction.show.line_plots import FAINT, SEEN
from reproduction.show.plot_style import INK, canvas, curve, label_ends, style_of
from reproduction.show.summary_data import Compared, Section
from reproduction.suites import DIETCL, ER_UNIFORM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Larder replays guesses beside the few labels"
_KINDS = (("guesses, wrong", WRONG), ("guesses, right", RIGHT), ("labels", INK))


def draw_larder(section: Section) -> "Figure":
    """Draw for every stream the images that Larder can learn from by time step, and accuracy beside other methods."""
    import matplotlib

    small = f"Above: means over seeds; below: {FAINT}. How many guesses are right, the method is not told."
    with matplotlib.rc_context(MATPLOTLIB):
        columns = len(section.found)
        figure, (above, below) = canvas((1.2 + 3.6 * columns, 6.0), _TITLE, small, 2, columns)
        for top, bottom, compared in zip(above, below, section.found, strict=True):
            _remembered(top, compared)
            _accuracy(bottom, compared)
        above[0].set_ylabel("Images that can be\nlearned from")
        below[0].set_ylabel(SEEN)
    drawn: Figure = figure
    return drawn


def remembered(compared: Compared) -> dict[str, Floats]:
    """Return how many images Larder can learn from after each time step, by kind: means over seeds."""
    results = compared.leader.results
    steps = len(results[0].along)
    guesses = np.zeros((len(results), steps, 2))  # (all, right); nothing is reported before the first guess
    for own, result in zip(guesses, results, strict=True):
        if found := result.facts.get("guesses"):
            own[-len(found) :] = found
    labels = np.array([result.facts["labels_per_step"] * np.arange(1, steps + 1) for result in results])
    counts = (guesses[..., 0] - guesses[..., 1], guesses[..., 1], labels)
    return {name: known_mean(values) for (name, _), values in zip(_KINDS, counts, strict=True)}


def _remembered(axes: Any, compared: Compared) -> None:
    counts = remembered(compared)
    names = [name for name, _ in reversed(_KINDS)]
    layers = [counts[name] for name in names]
    t = np.arange(1, len(layers[0]) + 1)
    axes.stackplot(t, layers, colors=[color for _, color in reversed(_KINDS)], labels=names, lw=0)
    axes.set_title(compared.title)
    axes.set_xlim(1, len(t))
    axes.set_xlabel("Time step")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", frameon=False, labelcolor=QUIET)


def _accuracy(axes: Any, compared: Compared) -> None:
    ends = []
    for entry in filter(None, (compared.leader, compared.of(DIETCL), compared.of(ER_UNIFORM))):
        seeds = along(entry)
        t = np.arange(1, seeds.shape[1] + 1, dtype=np.float64)
        ends += curve(axes, t, seeds, style_of(entry.arm), entry.arm.title, faint=True)
    axes.set_xlabel("Time step")
    axes.set_ylim(bottom=0)
    label_ends(axes, ends)
