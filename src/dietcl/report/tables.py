"""The comparison of runs as plain rows for scripts, and as a table for the terminal."""

import math
from collections.abc import Container, Iterable, Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dietcl.metrics import few_tests_warning, paired_difference
from dietcl.plural import plural
from dietcl.report.columns import COLUMNS, Column, cell, purpose_shares, where_it_went
from dietcl.report.groups import Group, group_runs
from dietcl.report.runs import RunRecord

_PAIRED = ("final_mean", "final_pooled", "average_mean", "average_pooled")
# What a terminal shows beside A(T) where it has room; the first of these go first. The rows and the page hold the rest.
_LEAST_NEEDED = ("seconds", "passes", "forgetting", "final_current", "final_old_mean", "average_mean")
_COSTS = ("final_mean", "average_mean", "forgetting", "spent", "seconds", "state")
_LEAST_NEEDED_COSTS = ("average_mean", "forgetting", "state", "seconds")


def comparison_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return one JSON-ready row per configuration; `*_spread` is over seeds, or the standard error of a single run."""
    return [_row(group) for group in group_runs(runs)]


def paired_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return differences with 95 % intervals between configurations that spent alike on several equal streams."""
    rows = []
    for one, other in combinations(group_runs(runs), 2):
        first, second = _by_seed(one), _by_seed(other)
        seeds = sorted(seed for seed in first.keys() & second.keys() if _setting(first[seed]) == _setting(second[seed]))
        if len(seeds) < 2:
            continue
        for column in (column for column in COLUMNS if column.key in _PAIRED):
            values = [[column.read(own[seed]) for seed in seeds] for own in (first, second)]
            if any(math.isnan(value) for side in values for value in side):
                continue  # a run that is tested only at its end has no average over the stream
            mean, low, high = paired_difference(*values)
            rows.append(
                {"a": one.label, "b": other.label, "measure": column.key, "title": column.title, "seeds": seeds}
                | {"difference": mean, "low": low, "high": high}
            )
    return rows


def comparison_table(runs: Sequence[RunRecord], console: Console) -> Table:
    """Return the comparison as a table that fits the terminal; accuracies in percent."""
    rows = comparison_rows(runs)
    columns = [column for column in COLUMNS if column.key in ("final_mean", "final_pooled", *_LEAST_NEEDED)]
    shapes = [columns]
    for key in _LEAST_NEEDED:
        shapes.append([column for column in shapes[-1] if column.key != key])
    return _first_fitting((_table(rows, shape, _PAIRED) for shape in shapes), console)


def cost_table(runs: Sequence[RunRecord], console: Console) -> Table:
    """Return what the runs achieved and what that took as a table that fits the terminal."""
    rows = comparison_rows(runs)
    columns = [column for column in COLUMNS if column.key in _COSTS]
    label = min(24, max(len(row["label"]) for row in rows))
    # Lines are broken first, then whole columns go; where the budget went is the last to leave.
    shapes = [(columns, 3, label), (columns, 2, min(label, 14))]
    for key in _LEAST_NEEDED_COSTS:
        columns = [column for column in columns if column.key != key]
        shapes.append((columns, 2, min(label, 14)))
    shapes += [(columns, 1, 10), (columns, 0, 10)]
    return _first_fitting((_table(rows, kept, ("final_mean",), *widths) for kept, *widths in shapes), console)


def _first_fitting(tables: Iterable[Table], console: Console) -> Table:
    """Return the first table that fits the terminal, or the last."""
    roomy = console.options.update(max_width=10_000)  # a measurement never exceeds what it is offered
    for table in tables:
        if console.measure(table, options=roomy).minimum <= console.width:
            break
    return table


def _table(
    rows: list[dict[str, Any]], columns: Sequence[Column], spreads: Container[str], parts: int = 0, label: int = 10
) -> Table:
    """Lay out rows; with `parts`, a further column says where the budget went, with that number of purposes a line."""
    sizes = {len(row["runs"]) for row in rows}
    spread = "standard error" if sizes == {1} else "standard deviation over seeds"
    if len(sizes) > 1:
        spread += " (one seed: standard error)" if 1 in sizes else ""
    elif sizes != {1}:
        spread += f" ({min(sizes)})"
    warning = few_tests_warning(min(row["test_images"] for row in rows))
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title_justify="left", caption_justify="left"
    )
    table.title = Text(" · ".join(dict.fromkeys(map(_setting_in_words, rows))))
    table.caption = "\n".join(filter(None, (f"accuracy in percent ± {spread}", warning)))
    table.add_column("Method", min_width=label)
    texts = [[row["label"] for row in rows]]
    if len(sizes) > 1:
        table.add_column("Seeds", justify="right", min_width=5)
        texts.append([str(len(row["runs"])) for row in rows])
    for column in columns:
        table.add_column(column.title.replace(" ", "\n"), justify="right", no_wrap=True)
        texts.append([cell(row, column, spreads) for row in rows])
        if parts and column.key == "spent":
            texts.append([_where(row, parts) for row in rows])
            # A measurement takes any space for a place to break a line at, so the width must be told.
            width = max(len(line) for text in texts[-1] for line in text.splitlines())
            table.add_column("Where it went", no_wrap=True, min_width=width)
    for cells in zip(*texts, strict=True):
        table.add_row(*map(Text, cells))
    return table


def _where(row: dict[str, Any], parts: int) -> str:
    words = where_it_went(row["purposes"])
    return "\n".join(" ".join(words[i : i + parts]) for i in range(0, len(words), parts))


def _setting_in_words(row: dict[str, Any]) -> str:
    labeled = "" if row["realized_rate"] is None else f", {row['realized_rate']:.2%} labeled"
    return f"{row['stream']}, {plural(row['due'], 'time step')} of {row['budget']}{labeled}"


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
        "test_images": min(run.summary.test_images for run in group.runs),
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


def _setting(run: RunRecord) -> tuple[Any, ...]:
    """Return what must be equal for a difference to be due to the method."""
    batch = run.config.get("training", {}).get("batch")
    return run.config["stream_identity"], run.due, run.budget, run.config.get("accounting"), batch


def _by_seed(group: Group) -> dict[int, RunRecord]:
    """Return the runs that can be paired by seed: complete, measured, and on a stream known for certain."""
    return {
        run.seed: run
        for run in group.runs
        if run.seed is not None and run.stopped is None and run.summary.learned and "stream_identity" in run.config
    }
