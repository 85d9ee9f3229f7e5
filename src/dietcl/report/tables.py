"""The comparison of runs as plain rows for scripts, and as a table for the terminal."""

import math
from collections.abc import Container, Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dietcl.metrics import paired_difference
from dietcl.report.columns import COLUMNS, Column, cell, purpose_shares, where_it_went
from dietcl.report.groups import Group, group_runs
from dietcl.report.runs import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_PAIRED = ("final_mean", "final_pooled", "average_mean", "average_pooled")
# What a terminal of 80 characters has no room for; the rows and the page hold the rest.
_NOT_IN_TERMINAL = (
    *("average_pooled", "backward_transfer", "forward_transfer"),
    *("spent", "data_wait", "substituted", "state"),
)
# What goes next, whole column by whole column, where even less fits.
_LEAST_NEEDED = ("seconds", "passes", "forgetting", "final_current", "final_old_mean", "average_mean")
_COSTS = ("final_mean", "average_mean", "forgetting", "spent", "seconds", "state")
_LEAST_NEEDED_COSTS = ("average_mean", "forgetting", "state", "seconds")
_WHERE_AFTER = "spent"


def comparison_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one JSON-ready row per configuration; `*_spread` is over seeds, or the standard error of a single run."""
    return [_row(group) for group in group_runs(runs)]


def paired_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return differences with 95 % intervals between configurations that spent alike on several equal streams."""
    columns = [column for column in COLUMNS if column.key in _PAIRED]
    rows = []
    for one, other in combinations(group_runs(runs), 2):
        mine, theirs = _by_seed(one), _by_seed(other)
        seeds = sorted(seed for seed in mine.keys() & theirs.keys() if _setting(mine[seed]) == _setting(theirs[seed]))
        if len(seeds) < 2:
            continue
        for column in columns:
            values = [[column.read(own[seed]) for seed in seeds] for own in (mine, theirs)]
            if any(math.isnan(value) for side in values for value in side):
                continue  # a run that is tested only at its end has no average over the stream
            mean, low, high = paired_difference(*values)
            rows.append(
                {"a": one.label, "b": other.label, "measure": column.key, "title": column.title, "seeds": seeds}
                | {"difference": mean, "low": low, "high": high}
            )
    return rows


def comparison_table(runs: Sequence[Run], console: "Console") -> "Table":
    """Return the comparison as a table that fits the terminal; accuracies in percent."""
    rows = comparison_rows(runs)
    columns = [column for column in COLUMNS if column.key not in _NOT_IN_TERMINAL]
    table = _table(rows, columns, _PAIRED)
    for key in _LEAST_NEEDED:
        if _fits(table, console):
            break
        columns = [column for column in columns if column.key != key]
        table = _table(rows, columns, _PAIRED)
    return table


def cost_table(runs: Sequence[Run], console: "Console") -> "Table":
    """Return what the runs reached and what that took as a table that fits the terminal."""
    rows = comparison_rows(runs)
    columns = [column for column in COLUMNS if column.key in _COSTS]
    label = min(24, max(len(row["label"]) for row in rows))
    # Lines are broken first, then whole columns go; where the budget went is the last to leave.
    shapes = [(columns, 3, label), (columns, 2, min(label, 14))]
    for key in _LEAST_NEEDED_COSTS:
        columns = [column for column in columns if column.key != key]
        shapes.append((columns, 2, min(label, 14)))
    shapes += [(columns, 1, 10), (columns, 0, 10)]
    tables = (_table(rows, kept, ("final_mean",), parts, width) for kept, parts, width in shapes)
    for table in tables:
        if _fits(table, console):
            break
    return table


def _fits(table: "Table", console: "Console") -> bool:
    roomy = console.options.update(max_width=10_000)  # a measurement never exceeds what it is offered
    return console.measure(table, options=roomy).minimum <= console.width


def _table(
    rows: list[dict[str, Any]], columns: Sequence[Column], spreads: Container[str], parts: int = 0, label: int = 10
) -> "Table":
    """Lay out rows; with `parts`, a further column says where the budget went, so many purposes on a line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    sizes = {len(row["runs"]) for row in rows}
    spread = "standard error" if sizes == {1} else "standard deviation over seeds"
    if len(sizes) > 1:
        spread += " (one seed: standard error)" if 1 in sizes else ""
    elif sizes != {1}:
        spread += f" ({min(sizes)})"
    table = Table(
        title=Text(" · ".join(dict.fromkeys(map(_setting_in_words, rows)))),
        caption=f"accuracy in percent ± {spread}",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("Method", min_width=label)
    if len(sizes) > 1:
        table.add_column("Seeds", justify="right", min_width=5)
    for column in columns:
        table.add_column(column.title.replace(" ", "\n"), justify="right", no_wrap=True)
        if parts and column.key == _WHERE_AFTER:
            # A measurement takes any space for a place to break a line at, so the width must be told.
            width = max(len(line) for row in rows for line in _where(row, parts).splitlines())
            table.add_column("Where it went", no_wrap=True, min_width=width)
    for row in rows:
        cells = [Text(row["label"])]
        if len(sizes) > 1:
            cells.append(Text(str(len(row["runs"]))))
        for column in columns:
            cells.append(Text(cell(row, column, spreads)))
            if parts and column.key == _WHERE_AFTER:
                cells.append(Text(_where(row, parts)))
        table.add_row(*cells)
    return table


def _where(row: dict[str, Any], parts: int) -> str:
    words = where_it_went(row["purposes"])
    return "\n".join(" ".join(words[i : i + parts]) for i in range(0, len(words), parts))


def _setting_in_words(row: dict[str, Any]) -> str:
    labeled = "" if row["realized_rate"] is None else f", {row['realized_rate']:.2%} labeled"
    return f"{row['stream']}, {row['due']} time steps of {row['budget']}{labeled}"


def _row(group: Group) -> dict[str, Any]:
    first = group.runs[0]
    several = len(group.runs) > 1
    row: dict[str, Any] = {
        "label": group.label,
        "method": first.method,
        "stream": first.stream,
        "budget": first.budget,
        "runs": [str(run.path) for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "time_steps": first.summary.time_steps,
        "due": first.due,
        "learned": first.summary.learned,
        "complete": all(run.stopped is None for run in group.runs),
        "spread": "standard deviation over seeds" if several else "standard error",
    }
    rates = [rate for run in group.runs if (rate := run.realized_rate) is not None]
    row["realized_rate"] = fmean(rates) if rates else None
    for column in COLUMNS:
        values = [value for run in group.runs if not math.isnan(value := column.read(run))]
        spread = (stdev(values) if len(values) > 1 else math.nan) if several else column.error(first)
        row[column.key] = fmean(values) if values else None
        row[f"{column.key}_spread"] = None if math.isnan(spread) else spread
    row["purposes"] = purpose_shares(group.runs)
    return row


def _setting(run: Run) -> tuple[Any, ...]:
    """Return what must be equal for a difference to be due to the method."""
    batch = run.config.get("training", {}).get("batch")
    return run.config["stream_identity"], run.due, run.budget, run.config.get("accounting"), batch


def _by_seed(group: Group) -> dict[int, Run]:
    """Return the runs that can be paired by seed: complete, measured, and on a stream known for certain."""
    return {
        run.seed: run
        for run in group.runs
        if run.seed is not None and run.stopped is None and run.summary.learned and "stream_identity" in run.config
    }
