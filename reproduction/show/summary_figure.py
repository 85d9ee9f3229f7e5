"""The figure of the summary: a panel for each stream, a row for each method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dietcl.report.style import MATPLOTLIB
from reproduction.measures import final
from reproduction.show.figure_data import known_mean, percent
from reproduction.show.plot_style import BARS, canvas, column, dots, is_larder, is_strong, mean_dot, name_rows, style_of
from reproduction.show.summary_data import Compared, Section
from reproduction.suites import Arm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Accuracy after the last time step, A(T), in percent"
_BAND = "#F3F4F6"


def draw_summary(sections: Sequence[Section]) -> "Figure":
    """Draw A(T) by method, Larder first; a row of panels for each section that has counts."""
    import matplotlib

    shown = [section for section in sections if section.found]
    columns = max(len(section.found) for section in shown)
    height = 1.2 + sum(0.9 + 0.27 * len(section.arms) for section in shown)
    with matplotlib.rc_context(MATPLOTLIB):
        small = f"{BARS}; at the right: means; every panel has a scale of its own"
        figure, grid = canvas((2.2 + 1.8 * columns, height), _TITLE, f"{small}.", len(shown), columns)
        for row, section in zip(grid, shown, strict=True):
            for place, (axes, compared) in enumerate(zip(row, section.found, strict=False)):
                _panel(axes, compared, section.arms)
                axes.tick_params(labelleft=place == 0)
            for axes in row[len(section.found) :]:
                axes.remove()
    drawn: Figure = figure
    return drawn


def _panel(axes: Any, compared: Compared, arms: Sequence[Arm]) -> None:
    name_rows(axes, [arm.title for arm in arms], dict(enumerate(arms)))
    axes.set_title(compared.title.replace(" (", "\n("), pad=16)
    axes.margins(x=0.1)
    means = []
    for place, arm in enumerate(arms):
        if is_larder(arm):
            axes.axhspan(place - 0.42, place + 0.42, color=_BAND, zorder=0.1)
        if (entry := compared.of(arm)) is None:
            continue
        values, color = percent(entry, final), style_of(arm)["color"]
        dots(axes, values, np.full(len(values), place), color)
        mean_dot(axes, values, place, arm.title, color=color, ms=9.5 if is_strong(arm) else 7)
        means.append((place, f"{float(known_mean(values)):.1f}"))
    column(axes, 30, "%", means)
