"""What page.js draws, as plain JSON values; unknown is null."""

import math
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from dietcl.report import series
from dietcl.report.figures import name_colors
from dietcl.report.groups import Entry, Group, entries_of
from dietcl.report.style import FEW

INTERACTIVE_STEPS = 150
"""A matrix of more time steps is shown as its PNG figure: a browser is slow at a hundred thousand cells."""


def page_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return everything the charts of the page need."""
    entries = entries_of(groups)
    runs = [entry.run for entry in entries]
    return {
        "measures": [{"key": curve, "title": title} for curve, title in series.MEASURES.items()],
        "groups": [
            {
                "label": group.label,
                "color": group.look.color,
                "pattern": group.look.pattern,
                "point": all(map(series.is_point, group.runs)),
                "runs": [i for i, entry in enumerate(entries) if entry.place == place],
            }
            for place, group in enumerate(groups)
        ],
        "few": FEW,
        "names": name_colors(runs),
        "ceiling": series.ceiling(runs),
        "chance": series.chance_line(runs),
        "dates": series.shared_dates(runs),
        "runs": [_run(i, entry) for i, entry in enumerate(entries)],
    }


def _run(index: int, entry: Entry) -> dict[str, Any]:
    run, summary = entry.run, entry.run.summary
    is_interactive = summary.time_steps <= INTERACTIVE_STEPS
    values: dict[str, Any] = {
        "series": {curve: getattr(summary, curve) for curve in series.MEASURES},
        "errors": {curve: getattr(summary, f"{curve}_se") for curve in series.MEASURES},
        "matrix": summary.accuracy if is_interactive else [],
        "matrixErrors": summary.accuracy_se if is_interactive else [],
        "losses": series.loss_lines(run),
        "within": series.origin_lines(run),
        "budget": series.spending(run),
    }
    short = entry.label.rpartition(" · ")[2]
    return {"index": index, "label": entry.label, "short": short, "steps": summary.time_steps, **_plain(values)}


def _plain(value: Any) -> Any:
    """Return JSON values; floats have five digits, which is more than a screen can show."""
    if is_dataclass(value):
        value = vars(value)
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
