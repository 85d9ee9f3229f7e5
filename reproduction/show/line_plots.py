"""Figures of suites that are lines: along the stream, within a time step, by budget and by threshold."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dietcl.report.style import PATTERNS, QUIET
from reproduction.measures import after, average, final, unevenness
from reproduction.run_cache import Result
from reproduction.show.figure_data import FigureData, Floats, along, known_mean, known_spread, percent
from reproduction.show.plot_style import (
    BARS,
    End,
    canvas,
    curve,
    is_dietcl,
    label_ends,
    shade_styles,
    style_of,
    trend,
)
from reproduction.study import Measured
from reproduction.suites import PAPER_THRESHOLD, THRESHOLD_STEPS

SEEN = "Accuracy on all time steps\nso far, A(t) (%)"
MEANS = "lines: means over seeds"
FAINT = f"{MEANS}; faint lines: single seeds"
LEVELS = ("After the last time step, A(T)", "Mean along the stream, A")
GAP_STEP = 3
CLOSE = 0.15
"""Of the axis: ticks that are closer are labeled one below the other."""


# Along the stream.


def curves(view: FigureData) -> Any:
    """Draw accuracy along the stream in two panels, as supervision divides the methods; DietCL is in both."""
    groups = {
        "Supervised methods and frozen encoders": ("supervised", "frozen encoder"),
        "Semi-supervised methods": ("semi-supervised",),
    }
    panels = {title: [item for item in view.measured if item.arm.group in own] for title, own in groups.items()}
    panels = {title: items for title, items in panels.items() if items} or {"": []}
    both = [item for item in view.measured if item.arm.group == "reference" or is_dietcl(item.arm)]
    notes = (MEANS, "at the right: A(T) in %, method", *_levels(view))
    figure, (row,) = canvas((6.6 * len(panels), 5.8), view.title, view.small(*notes), 1, len(panels), sharey=True)
    ends = []
    for axes, (title, items) in zip(row, panels.items(), strict=True):
        ends.append(_arm_lines(axes, [*items, *(item for item in both if item not in items)]))
        _stream_axes(axes, title)
    row[0].set_ylabel(SEEN)
    row[0].set_ylim(bottom=0)
    for axes, own_ends in zip(row, ends, strict=True):
        label_ends(axes, [end.valued() for end in own_ends])
    return figure


def _levels(view: FigureData) -> tuple[str, ...]:
    alone = [item.arm.title for item in view.measured if item.arm.group == "reference"]
    return (f"{', '.join(alone)} learns all time steps at once and has no value before the last",) if alone else ()


def _arm_lines(axes: Any, items: Sequence[Measured], value: Callable[[Measured], Floats] = along) -> list[End]:
    """Draw a line for each arm, with its seeds where there are few arms."""
    ends = []
    for item in items:
        seeds = value(item)
        style = style_of(item.arm)
        ends += curve(axes, _time_steps(seeds), seeds, style, item.arm.title, faint=len(items) <= 3)
    return ends


def _time_steps(values: Floats) -> Floats:
    return np.arange(1, values.shape[1] + 1, dtype=np.float64)


def _stream_axes(axes: Any, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, fontsize=10)
    axes.set_xlabel("Time steps learned")
    axes.set_xlim(left=0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def panels(view: FigureData) -> Any:
    """Draw accuracy along the stream in a panel for each point."""
    points = view.points()
    notes = (FAINT, f"box: {view.leader}'s A, the mean of A(t) over the stream")
    size = (2.75 * len(points) + 1.6, 4.1)
    figure, (row,) = canvas(size, view.title, view.small(*notes), 1, len(points), sharey=True)
    for axes, point in zip(row, points, strict=True):
        items = [item for item in view.measured if item.point == point]
        ends = _arm_lines(axes, items)
        _stream_axes(axes, view.heading(point))
        _box(axes, [item for item in items if item.arm.title == view.leader])
    row[0].set_ylabel(SEEN)
    row[0].set_ylim(0, min(119.0, 1.15 * row[0].get_ylim()[1]))
    label_ends(row[-1], ends)
    return figure


def _box(axes: Any, items: Sequence[Measured]) -> None:
    for item in items:
        level = float(known_mean(percent(item, average)))
        frame = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#9AA1AB"}
        where = {"transform": axes.transAxes, "ha": "right", "va": "top", "zorder": 5}
        axes.text(0.97, 0.97, f"A = {level:.1f} %", fontsize=9, bbox=frame, **where)


def stages(view: FigureData) -> Any:
    """Draw accuracy on new classes and on all seen ones, along the stream."""
    titles: dict[str, Callable[[Result], Any]] = {
        "New classes, of the time step just learned": lambda result: result.summary.current,
        "All seen classes, A(t)": lambda result: result.along,
    }
    figure, (row,) = canvas((10.5, 4.2), view.title, view.small(FAINT), 1, 2, sharey=True)
    for axes, (title, value) in zip(row, titles.items(), strict=True):
        ends = _arm_lines(axes, view.measured, partial(percent, value=value))
        _stream_axes(axes, title)
    row[0].set_ylabel("Accuracy (%)")
    row[0].set_ylim(bottom=0)
    label_ends(row[-1], ends)
    return figure


def origins(view: FigureData) -> Any:
    """Draw accuracy after the last time step by time step of origin."""
    notes = (
        f"{MEANS}; bands: one standard deviation",
        "sd: over time steps of origin within a seed, less what chance adds",
    )
    figure, ((axes,),) = canvas((9.5, 4.4), view.title, view.small(*notes))
    ends = []
    for item in view.measured:
        seeds = percent(item, lambda result: result.summary.accuracy[result.summary.learned - 1])
        style = {**style_of(item.arm), "marker": "o", "ms": 4}
        mean, spread = known_mean(seeds), np.nan_to_num(known_spread(seeds))
        axes.fill_between(_time_steps(seeds), mean - spread, mean + spread, color=style["color"], alpha=0.15, lw=0)
        uneven = float(percent(item, unevenness).mean())
        ends += curve(axes, _time_steps(seeds), seeds, style, f"{item.arm.title} (sd {uneven:.1f})")
    _stream_axes(axes, "")
    axes.set(xlabel="Time step of origin of the test images", ylabel="Accuracy after the last time step (%)")
    axes.set_ylim(bottom=0)
    label_ends(axes, ends)
    return figure


# By budget and by threshold.


def lines(view: FigureData) -> Any:
    """Draw accuracy after the last time step, and its mean along the stream, by budget."""
    small = view.small(BARS, "dotted: S*, the paper's 400", "at the right: percent at the largest budget, method")
    figure, (row,) = canvas((12.5, 5), view.title, small, 1, 2)
    arms = view.arms()
    for axes, measure, title in zip(row, (final, average), LEVELS, strict=True):
        axes.set_xscale("log")
        ends = []
        for number, items in enumerate(arms):
            aside = 1.012 ** (number - (len(arms) - 1) / 2)  # so that bars do not hide each other
            x = np.array([float(view.scale.count(item.point.updates)) for item in items])
            ends += trend(
                axes, x * aside, [percent(item, measure) for item in items], style_of(items[0].arm), items[0].arm.title
            )
        _ticks(axes, view, [point.updates for point in view.points()])
        axes.axvline(view.scale.count(PAPER_THRESHOLD), color=QUIET, lw=0.8, ls=PATTERNS[2], zorder=1, label="_peak")
        axes.set_title(title, loc="left")
        axes.set_xlabel(view.scale.axis("Updates per time step"))
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
        label_ends(axes, [end.valued() for end in ends])
    row[0].set_ylabel("Accuracy (%)")
    return figure


def _ticks(axes: Any, view: FigureData, updates: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    axes.xaxis.set_minor_locator(NullLocator())
    places = list(map(view.scale.count, updates))
    axes.get_xlim()  # settles the scale that is asked next
    across = axes.transAxes.inverted().transform(axes.transData.transform([(place, 0) for place in places]))[:, 0]
    is_close = [False, *(np.diff(across) < CLOSE).tolist()]
    labels = [("\n\n" if close else "") + view.scale.tick(each) for each, close in zip(updates, is_close, strict=True)]
    axes.set_xticks(places, labels, fontsize=9)


def thresholds(view: FigureData) -> Any:
    """Draw accuracy after few time steps by DietCL's threshold."""
    notes = (
        "B: updates of the joint phase of new, remembered and unlabeled images; the rest goes to remembered ones",
        BARS,
        "ring: the highest mean after this time step",
    )
    figure, ((axes,),) = canvas((8, 4.6), view.title, view.small(*notes))
    x = np.array([float(view.scale.count(item.point.threshold)) for item in view.measured])
    aside = 0.012 * float(np.ptp(x))  # so that bars do not hide each other
    ends = []
    for t, style in zip(THRESHOLD_STEPS, shade_styles(len(THRESHOLD_STEPS)), strict=True):
        moved = x + aside * (t - float(np.mean(THRESHOLD_STEPS)))
        groups = [percent(item, after(t)) for item in view.measured]
        ends += trend(axes, moved, groups, style, f"after time step {t}")
        _ring(axes, moved, np.array([float(known_mean(group)) for group in groups]), style["color"], t)
    _ticks(axes, view, [point.threshold for point in view.points()])
    axes.set(xlabel=view.scale.axis("Threshold B, in updates"), ylabel=SEEN)
    label_ends(axes, ends)
    return figure


def _ring(axes: Any, x: Floats, means: Floats, color: Any, t: int) -> None:
    if not np.isnan(means).all():
        best = int(np.nanargmax(means))
        ring = {"marker": "o", "ms": 13, "mfc": "none", "mec": color, "mew": 1.8, "ls": ""}
        axes.plot(x[best], means[best], label=f"_best after time step {t}", **ring)


# Within a time step.


def gap(view: FigureData) -> Any:
    """Draw loss and accuracy within the third time step by time step of origin."""
    items = [item for item in view.measured if any(map(_within, item.results))]
    small = view.small(FAINT, "a line for each time step of origin of the test images")
    figure, grid = canvas((4.2 * len(items) + 1.6, 6), view.title, small, 2, len(items), sharey="row")
    for row, name, factor, label in zip(
        grid, ("loss", "accuracy"), (1, 100), ("Loss on test images", "Accuracy (%)"), strict=True
    ):
        for axes, item in zip(row, items, strict=True):
            ends = list(_origin_lines(axes, item, name, factor))
        row[0].set_ylabel(label)
        row[0].set_ylim(bottom=0)
        label_ends(row[-1], ends)
    for top, bottom, item in zip(*grid, items, strict=True):
        top.set_title(item.arm.title)
        bottom.set_xlabel(f"Share of the updates of time step {GAP_STEP} (%)")
    return figure


def _within(result: Result) -> list[dict[str, Any]]:
    return [event for event in result.facts.get("curve", ()) if event["t"] == GAP_STEP]


def _origin_lines(axes: Any, item: Measured, name: str, factor: float) -> Iterator[End]:
    """Draw a line for each time step of origin; seeds that were measured at other shares are interpolated."""
    runs = [result for result in item.results if _within(result)]
    shares = [_shares(result) for result in runs]
    x = np.unique(np.concatenate(shares))
    for origin, style in enumerate(shade_styles(GAP_STEP)):
        seeds = [_filled(x, own, _values(run, name, origin)) for own, run in zip(shares, runs, strict=True)]
        text = f"time step {origin + 1}{' (new)' if origin + 1 == GAP_STEP else ''}"
        yield from curve(axes, 100 * x, factor * np.array(seeds), style, text, faint=True)


def _shares(result: Result) -> Floats:
    updates = np.array([event["update"] for event in _within(result)], dtype=np.float64)
    return updates / max(float(updates.max()), 1.0)


def _values(result: Result, name: str, origin: int) -> Floats:
    """Return values of a time step of origin; without test images, its events hold zeros for want of a value."""
    values = np.array([event[name][origin] for event in _within(result)], dtype=np.float64)
    tested = not np.isnan(result.summary.accuracy[:, origin]).all()
    return values if tested else np.full(len(values), np.nan)


def _filled(x: Floats, own: Floats, values: Floats) -> Floats:
    known = ~np.isnan(values)
    return np.interp(x, own[known], values[known]) if known.any() else np.full(len(x), np.nan)
