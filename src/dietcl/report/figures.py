"""PNG figures by matplotlib, which is imported only when a figure is drawn."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from dietcl.report.groups import Group, entries_of
from dietcl.report.runs import Images, Run
from dietcl.report.series import (
    MEASURES,
    ceiling,
    chosen_samples,
    chosen_triples,
    loss_lines,
    origin_lines,
    spending,
)

# Okabe and Ito's colours, which readers with any colour vision can tell apart; yellow is too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B")
# For purposes and loss terms, so that they are not taken for runs (after Paul Tol's muted scheme).
NAME_PALETTE = ("#4B3FA6", "#C2576B", "#3AA394", "#C2A938", "#7CC4EA", "#A0479A", "#8A8A2E")
RIGHT, WRONG, QUIET = "#009E73", "#D0342C", "#6B7280"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9AA1AB",
    "axes.labelcolor": "#374151",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.8,
    "xtick.color": "#4B5563",
    "ytick.color": "#4B5563",
    "legend.frameon": False,
    "text.parse_math": False,  # labels come from the data and may hold dollar signs
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.dpi": 100,
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class Figure:
    """A PNG file: what it shows, of which run (all: -1), and a sentence that stands for it."""

    path: Path
    kind: str
    run: int
    alt: str


def write_figures(groups: Sequence[Group], folder: Path) -> list[Figure]:
    """Draw every figure that the runs have data for into a folder."""
    import matplotlib

    for pattern in ("accuracy_*.png", "*-[0-9][0-9]-*.png"):
        for stale in folder.glob(pattern):
            stale.unlink()
    entries = entries_of(groups)
    runs = [entry.run for entry in entries]
    figures: list[Figure] = []

    def keep(canvas: Any, kind: str, run: int, alt: str) -> None:
        if canvas is None:
            return
        suffix = f"-{run + 1:02d}-{_slug(entries[run].label)}" if run >= 0 else ""
        path = folder / f"{kind}{suffix}.png"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            canvas.savefig(path)
        figures.append(Figure(path, kind, run, alt))

    with matplotlib.rc_context(_STYLE):
        for measure in MEASURES[:2]:
            drawn = _accuracy(groups, measure.curve, measure.title)
            keep(drawn, measure.curve, -1, f"Accuracy along the stream, {measure.title.lower()}")
        top, colors = ceiling(runs), name_colors(runs)
        for i, entry in enumerate(entries):
            run, label = entry.run, entry.label
            keep(_matrix(run, label, top), "matrix", i, f"Accuracy matrix of {label}")
            keep(_budget(run, label, colors), "budget", i, f"Where the budget of {label} went")
            keep(_losses(run, label, colors), "losses", i, f"Training losses of {label}")
            keep(_within(run, label), "within", i, f"Accuracy of {label} within time steps")
            keep(_samples(run, label), "samples", i, f"Test images with predictions of {label}")
            keep(_reconstructions(run, label), "reconstructions", i, f"Reconstructions of {label}")
    return figures


def name_colors(runs: Sequence[Run]) -> dict[str, int]:
    """Give every purpose and every loss term one place in the palette, the same in all charts."""
    names = dict.fromkeys(name for run in runs if (lines := loss_lines(run)) for name in lines.lines)
    names |= dict.fromkeys(name for run in runs if (spent := spending(run)) for name in spent.by_purpose)
    return {name: i % len(NAME_PALETTE) for i, name in enumerate(names)}


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "run"


def _plot(width: float, height: float, title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, pad=10)
    axes.xaxis.set_major_locator(_whole_numbers())
    return figure, axes


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)  # with more, a single time step gets tenths


def _accuracy(groups: Sequence[Group], curve: str, title: str) -> Any:
    if not any(run.summary.learned for group in groups for run in group.runs):
        return None
    figure, axes = _plot(8, 4.2, f"Accuracy along the stream: {title.lower()}")
    for group, color in zip(groups, cycle(PALETTE), strict=False):
        values = [100 * getattr(run.summary, curve) for run in group.runs]
        errors = [100 * getattr(run.summary, f"{curve}_se") for run in group.runs]
        for line, error in zip(values, errors, strict=True):
            t = np.arange(1, len(line) + 1)
            alone = len(values) == 1
            axes.plot(t, line, color=color, lw=2 if alone else 0.8, alpha=1 if alone else 0.5)
            if alone:
                axes.fill_between(t, line - error, line + error, color=color, alpha=0.15, lw=0)
        if len(values) > 1:
            known = np.array(values)
            axes.plot(np.arange(1, known.shape[1] + 1), known.mean(axis=0), color=color, lw=2.4)
        axes.plot([], [], color=color, lw=2, label=group.label)
    axes.set(xlabel="Time steps learned", ylabel="Accuracy (%)")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0.5)
    axes.legend()
    return figure


def _matrix(run: Run, label: str, top: float) -> Any:
    if not run.summary.learned:
        return None
    figure, axes = _plot(5.4, 4.8, f"{label}: accuracy matrix")
    size = run.summary.time_steps
    image = axes.imshow(
        100 * run.summary.accuracy, cmap="Blues", vmin=0, vmax=100 * top, extent=(0.5, size + 0.5, size + 0.5, 0.5)
    )
    axes.grid(visible=False)
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.set(xlabel="Test images of time step", ylabel="After learning time step")
    figure.colorbar(image, ax=axes, label="Accuracy (%)", shrink=0.8).outline.set_visible(False)
    return figure


def _budget(run: Run, label: str, colors: dict[str, int]) -> Any:
    spent = spending(run)
    if spent is None:
        return None
    figure, axes = _plot(6.4, 3.8, f"{label}: where the budget went")
    base = np.zeros(len(spent.t))
    for name, amounts in spent.by_purpose.items():
        axes.bar(spent.t, amounts, 0.82, bottom=base, color=NAME_PALETTE[colors[name]], label=name)
        base = base + amounts
    axes.bar(
        spent.t, spent.unused, 0.82, bottom=base, color="#F3F4F6", edgecolor="#9AA1AB", hatch="////", label="unused"
    )
    axes.set(xlabel="Time step", ylabel=f"Spent ({spent.unit})", xlim=(0.4, max(spent.t) + 0.6))
    axes.grid(visible=False, axis="x")
    axes.legend(ncols=4, loc="upper left", bbox_to_anchor=(0, -0.18))
    return figure


def _losses(run: Run, label: str, colors: dict[str, int]) -> Any:
    losses = loss_lines(run)
    if losses is None:
        return None
    figure, axes = _plot(6.4, 3.6, f"{label}: training loss by term")
    for name, values in losses.lines.items():
        own = ~np.isnan(values)  # a phase without this term is no gap in it
        marker = "." if own.sum() < 40 else None
        axes.plot(losses.x[own], values[own], color=NAME_PALETTE[colors[name]], lw=1.2, marker=marker, label=name)
    axes.set(xlabel="Time step", ylabel="Training loss")
    axes.set_ylim(bottom=0)
    axes.set_xlim(losses.t[0] - 0.5, losses.t[-1] + 0.5)
    axes.legend(ncols=4, loc="upper left", bbox_to_anchor=(0, -0.18))
    return figure


def _within(run: Run, label: str) -> Any:
    import matplotlib

    curves = origin_lines(run)
    if curves is None:
        return None
    figure, axes = _plot(6.4, 3.8, f"{label}: accuracy within time steps")
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(curves.lines)))
    for (name, values), shade in zip(curves.lines.items(), shades, strict=True):
        axes.plot(curves.x, 100 * values, color=shade, lw=1.3, label=name)
    axes.set(xlabel="Time step being learned", ylabel="Accuracy (%)")
    axes.set_ylim(bottom=0)
    axes.legend(title="Test images of time step", ncols=8, loc="upper left", bbox_to_anchor=(0, -0.18), fontsize=8)
    return figure


def _samples(run: Run, label: str) -> Any:
    chosen = chosen_samples(run)
    if run.samples is None or not chosen:
        return None
    samples, columns = run.samples, 10
    figure, axes = _board(-(-len(chosen) // columns), columns, 1.3, f"{label}: test images with predictions")
    for place, i in enumerate(chosen):
        right = samples.label[i] == samples.predicted[i]
        color = RIGHT if right else WRONG
        row, column = divmod(place, columns)
        _put(axes, samples.images[i], column, 1.3 * row, color)
        said = _short(samples.label[i]) if right else f"{_short(samples.label[i])}\nnot {_short(samples.predicted[i])}"
        axes.text(column + 0.45, 1.3 * row + 0.95, said, fontsize=7, color=color, ha="center", va="top")
    return figure


def _reconstructions(run: Run, label: str) -> Any:
    chosen = chosen_triples(run)
    if run.samples is None or not chosen:
        return None
    figure, axes = _board(3, len(chosen), 1.0, f"{label}: reconstructions")
    rows: tuple[tuple[str, Images], ...] = (
        ("original", run.samples.originals),
        ("masked", run.samples.masked),
        ("reconstructed", run.samples.reconstructed),
    )
    for row, (title, images) in enumerate(rows):
        for column, i in enumerate(chosen):
            _put(axes, images[i], column, row, "#D1D5DB")
        axes.text(-0.06, row + 0.45, title, fontsize=8, color=QUIET, rotation=90, ha="right", va="center")
    return figure


def _board(rows: int, columns: int, height: float, title: str) -> tuple[Any, Any]:
    """Return axes in which every tile is 0.9 wide and the next one begins 1 further."""
    figure, axes = _plot(columns * 0.95 + 0.4, rows * height * 0.95 + 0.5, title)
    axes.set(xlim=(-0.02, columns), ylim=(rows * height, -0.02), aspect="equal")
    axes.axis("off")
    return figure, axes


def _put(axes: Any, image: Images, x: float, y: float, border: str) -> None:
    from matplotlib.patches import Rectangle

    limits = axes.axis()
    axes.imshow(image, interpolation="nearest", extent=(x, x + 0.9, y + 0.9, y))
    axes.axis(limits)
    axes.add_patch(Rectangle((x, y), 0.9, 0.9, fill=False, edgecolor=border, linewidth=2, clip_on=False))


def _short(label: str) -> str:
    return label if len(label) <= 12 else f"{label[:11]}…"
