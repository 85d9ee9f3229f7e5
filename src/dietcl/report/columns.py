"""What a comparison measures of a run, column by column, and how a value is written."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from dietcl.report.runs import Run
from dietcl.report.series import is_point

_PURPOSES = 3


@dataclass(frozen=True)
class Column:
    """One measured column: how it is read off a run, its standard error where it has one, and how it is written."""

    key: str
    title: str
    meaning: str
    read: Callable[[Run], float]
    error: Callable[[Run], float] = lambda run: math.nan
    percent: bool = True
    cost: bool = False  # hardly differs between seeds, so its spread is not shown


def spent_share(run: Run) -> float:
    """Return the share of all time steps' budgets that was spent, or nan if that is unknown."""
    steps = run.receipts.steps if run.receipts else ()
    budget = sum(step.budget for step in steps)
    return sum(step.spent for step in steps) / budget if budget else math.nan


def state_megabytes(run: Run) -> float:
    """Return the size of what the method keeps at the end of the run, or nan if that was not recorded."""
    ends = run.of("step_end")
    size = ends[-1].get("state_bytes") if ends else None
    return math.nan if size is None else size / 1e6


def purpose_shares(runs: Sequence[Run]) -> dict[str, float]:
    """Return the share of the passes spent on each purpose, the largest first; evaluation is free."""
    passes: dict[str, float] = {}
    for item in (item for run in runs if run.receipts for step in run.receipts.steps for item in step.items):
        if item.purpose != "evaluation" and item.passes > 0:
            passes[item.purpose] = passes.get(item.purpose, 0.0) + item.passes
    total = sum(passes.values())
    return {name: passes[name] / total for name in sorted(passes, key=lambda name: -passes[name])}


def where_it_went(shares: dict[str, float]) -> list[str]:
    """Write the largest shares in percent, as parts between which a line may break."""
    if not shares:
        return ["–"]
    first = list(shares.items())[:_PURPOSES]
    parts = [f"{name} {_whole_percent(share)}" for name, share in first]
    parts[-1] += " %"
    if len(shares) > len(first):
        parts[-1] += ", …"
    return [f"{part}," for part in parts[:-1]] + parts[-1:]


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


def _whole_percent(share: float) -> str:
    return "<1" if share < 0.005 else f"{100 * share:.0f}"


def _amount(value: float) -> str:
    if value >= 10:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}" if value >= 0.001 or not value else "<0.001"


def _over_stream(run: Run, average: float) -> float:
    """Return an average over the stream unless the run was tested only at its end, when it would repeat A(T)."""
    return math.nan if is_point(run) else average


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
        lambda run: _over_stream(run, run.summary.average_mean),
    ),
    Column(
        "average_pooled",
        "A pooled",
        "the pooled accuracy averaged over the stream",
        lambda run: _over_stream(run, run.summary.average_pooled),
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
        "spent",
        "Spent (%)",
        "share of the budgets of all time steps that was spent",
        spent_share,
        cost=True,
    ),
    Column(
        "passes",
        "Passes",
        "images run forward and backward through the full network, or what cost as much",
        lambda run: run.receipts.passes if run.receipts else math.nan,
        percent=False,
        cost=True,
    ),
    Column(
        "seconds",
        "Time (s)",
        "wall-clock time of all time steps",
        lambda run: run.seconds or math.nan,
        percent=False,
        cost=True,
    ),
    Column(
        "data_wait",
        "Data wait (%)",
        "share of that time in which the network waited for images",
        lambda run: run.total("data_wait") / run.seconds if run.seconds else math.nan,
        cost=True,
    ),
    Column(
        "substituted",
        "Stand-ins",
        "images drawn that could not be read: in training others stood in for them, tests were gray",
        lambda run: run.total("substituted"),
        percent=False,
        cost=True,
    ),
    Column(
        "state",
        "State (MB)",
        "size of what the method keeps from one time step to the next, at the end",
        state_megabytes,
        percent=False,
        cost=True,
    ),
)
