"""The comparison of runs as plain rows for scripts, and as a table for the terminal."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dietcl.metrics import paired_difference
from dietcl.report.groups import Group, group_runs
from dietcl.report.runs import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """One measured column: how it is read off a run, its standard error where it has one, and how it is written."""

    key: str
    title: str
    meaning: str
    read: Callable[[Run], float]
    error: Callable[[Run], float] = lambda run: math.nan
    percent: bool = True


COLUMNS = (
    Column(
        "final_mean",
        "A(T) mean",
        "accuracy after the last time step, every time step weighing the same",
        lambda run: run.summary.final_mean,
        lambda run: run.summary.final_mean_se,
    ),
    Column(
        "final_pooled",
        "A(T) pooled",
        "accuracy after the last time step, every test image weighing the same",
        lambda run: run.summary.final_pooled,
        lambda run: run.summary.final_pooled_se,
    ),
    Column(
        "average_mean",
        "A mean",
        "the mean accuracy averaged over the stream",
        lambda run: run.summary.average_mean,
    ),
    Column(
        "average_pooled",
        "A pooled",
        "the pooled accuracy averaged over the stream",
        lambda run: run.summary.average_pooled,
    ),
    Column(
        "forgetting",
        "Forgetting",
        "how far accuracy on earlier time steps fell from its best before, in points; below 0 it rose",
        lambda run: run.summary.forgetting,
    ),
    Column(
        "backward_transfer",
        "Backward transfer",
        "how far accuracy on earlier time steps has moved since each was learned, in points; below 0 it fell",
        lambda run: run.summary.backward_transfer,
    ),
    Column(
        "forward_transfer",
        "Forward transfer",
        "accuracy on the next time step's images before it is learned",
        lambda run: run.summary.forward_transfer,
    ),
    Column(
        "final_current",
        "New",
        "accuracy on the last time step's images at the end",
        lambda run: run.summary.final_current,
        lambda run: run.summary.final_current_se,
    ),
    Column(
        "final_old_mean",
        "Old",
        "accuracy on all earlier time steps' images at the end",
        lambda run: run.summary.final_old_mean,
        lambda run: run.summary.final_old_mean_se,
    ),
    Column(
        "passes",
        "Passes",
        "images run forward and backward through the full network, or what cost as much",
        lambda run: run.receipts.passes if run.receipts else math.nan,
        percent=False,
    ),
    Column(
        "seconds",
        "Time (s)",
        "wall-clock time of all time steps",
        lambda run: run.seconds or math.nan,
        percent=False,
    ),
)
_PAIRED = ("final_mean", "final_pooled", "average_mean", "average_pooled")
# What a terminal of 80 characters has no room for; the rows and the page hold the rest.
_NOT_IN_TERMINAL = ("average_pooled", "backward_transfer", "forward_transfer")
# What goes next, whole column by whole column, where even less fits.
_LEAST_NEEDED = ("seconds", "passes", "forgetting", "final_current", "final_old_mean", "average_mean")


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
            mean, low, high = paired_difference(
                [column.read(mine[seed]) for seed in seeds], [column.read(theirs[seed]) for seed in seeds]
            )
            rows.append(
                {"a": one.label, "b": other.label, "measure": column.key, "title": column.title, "seeds": seeds}
                | {"difference": mean, "low": low, "high": high}
            )
    return rows


def comparison_table(runs: Sequence[Run], console: "Console") -> "Table":
    """Return the comparison as a table that fits the terminal; accuracies in percent."""
    rows = comparison_rows(runs)
    columns = [column for column in COLUMNS if column.key not in _NOT_IN_TERMINAL]
    table = _table(rows, columns)
    roomy = console.options.update(max_width=10_000)  # a measurement never exceeds what it is offered
    for key in _LEAST_NEEDED:
        if console.measure(table, options=roomy).minimum <= console.width:
            break
        columns = [column for column in columns if column.key != key]
        table = _table(rows, columns)
    return table


def _table(rows: list[dict[str, Any]], columns: Sequence[Column]) -> "Table":
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
    table.add_column("Method", min_width=10)
    if len(sizes) > 1:
        table.add_column("Seeds", justify="right")
    for column in columns:
        table.add_column(column.title.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        number = [str(len(row["runs"]))] if len(sizes) > 1 else []
        cells = (cell(row, column, tight=True) for column in columns)
        table.add_row(Text(row["label"]), *number, *cells)
    return table


def cell(row: dict[str, Any], column: Column, tight: bool = False) -> str:
    """Write one value, in percent if it is an accuracy, with its spread; tight: only where it matters most."""
    value, spread = row[column.key], row[f"{column.key}_spread"]
    if value is None:
        return "–"
    if not column.percent:
        return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
    number = f"{100 * value:z.1f}".replace("-", "−")
    if spread is None or (tight and column.key not in _PAIRED):
        return number
    return f"{number}{'±' if tight else ' ± '}{100 * spread:.1f}"


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
