"""The figure of each suite by matplotlib, which is imported only when a figure is drawn."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dietcl.report.style import MATPLOTLIB, NAME_PALETTE
from reproduction.measures import final, pooled, solved
from reproduction.show import line_plots
from reproduction.show.figure_data import FigureData, known_mean, percent, spread_text
from reproduction.show.plot_style import BARS, INK, canvas, column, dots, is_strong, mean_dot, name_rows, style_of
from reproduction.show.scale import Scale
from reproduction.show.tables import flops_by_purpose
from reproduction.study import Measured
from reproduction.suites import Point, Suite, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THIN = 0.01
"""Of the longest bar: what is thinner in all of them has no colour of its own."""
_WORDS = {
    "labeled": "new labels",
    "memory": "remembered labels",
    "labels": "labels, new or old (DualNet)",
    "unlabeled": "guessed labels",
    "guess": "guessing labels",
    "reconstruct": "masked images",
    "views": "pairs of views",
    "projector": "projection of views",
    "teacher": "the former network",
    "features": "features, without gradient",
    "prompt": "new labels with prompts (L2P)",
    "query": "choice of prompts (L2P)",
    "triplet": "triplets of classes (CCIC)",
    "cross": "unlabeled against past (CCIC)",
}
"""What purposes in a ledger are, to a reader who has not read the methods."""
_GROUPS = ("reference", "supervised", "frozen encoder", "semi-supervised")


def draw(suite: Suite, measured: Sequence[Measured], scale: Scale, title: str) -> "Figure":
    """Draw what a suite measured."""
    import matplotlib

    view = FigureData(tuple(measured), scale, title, suite.leader)
    with matplotlib.rc_context(MATPLOTLIB):
        figure: Figure = _VIEWS[suite.view](view)
        return figure


def _table(view: FigureData) -> Any:
    rows = list(_ordered(view.measured))
    items = [(place, row) for place, row in enumerate(rows) if isinstance(row, Measured)]
    headings = [place for place, row in enumerate(rows) if isinstance(row, str)]
    figure, ((axes,),) = canvas((8.4, 1.7 + 0.27 * len(rows)), view.title, view.small(BARS))
    names = [row if isinstance(row, str) else row.arm.title for row in rows]
    name_rows(axes, names, {place: item.arm for place, item in items}, headings)
    for place, item in items:
        values, color = percent(item, final), style_of(item.arm)["color"]
        dots(axes, values, np.full(len(values), place), color)
        mean_dot(axes, values, place, item.arm.title, color=color, ms=9.5 if is_strong(item.arm) else 7)
    axes.set_xlabel("Accuracy after the last time step, A(T) (%)")
    column(axes, 66, "A(T) in %", [(place, spread_text(percent(item, final))) for place, item in items])
    return figure


def _ordered(measured: Sequence[Measured]) -> Iterator[Measured | str]:
    """Yield rows and headings: the best first within its group; parts of a method in the order they are given."""
    if any(item.arm.options for item in measured):
        yield from measured
        return
    groups = [group for group in _GROUPS if any(item.arm.group == group for item in measured)]
    for group in groups:
        if len(groups) > 1:
            yield group.capitalize()
        own = [item for item in measured if item.arm.group == group]
        yield from sorted(own, key=lambda item: -float(known_mean(percent(item, final))))


def _heads(view: FigureData) -> Any:
    rows = sorted(view.measured, key=lambda item: -float(known_mean(percent(item, solved))))
    height = 2.3 + 0.42 * len(rows)
    seeds = "large dots: means over seeds; small dots: single seeds; at the right: mean ± standard deviation in %"
    figure, ((axes,),) = canvas((9, height), view.title, view.small(seeds))
    name_rows(axes, [item.arm.title for item in rows], dict(enumerate(item.arm for item in rows)))
    for place, item in enumerate(rows):
        color, own, freed = style_of(item.arm)["color"], percent(item, pooled), percent(item, solved)
        axes.plot([known_mean(own), known_mean(freed)], [place, place], color=color, lw=3, alpha=0.4, label="_link")
        for values, fill, aside in ((own, "white", 0.2), (freed, color, -0.2)):
            dots(axes, values, np.full(len(values), place + aside), color)
            mean_dot(axes, values, place, "_mean", color=color, ms=9, mfc=fill, mec=color, lw=0)
    for text, fill in (("the method's own head", "white"), ("a head solved on its encoder from all labels", INK)):
        axes.plot([], [], ls="", marker="o", ms=8, mfc=fill, mec=INK, label=text)
    axes.set_xlabel("Accuracy on all test images after the last time step (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.55 / (height - 1.9)), ncols=2, fontsize=9)
    column(axes, 66, "own", [(place, spread_text(percent(item, pooled))) for place, item in enumerate(rows)])
    column(axes, 130, "solved", [(place, spread_text(percent(item, solved))) for place, item in enumerate(rows)])
    return figure


def _spending(view: FigureData) -> Any:
    rows = [item for item in view.measured if flops_by_purpose(item)]
    height = 2.5 + 0.3 * len(rows)
    notes = ("bars: means over seeds", "at equal images or FLOPs: what the budget of a time step counts, at most")
    figure, ((axes,),) = canvas((9.6, height), view.title, view.small(*notes))
    names = [f"{item.arm.title}, at equal {_accounting(item.point)}" for item in rows]
    name_rows(axes, names, dict(enumerate(item.arm for item in rows)))
    unit, prefix = _unit(max(sum(flops_by_purpose(item).values()) for item in rows))
    totals = _stack(axes, [{name: flops / unit for name, flops in flops_by_purpose(item).items()} for item in rows])
    axes.set_xlabel(f"Spent on learning the whole stream ({prefix}FLOPs)")
    axes.set_xlim(0, 1.02 * max(totals))
    legend = {"alignment": "left", "handlelength": 1.4, "columnspacing": 1.4, "fontsize": 9, "title_fontsize": 9}
    below = (-0.02, -0.55 / (height - 2.1))
    axes.legend(loc="upper left", bbox_to_anchor=below, ncols=3, title="What it was spent on:", **legend)
    column(axes, 48, f"{prefix}FLOPs", [(place, f"{total:.3g}") for place, total in enumerate(totals)])
    column(axes, 116, "A(T) in %", [(place, spread_text(percent(item, final))) for place, item in enumerate(rows)])
    return figure


def _stack(axes: Any, rows: Sequence[dict[str, float]]) -> list[float]:
    """Draw a bar for each row, the purposes that take most in all first; returns the lengths of the bars.

    What nobody could see, being thin in every bar, is drawn together.
    """
    purposes = Counter[str]()
    for row in rows:
        purposes.update(row)
    thinnest = _THIN * max(sum(row.values()) for row in rows)
    seen = [name for name, _ in purposes.most_common() if max(row.get(name, 0.0) for row in rows) >= thinnest]
    left = np.zeros(len(rows))
    for number, purpose in enumerate(seen):
        widths = np.array([row.get(purpose, 0.0) for row in rows])
        look = {"color": NAME_PALETTE[number % len(NAME_PALETTE)], "edgecolor": "white", "linewidth": 0.5}
        hatch = ("", "/////", ".....")[number // len(NAME_PALETTE) % 3]
        axes.barh(range(len(rows)), widths, 0.68, left, hatch=hatch, label=_WORDS.get(purpose, purpose), **look)
        left = left + widths
    totals = [sum(row.values()) for row in rows]
    if len(seen) < len(purposes):
        axes.barh(range(len(rows)), totals - left, 0.68, left, color=INK, label="other")
    return totals


def _accounting(point: Point) -> str:
    return "FLOPs" if point.accounting == "flops" else "images"


def _unit(largest: float) -> tuple[float, str]:
    power = min(max(int(np.log10(largest) // 3), 0), 6)
    return 10.0 ** (3 * power), ("", "K", "M", "G", "T", "P", "E")[power]


_VIEWS: dict[View, Callable[[FigureData], Any]] = {
    "table": _table,
    "curves": line_plots.curves,
    "lines": line_plots.lines,
    "panels": line_plots.panels,
    "steps": line_plots.thresholds,
    "gap": line_plots.gap,
    "stages": line_plots.stages,
    "origins": line_plots.origins,
    "spending": _spending,
    "heads": _heads,
}
