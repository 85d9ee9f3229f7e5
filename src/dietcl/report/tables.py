"""The comparison of runs: what is measured of each, as plain rows for scripts, and as a table for the terminal."""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dietcl.metrics import few_tests_warning, paired_difference
from dietcl.plural import plural
from dietcl.report.groups import Group, group_runs
from dietcl.report.runs import RunRecord
from dietcl.report.series import is_point, passes_by_purpose

_PURPOSES = 3
_PAIRED = ("final_mean", "final_pooled", "average_mean", "average_pooled")
# What a terminal shows beside A(T) if it is wide enough; the first is dropped first.
_LEAST_NEEDED = ("seconds", "passes", "forgetting", "final_current", "final_old_mean", "average_mean")
_LEAST_NEEDED_COSTS = ("average_mean", "forgetting", "state", "seconds")
MEANINGS = {
    "final_mean": "accuracy after the last time step, every time step weighing the same",
    "final_pooled": "accuracy after the last time step, every test image weighing the same",
    "average_mean": "the mean accuracy averaged over the stream",
    "average_pooled": "the pooled accuracy averaged over the stream",
    "forgetting": "how far accuracy on earlier time steps fell from its best before, in points; below 0 it rose",
    "backward_transfer": "change of accuracy on earlier time steps since each was learned, in points; below 0 it fell",
    "forward_transfer": "accuracy on the next time step's images before it is learned",
    "final_current": "accuracy on the last time step's images at the end",
    "final_old_mean": "accuracy on all earlier time steps' images at the end",
    "spent": "share of the budgets of all time steps that was spent",
    "passes": "images run forward and backward through the full network, or what cost as much",
    "seconds": "wall-clock time of all time steps",
    "data_wait": "share of that time in which the network waited for images",
    "substituted": "images drawn that could not be read: in training others replaced them, in tests they were gray",
    "state": "size of what the method keeps from one time step to the next, at the end",
}


@dataclass(frozen=True)
class Column:
    """One column of a comparison: where its value comes from and how it is written."""

    key: str
    title: str
    measure: Callable[[RunRecord], float] | None = None  # None: the run's summary has it under the key
    percent: bool = True
    cost: bool = False  # hardly differs between seeds, so a spread is not shown

    def read(self, run: RunRecord) -> float:
        """Return the value of a run, or nan if it is unknown."""
        return float(getattr(run.summary, self.key)) if self.measure is None else self.measure(run)

    def error(self, run: RunRecord) -> float:
        """Return the standard error of that value, or nan if it has none."""
        return float(getattr(run.summary, f"{self.key}_se", math.nan))


def purpose_shares(runs: Sequence[RunRecord]) -> dict[str, float]:
    """Return the share of the passes spent on each purpose, the largest first; evaluation is free."""
    items = [item for run in runs if run.receipts for step in run.receipts.steps for item in step.items]
    passes = passes_by_purpose(item for item in items if item.purpose != "evaluation" and item.passes > 0)
    total = sum(passes.values())
    return {name: passes[name] / total for name in sorted(passes, key=lambda name: -passes[name])}


def where_it_went(shares: dict[str, float]) -> list[str]:
    """Write the largest shares in percent, as parts between which a line may break."""
    if not shares:
        return ["–"]
    parts = [f"{name} {'<1' if share < 0.005 else f'{100 * share:.0f}'}" for name, share in shares.items()]
    *first, last = parts[:_PURPOSES]
    return [f"{part}," for part in first] + [f"{last} %, …" if len(parts) > _PURPOSES else f"{last} %"]


def cell(row: dict[str, Any], column: Column, tight: Container[str] | None = None) -> str:
    """Write one value, in percent if it is a share, with its spread; tight: only these columns have room for it."""
    value, spread = row[column.key], row[f"{column.key}_spread"]
    if value is None:
        return "–"
    if not column.percent:
        return _amount(value)
    number = f"{100 * value:z.1f}".replace("-", "−")
    if column.cost or spread is None or (tight is not None and column.key not in tight):
        return number
    return f"{number}{' ± ' if tight is None else '±'}{100 * spread:.1f}"


def _amount(value: float) -> str:
    if value >= 10:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}" if value >= 0.001 or not value else "<0.001"


def _spent_share(run: RunRecord) -> float:
    steps = run.receipts.steps if run.receipts else ()
    budget = sum(step.budget for step in steps)
    return sum(step.spent for step in steps) / budget if budget else math.nan


def _state_megabytes(run: RunRecord) -> float:
    sizes = [event.get("state_bytes") for event in run.of("step_end")]
    return sizes[-1] / 1e6 if sizes and sizes[-1] is not None else math.nan


COLUMNS = (
    Column("final_mean", "A(T) mean"),
    Column("final_pooled", "A(T) pooled"),
    # A run that was tested only at its end has no average over the stream: it would repeat A(T).
    Column("average_mean", "A mean", lambda run: math.nan if is_point(run) else run.summary.average_mean),
    Column("average_pooled", "A pooled", lambda run: math.nan if is_point(run) else run.summary.average_pooled),
    Column("forgetting", "Forgetting"),
    Column("backward_transfer", "Backward transfer"),
    Column("forward_transfer", "Forward transfer"),
    Column("final_current", "New"),
    Column("final_old_mean", "Old"),
    Column("spent", "Spent (%)", _spent_share, cost=True),
    Column("passes", "Passes", lambda run: run.receipts.passes if run.receipts else math.nan, percent=False),
    Column("seconds", "Time (s)", lambda run: run.seconds or math.nan, percent=False),
    Column("data_wait", "Data wait (%)", lambda run: run.total("data_wait") / (run.seconds or math.nan), cost=True),
    Column("substituted", "Replaced images", lambda run: run.total("substituted"), percent=False),
    Column("state", "State (MB)", _state_megabytes, percent=False),
)


def comparison_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return one JSON-ready row per configuration; `*_spread` is over seeds, or the standard error of a single run."""
    return [_row(group) for group in group_runs(runs)]


def paired_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return differences with 95 % intervals between configurations that spent alike on several equal streams."""
    rows = []
    for one, other in combinations(group_runs(runs), 2):
        first, second = _pairable(one), _pairable(other)
        shared = sorted(first.keys() & second.keys(), key=lambda setting: setting[0])
        if len(shared) < 2:
            continue
        pair = {"a": one.label, "b": other.label}
        seeds = [seed for seed, *_ in shared]
        for column in (column for column in COLUMNS if column.key in _PAIRED):
            values = [[column.read(side[setting]) for setting in shared] for side in (first, second)]
            if not np.isnan(values).any():  # a run that is tested only at its end has no average over the stream
                mean, low, high = paired_difference(*values)
                row = pair | {"measure": column.key, "title": column.title, "seeds": seeds}
                rows.append(row | {"difference": mean, "low": low, "high": high})
    return rows


def comparison_table(runs: Sequence[RunRecord], console: Console) -> Table:
    """Return the comparison as a table that fits the terminal; accuracies in percent."""
    rows = comparison_rows(runs)
    selections = _ever_fewer(("final_mean", "final_pooled"), _LEAST_NEEDED)
    return _first_fitting((_table(rows, columns, _PAIRED) for columns in selections), console)


def cost_table(runs: Sequence[RunRecord], console: Console) -> Table:
    """Return what the runs achieved and what that took as a table that fits the terminal."""
    rows = comparison_rows(runs)
    label = min(24, max(len(row["label"]) for row in rows))
    selections = _ever_fewer(("final_mean", "spent"), _LEAST_NEEDED_COSTS)
    # Lines are broken first, then columns are dropped; where the budget went is dropped last.
    shapes = [(selections[0], 3, label), *((columns, 2, min(label, 14)) for columns in selections)]
    shapes += [(selections[-1], 1, 10), (selections[-1], 0, 10)]
    return _first_fitting((_table(rows, kept, ("final_mean",), *widths) for kept, *widths in shapes), console)


def _ever_fewer(always: Sequence[str], least_needed: Sequence[str]) -> list[list[Column]]:
    """Return all columns of these keys, then selections that each lack one more of the least needed."""
    kept = [{*always, *least_needed[dropped:]} for dropped in range(len(least_needed) + 1)]
    return [[column for column in COLUMNS if column.key in keys] for keys in kept]


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
    note = "" if len(sizes) > 1 else f" ({min(sizes)})"
    note = " (one seed: standard error)" if 1 in sizes else note
    spread = "standard error" if sizes == {1} else f"standard deviation over seeds{note}"
    warning = few_tests_warning(min(row["test_images"] for row in rows))
    style: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 0, 0, 1), "pad_edge": False}
    table = Table(**style, title_justify="left", caption_justify="left")
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
            words = [where_it_went(row["purposes"]) for row in rows]
            texts.append(
                ["\n".join(" ".join(some[i : i + parts]) for i in range(0, len(some), parts)) for some in words]
            )
            # A measurement takes any space for a place to break a line at, so the width must be given.
            width = max(len(line) for text in texts[-1] for line in text.splitlines())
            table.add_column("Where it went", no_wrap=True, min_width=width)
    for cells in zip(*texts, strict=True):
        table.add_row(*map(Text, cells))
    return table


def _setting_in_words(row: dict[str, Any]) -> str:
    labeled = "" if row["realized_rate"] is None else f", {row['realized_rate']:.2%} labeled"
    return f"{row['stream']}, {plural(row['due'], 'time step')} of {row['budget']}{labeled}"


def _row(group: Group) -> dict[str, Any]:
    runs, first, several = group.runs, group.runs[0], len(group.runs) > 1
    row: dict[str, Any] = {"label": group.label, "method": first.method, "stream": first.stream, "budget": first.budget}
    row |= {"runs": [str(run.path) for run in runs], "seeds": [run.seed for run in runs]}
    row |= {"time_steps": first.summary.time_steps, "due": first.due, "learned": first.summary.learned}
    row["test_images"] = min(run.summary.test_images for run in runs)
    row["complete"] = all(run.stopped is None for run in runs)
    row["spread"] = "standard deviation over seeds" if several else "standard error"
    rates = [run.realized_rate for run in runs if run.realized_rate is not None]
    row["realized_rate"] = fmean(rates) if rates else None
    for column in COLUMNS:
        values = [value for run in runs if not math.isnan(value := column.read(run))]
        spread = (stdev(values) if len(values) > 1 else math.nan) if several else column.error(first)
        row[column.key] = fmean(values) if values else None
        row[f"{column.key}_spread"] = None if math.isnan(spread) else spread
    row["purposes"] = purpose_shares(runs)
    return row


def _pairable(group: Group) -> dict[tuple[Any, ...], RunRecord]:
    """Return the complete and measured runs by seed and what else must be equal to compare methods."""
    runs = {}
    for run in group.runs:
        stream, batch = run.config.get("stream_identity"), run.config.get("training", {}).get("batch")
        if run.seed is not None and stream is not None and run.stopped is None and run.summary.learned:
            runs[run.seed, stream, run.due, run.budget, run.config.get("accounting"), batch] = run
    return runs
