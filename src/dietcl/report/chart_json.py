"""What page.js draws, as plain JSON values; unknown is null."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dietcl.report.figures import name_colors
from dietcl.report.groups import Entry, Group, entries_of
from dietcl.report.runs import Run
from dietcl.report.series import MEASURES, Lines, ceiling, is_point, loss_lines, origin_lines, spending
from dietcl.report.style import FEW, look

INTERACTIVE_STEPS = 150
"""A matrix of more time steps is shown as its PNG figure: a browser is slow at a hundred thousand cells."""


def page_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return everything the charts of the page need."""
    entries = entries_of(groups)
    runs = [entry.run for entry in entries]
    return {
        "measures": [{"key": measure.key, "title": measure.title} for measure in MEASURES],
        "groups": [
            {
                "label": group.label,
                "color": look(place).color,
                "pattern": look(place).pattern,
                "point": all(map(is_point, group.runs)),
                "runs": [i for i, entry in enumerate(entries) if entry.place == place],
            }
            for place, group in enumerate(groups)
        ],
        "few": FEW,
        "names": name_colors(runs),
        "ceiling": ceiling(runs),
        "runs": [_run(i, entry) for i, entry in enumerate(entries)],
    }


def _run(index: int, entry: Entry) -> dict[str, Any]:
    run, summary = entry.run, entry.run.summary
    small = summary.time_steps <= INTERACTIVE_STEPS
    return {
        "index": index,
        "label": entry.label,
        "short": entry.label.rpartition(" · ")[2],
        "steps": summary.time_steps,
        "series": {measure.key: _plain(getattr(summary, measure.curve)) for measure in MEASURES},
        "errors": {measure.key: _plain(getattr(summary, measure.error)) for measure in MEASURES},
        "matrix": _plain(summary.accuracy) if small else [],
        "matrixErrors": _plain(summary.accuracy_se) if small else [],
        "losses": _lines(loss_lines(run)),
        "within": _lines(origin_lines(run)),
        "budget": _budget(run),
    }


def _lines(lines: Lines | None) -> dict[str, Any] | None:
    if lines is None:
        return None
    return {
        "t": lines.t.tolist(),
        "x": _plain(lines.x),
        "lines": {name: _plain(values) for name, values in lines.lines.items()},
    }


def _budget(run: Run) -> dict[str, Any] | None:
    spent = spending(run)
    if spent is None:
        return None
    return {
        "t": list(spent.t),
        "unit": spent.unit,
        "amounts": {name: _plain(amounts) for name, amounts in spent.by_purpose.items()},
        "unused": _plain(spent.unused),
        "budget": _plain(spent.budget),
        "totals": _plain(sum(spent.by_purpose.values(), start=np.maximum(spent.unused, 0.0))),
    }


def _plain(values: Any) -> Any:
    """Return nested lists of numbers with five digits, which is more than a screen can show."""
    if isinstance(values, np.ndarray):
        return [_plain(value) for value in values.tolist()]
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return float(f"{values:.5g}") if math.isfinite(values) else None
