"""How the figures of suites are drawn: the look of an arm, means with their seeds, rows, and labels at line ends."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.report.style import PALETTE, PATTERNS, QUIET, Look, look
from reproduction import suites
from reproduction.larder_suites import LARDER, LARDER_SUITES
from reproduction.show.figure_data import Floats, known_mean, known_spread
from reproduction.suites import DIETCL, SUITES, Arm

INK = "#111827"
BARS = "bars: one standard deviation over seeds; small dots: single seeds"
_FIGURE_SPACE = "\u2007"  # as wide as a digit
_LEFT = 0.012  # of headings and small print, in widths of the figure
_SMALL, _LABEL = 7.5, 8.5  # points
# These take the solid lines and then the dashed ones, so that no figure of few arms shows a colour twice.
_FIRST = (
    *(suites.ER, suites.ER_UNIFORM, suites.CASSLE, suites.FIXMATCH, suites.RANPAC, suites.FROZEN),
    *(suites.TWO_STAGE, suites.GDUMB),
)


# Looks.


def is_dietcl(arm: Arm) -> bool:
    """Tell whether an arm is DietCL with all of its parts, under whichever title."""
    return _key(arm) == _key(DIETCL)


def is_larder(arm: Arm) -> bool:
    """Tell whether an arm is Larder as it is."""
    return _key(arm) == _key(LARDER)


def is_strong(arm: Arm) -> bool:
    """Tell whether a reader looks for this arm first."""
    return is_dietcl(arm) or is_larder(arm)


def style_of(arm: Arm) -> dict[str, Any]:
    """Return colour, pattern, width and order of an arm's line, the same in all figures; blue is DietCL's alone."""
    if is_strong(arm):
        return {"color": PALETTE[0] if is_dietcl(arm) else INK, "ls": PATTERNS[0], "lw": 3.0, "zorder": 3.5}
    if arm.group == "reference":
        return {"color": INK, "ls": PATTERNS[1], "lw": 1.3, "zorder": 2.0}
    own = _looks().get(_key(arm), Look(len(PALETTE) - 1, 0))
    return {"color": PALETTE[own.color], "ls": PATTERNS[own.pattern], "lw": 1.6, "zorder": 2.5}


def _key(arm: Arm) -> str:
    return f"{arm.method} {sorted(arm.options.items())} as {arm.tuned_as or arm.method}"


def _is_variant(arm: Arm) -> bool:
    return bool(arm.options) or arm.tuned_as not in ("", arm.method)


@cache
def _looks() -> dict[str, Look]:
    places = [look(place) for place in range(len(PALETTE) * len(PATTERNS)) if look(place).color]
    arms = [*_FIRST, *(arm for suite in SUITES.values() for arm in suite.arms)]
    drawn = [arm for arm in arms if arm.group != "reference" and not is_dietcl(arm)]
    methods = dict.fromkeys(_key(arm) for arm in drawn if not _is_variant(arm))
    # There are more arms than looks: what differs from a method by options or rates takes them from the other end.
    variants = dict.fromkeys(map(_key, sorted(filter(_is_variant, drawn), key=lambda arm: not arm.options)))
    variants |= dict.fromkeys(_key(arm) for suite in LARDER_SUITES.values() for arm in suite.arms if _is_variant(arm))
    return dict(zip(variants, reversed(places), strict=False)) | dict(zip(methods, places, strict=False))


def shade_styles(number: int) -> list[dict[str, Any]]:
    """Return styles from dark to light for what has an order, such as time steps."""
    import matplotlib

    colors = matplotlib.colormaps["viridis"](np.linspace(0.08, 0.74, number))
    return [{"color": color, "ls": PATTERNS[0], "lw": 2.0, "zorder": 2.5} for color in colors]


# Paper.


def canvas(
    size: tuple[float, float], title: str, small: str, rows: int = 1, columns: int = 1, sharey: Any = False
) -> tuple[Any, Any]:
    """Return a figure with a heading and small print, and its axes [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    heading = textwrap.fill(title, int(9.5 * size[0]))
    figure.suptitle(heading, x=_LEFT, ha="left", fontsize=12, fontweight="bold", color=INK)
    fine = textwrap.fill(small, int(17.5 * size[0]))
    figure.supxlabel(fine, x=_LEFT, ha="left", fontsize=_SMALL, color=QUIET, linespacing=1.35)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=sharey)


def name_rows(axes: Any, names: Sequence[str], arms: Mapping[int, Arm], headings: Sequence[int] = ()) -> None:
    """Name rows from top to bottom, by place those of arms too, with faint lines that lead to their values."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    for place, label in enumerate(axes.get_yticklabels()):
        if place in headings:
            label.set(color=QUIET, fontweight="bold", fontsize=_LABEL)
            continue
        axes.axhline(place, color="#D1D5DB", lw=0.7, ls=PATTERNS[2], zorder=0.5, label="_row")
        if place in arms and is_strong(arms[place]):
            label.set(color=style_of(arms[place])["color"], fontweight="bold")


def column(axes: Any, right: float, heading: str, cells: Sequence[tuple[int, str]]) -> None:
    """Write numbers to the right of rows, as (row, text), that end `right` points from the axes."""
    where = {"transform": _beside(axes, axes.transData), "ha": "right", "fontsize": _LABEL}
    axes.text(right, -0.75, heading, va="bottom", color=QUIET, **where)
    for place, text in cells:
        axes.text(right, place, text, va="center", color=INK, **where)


def _beside(axes: Any, vertical: Any) -> Any:
    """Return a transform of points to the right of the axes, and of heights as in another transform."""
    from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory

    points = Affine2D().scale(1 / 72) + axes.figure.dpi_scale_trans + ScaledTranslation(1, 0, axes.transAxes)
    return blended_transform_factory(points, vertical)


# Ink.


@dataclass(frozen=True)
class End:
    """Where a line ends, and what is written beside it."""

    x: float | None
    """None: at the edge of the axes."""
    y: float
    text: str
    style: dict[str, Any]

    def valued(self) -> "End":
        """Return it with its height in front of the text, so that numbers are aligned below each other."""
        return replace(self, text=f"{self.y:.1f}".rjust(4, _FIGURE_SPACE) + f"  {self.text}")


def curve(axes: Any, x: Floats, seeds: Floats, style: dict[str, Any], text: str, faint: bool = False) -> list[End]:
    """Draw the mean over seeds of [seeds, len(x)]; a single known value becomes a level. Returns the line's end."""
    mean = known_mean(seeds)
    known = ~np.isnan(mean)
    if not known.any():
        return []
    height = float(mean[known][-1])
    if known.sum() == 1:
        axes.axhline(height, label=text, **{**style, "ls": PATTERNS[1]})
        return [End(None, height, text, style)]
    for row in seeds if faint and len(seeds) > 1 else ():
        own = ~np.isnan(row)
        axes.plot(x[own], row[own], color=style["color"], lw=0.7, alpha=0.4, label="_seed")
    axes.plot(x[known], mean[known], label=text, **style)
    return [End(float(x[known][-1]), height, text, style)]


def trend(axes: Any, x: Floats, groups: Sequence[Floats], style: dict[str, Any], text: str) -> list[End]:
    """Draw the means of groups of seeds at x with their standard deviations and single seeds; returns the end."""
    means = np.array([float(known_mean(group)) for group in groups])
    spreads = np.nan_to_num([float(known_spread(group)) for group in groups])
    known = ~np.isnan(means)
    if not known.any():
        return []
    for place, group in zip(x, groups, strict=True):
        dots(axes, np.full(len(group), place), group, style["color"])
    axes.plot(x[known], means[known], marker="o", ms=5, label=text, **style)
    bar = {"color": style["color"], "lw": 1.2, "zorder": style["zorder"]}
    axes.vlines(x[known], (means - spreads)[known], (means + spreads)[known], **bar)
    return [End(float(x[known][-1]), float(means[known][-1]), text, style)]


def dots(axes: Any, x: npt.ArrayLike, y: npt.ArrayLike, color: Any) -> None:
    """Draw single seeds."""
    axes.plot(x, y, ls="", marker="o", ms=3.2, mew=0, color=color, alpha=0.45, label="_seed")


def mean_dot(axes: Any, values: Floats, place: float, text: str, **look: Any) -> None:
    """Draw a mean in a row, with a bar of one standard deviation if `lw` is not 0."""
    mean, spread = float(known_mean(values)), float(np.nan_to_num(known_spread(values)))
    width = look.pop("lw", 1.4)
    axes.hlines(place, mean - spread, mean + spread, color=look["color"], lw=width, zorder=2.5)
    axes.plot(mean, place, **{"ls": "", "marker": "o", "mec": "white", "zorder": 3, "label": text} | look)


def label_ends(axes: Any, ends: Sequence[End]) -> None:
    """Write every line's text beside the axes, in the order of their ends and with no two upon each other."""
    from matplotlib.lines import Line2D

    if not ends:
        return
    figure = axes.figure
    figure.get_layout_engine().execute(figure)
    height = axes.get_position().height * figure.get_figheight() * 72
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end.y)
    heights = np.array([(end.y - low) / (high - low) for end in ordered])
    beside = _beside(axes, axes.transAxes)
    for end, place in zip(ordered, apart(heights, 1.35 * _LABEL / height), strict=True):
        color = end.style["color"]
        leader = {"arrowstyle": "-", "color": color, "lw": 0.6, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0}
        start = (1.0, end.y) if end.x is None else (end.x, end.y)
        across = axes.get_yaxis_transform() if end.x is None else axes.transData
        axes.annotate("", start, (14, place), across, beside, arrowprops=leader, annotation_clip=False)
        sample = {key: end.style[key] for key in ("color", "ls", "lw")} | {"clip_on": False, "label": "_sample"}
        axes.add_artist(Line2D([14, 36], [place, place], transform=beside, **sample))
        weight = "bold" if end.style["lw"] > 2 else "normal"
        said = {"color": color, "fontsize": _LABEL, "fontweight": weight}
        axes.text(41, place, end.text, transform=beside, va="center_baseline", **said)


def apart(heights: Floats, gap: float) -> Floats:
    """Move ascending heights as little as possible, until they lie a gap apart and, if there is room, in 0 to 1."""
    steps = gap * np.arange(len(heights))
    blocks: list[list[float]] = []
    for height in (heights - steps).tolist():
        blocks.append([height])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    moved = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    placed: Floats = moved.clip(0.0, max(0.0, 1.0 - float(steps[-1]))) + steps
    return placed
