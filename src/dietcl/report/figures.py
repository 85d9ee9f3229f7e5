"""PNG figures by matplotlib."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from dietcl.report import series
from dietcl.report.confusion import Images
from dietcl.report.figure_style import figure_style, shorten, show_dates, show_time_steps, whole_numbers
from dietcl.report.groups import Group, entries_of
from dietcl.report.run_files import Samples
from dietcl.report.runs import RunRecord
from dietcl.report.series import Dates, first_date
from dietcl.report.style import FEW, LINES, NAME_PALETTE, PALETTE, QUIET, RIGHT, WRONG

_FIGURE_SPACE = "\u2007"  # as wide as a digit
_LABEL = 34  # characters on a line of the legend
_BELOW: Any = {"loc": "outside lower left"}  # the legend of a run's chart
_ORIGINS = 12  # named in the legend of a chart within time steps


@dataclass(frozen=True)
class Figure:
    """A PNG file: what it shows, of which run (all: -1), and a sentence for readers who do not see it."""

    path: Path
    kind: str
    run: int
    alt: str


def write_figures(groups: Sequence[Group], folder: Path) -> list[Figure]:
    """Draw every figure that the runs have data for into a folder."""
    for pattern in ("accuracy_*.png", "*-[0-9][0-9]-*.png", "*-[0-9][0-9][0-9]-*.png"):
        for stale in folder.glob(pattern):
            stale.unlink()
    entries = entries_of(groups)
    runs = [entry.run for entry in entries]
    figures: list[Figure] = []

    def keep(canvas: Any, kind: str, run: int, alt: str) -> None:
        path = folder / f"{kind}.png"
        if run >= 0:
            slug = re.sub(r"[^a-z0-9]+", "-", entries[run].label.lower()).strip("-")[:40]
            path = folder / f"{kind}-{run + 1:02d}-{slug or 'run'}.png"
        canvas.savefig(path)
        figures.append(Figure(path, kind, run, alt))

    with figure_style():
        for curve in ("accuracy_mean", "accuracy_pooled") if any(run.summary.learned for run in runs) else ():
            title = series.MEASURES[curve]
            keep(_accuracy(groups, curve, title), curve, -1, f"Accuracy along the stream, {title.lower()}")
        top, colors, dates = series.ceiling(runs), series.name_colors(runs), series.shared_dates(runs)
        for i, entry in enumerate(entries):
            run, label = entry.run, entry.label
            if run.summary.learned:
                keep(_matrix(run, label, top, dates), "matrix", i, f"Accuracy matrix of {label}")
            if spent := series.spending(run):
                keep(_budget(spent, label, colors, dates), "budget", i, f"Where the budget of {label} went")
            if losses := series.loss_lines(run):
                keep(_losses(losses, label, colors, dates), "losses", i, f"Training losses of {label}")
            if curves := series.origin_lines(run):
                keep(_within(curves, label, dates), "within", i, f"Accuracy of {label} within time steps")
            if chosen := series.chosen_samples(run):
                keep(_samples(run.samples, chosen, label), "samples", i, f"Test images with predictions of {label}")
            if chosen := series.chosen_triples(run):
                board = reconstructions(run.samples.triples, chosen, label)
                keep(board, "reconstructions", i, f"Reconstructions of {label}")
    return figures


def plot(width: float, height: float, title: str, x: str = "", y: str = "") -> tuple[Any, Any]:
    """Return a figure of this size in inches and its axes, with ticks at whole numbers of x."""
    figure = Canvas(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.set_title(title, pad=10)
    axes.xaxis.set_major_locator(whole_numbers())
    return figure, axes


def _accuracy(groups: Sequence[Group], curve: str, title: str) -> Any:
    runs = [entry.run for entry in entries_of(groups)]
    many = len(groups) > FEW
    lines = sum(len(textwrap.wrap(group.label, _LABEL)) for group in groups)
    width, height = (10.5, max(5.4, 1.2 + 0.2 * lines)) if many else (8.0, 4.2)
    heading = f"Accuracy along the stream: {title.lower()}"
    figure, axes = plot(width, height, heading, "Time steps learned", "Accuracy (%)")
    keys = []
    for group in groups:
        values = np.array([100 * getattr(run.summary, curve) for run in group.runs])
        style = {"color": PALETTE[group.look.color], "ls": LINES[group.look.pattern]}
        t, centre = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
        if not many:  # the seeds and bands of more groups would hide each other
            error = 100 * getattr(group.runs[0].summary, f"{curve}_se")
            if len(values) > 1:
                error = values.std(axis=0, ddof=1)
                axes.plot(t, values.T, color=style["color"], lw=0.8, alpha=0.5)
            axes.fill_between(t, centre - error, centre + error, color=style["color"], alpha=0.15, lw=0)
        axes.plot(t, centre, lw=1.8 if many else 2.4 if len(values) > 1 else 2, **style)
        lone = series.lone_points(centre)
        diamond = {"color": style["color"], "marker": "D", "ms": 8, "mec": "white", "ls": ""}
        axes.plot(t[lone], centre[lone], zorder=3, **diamond)
        final = next(iter(centre[~np.isnan(centre)][::-1].tolist()), -1.0)
        (key,) = axes.plot([], [], **(diamond if all(map(series.is_point, group.runs)) else style | {"lw": 2}))
        keys.append((final, key, group.label))
    chance = 100 * np.array(series.chance_line(runs), np.float64)  # None is nan
    if not np.isnan(chance).all():
        # Below the lines, and not to widen their scale: chance among one or two classes is high.
        highest = axes.get_ylim()[1]
        (key,) = axes.plot(np.arange(1, len(chance) + 1), chance, color=QUIET, lw=1.2, ls=(0, (1.1, 2)), zorder=1)
        axes.set_ylim(top=highest)
        keys.append((float(chance[~np.isnan(chance)][-1]), key, "chance"))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0.5)
    show_dates(axes.xaxis, series.shared_dates(runs))
    place: dict[str, Any] = {}
    if many:
        # As the lines end, from top to bottom.
        keys = [(final, key, _ranked(final, label)) for final, key, label in sorted(keys, key=lambda row: -row[0])]
        place = {"loc": "upper left", "bbox_to_anchor": (1.02, 1), "borderaxespad": 0, "alignment": "left"}
        place |= {"title": "A(T) in %, method", "handlelength": 3, "labelspacing": 0.45}
        place |= {"fontsize": 8.5, "title_fontsize": 8.5}
    axes.legend([key for _, key, _ in keys], [label for _, _, label in keys], **place)
    return figure


def _ranked(final: float, label: str) -> str:
    """Write a legend entry with the number first, so that the numbers are aligned."""
    number = f"{final:.1f}" if final >= 0 else "–"
    rest = f"\n{6 * _FIGURE_SPACE}".join(textwrap.wrap(label, _LABEL))
    return f"{number.rjust(4, _FIGURE_SPACE)}  {rest}"


def _matrix(run: RunRecord, label: str, top: float, dates: Dates = None) -> Any:
    figure, axes = plot(5.4, 4.8, f"{label}: accuracy matrix", "Test images of time step", "After learning time step")
    size = run.summary.time_steps
    extent = (0.5, size + 0.5, size + 0.5, 0.5)
    image = axes.imshow(100 * run.summary.accuracy, cmap="Blues", vmin=0, vmax=100 * top, extent=extent)
    axes.grid(visible=False)
    axes.yaxis.set_major_locator(whole_numbers())
    axes.xaxis.set_major_locator(whole_numbers(5 if dates else 10))
    for axis in (axes.xaxis, axes.yaxis):
        show_dates(axis, dates)
    figure.colorbar(image, ax=axes, label="Accuracy (%)", shrink=0.8).outline.set_visible(False)
    return figure


def _budget(spent: series.Spending, label: str, colors: dict[str, int], dates: Dates = None) -> Any:
    figure, axes = plot(6.4, 3.8, f"{label}: where the budget went", "Time step", f"Spent ({spent.unit})")
    base = np.zeros(len(spent.t))
    for name, amounts in spent.by_purpose.items():
        axes.bar(spent.t, amounts, 0.82, bottom=base, color=NAME_PALETTE[colors[name]], label=name)
        base = base + amounts
    spare: Any = {"color": "#F3F4F6", "edgecolor": "#9AA1AB", "hatch": "////"}
    axes.bar(spent.t, spent.unused, 0.82, bottom=base, label="unused", **spare)
    show_time_steps(axes, spent.t)
    show_dates(axes.xaxis, dates)
    axes.grid(visible=False, axis="x")
    figure.legend(ncols=4, **_BELOW)
    return figure


def _losses(losses: series.Lines, label: str, colors: dict[str, int], dates: Dates = None) -> Any:
    figure, axes = plot(6.4, 3.6, f"{label}: training loss by term", "Time step", "Training loss")
    for name, values in losses.lines.items():
        own = ~np.isnan(values)  # a phase without this term does not interrupt its line
        marker = "." if own.sum() < 40 else None
        axes.plot(losses.x[own], values[own], color=NAME_PALETTE[colors[name]], lw=1.2, marker=marker, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlim(losses.t[0] - 0.5, losses.t[-1] + 0.5)
    show_dates(axes.xaxis, dates)
    figure.legend(ncols=4, **_BELOW)
    return figure


def _within(curves: series.Lines, label: str, dates: Dates = None) -> Any:
    title = f"{label}: accuracy within time steps"
    figure, axes = plot(6.4, 3.8, title, "Time step being learned", "Accuracy (%)")
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(curves.lines)))
    named = series.evenly(len(shades), _ORIGINS)
    for i, ((name, values), shade) in enumerate(zip(curves.lines.items(), shades, strict=True)):
        date = first_date(dates[int(name) - 1]) if dates else name
        axes.plot(curves.x, 100 * values, color=shade, lw=1.3, label=date if i in named else None)
    axes.set_ylim(bottom=0)
    show_dates(axes.xaxis, dates)
    figure.legend(title="Test images of time step", ncols=4 if dates else 8, fontsize=8, **_BELOW)
    return figure


def _samples(samples: Samples, chosen: list[int], label: str, columns: int = 10) -> Any:
    colors = [RIGHT if samples.label[i] == samples.predicted[i] else WRONG for i in chosen]
    title = f"{label}: test images with predictions"
    figure, axes = _board([samples.images[i] for i in chosen], colors, columns, 1.3, title)
    for place, (i, color) in enumerate(zip(chosen, colors, strict=True)):
        row, column = divmod(place, columns)
        wrong = f"\nnot {shorten(samples.predicted[i], 12)}" if color == WRONG else ""
        words = shorten(samples.label[i], 12) + wrong
        axes.text(column + 0.45, 1.3 * row + 0.95, words, fontsize=7, color=color, ha="center", va="top")
    return figure


def reconstructions(triples: dict[str, Images], chosen: list[int], label: str) -> Any:
    """Draw a row for each kind of image: original, masked and reconstructed."""
    tiles = [images[i] for images in triples.values() for i in chosen]
    figure, axes = _board(tiles, ["#D1D5DB"] * len(tiles), len(chosen), 1.0, f"{label}: reconstructions")
    for row, title in enumerate(triples):
        axes.text(-0.06, row + 0.45, title, fontsize=8, color=QUIET, rotation=90, ha="right", va="center")
    return figure


def _board(tiles: list[Images], borders: list[str], columns: int, height: float, title: str) -> tuple[Any, Any]:
    """Draw images in rows of this height; an image is 0.9 wide and the next one begins at 1."""
    rows = -(-len(tiles) // columns)
    figure, axes = plot(columns * 0.95 + 0.4, rows * height * 0.95 + 0.5, title)
    axes.set(xlim=(-0.02, columns), ylim=(rows * height, -0.02), aspect="equal")
    axes.axis("off")
    for place, (image, border) in enumerate(zip(tiles, borders, strict=True)):
        x, y = place % columns, place // columns * height
        axes.imshow(image, interpolation="nearest", extent=(x, x + 0.9, y + 0.9, y))
        axes.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, edgecolor=border, linewidth=2, clip_on=False))
    return figure, axes
