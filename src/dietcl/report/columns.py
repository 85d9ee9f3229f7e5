"""What a comparison measures of a run, column by column, and how a value is written."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from dietcl.report.runs import RunRecord
from dietcl.report.series import is_point, passes_by_purpose

_PURPOSES = 3
MEANINGS = {
    "final_mean": "accuracy after the last time step, every time step weighing the same",
    "final_pooled": "accuracy after the last time step, every test image weighing the same",
    "average_mean": "the mean accuracy averaged over the stream",
    "average_pooled": "the pooled accuracy averaged over the stream",
    "forgetting": "how far accuracy on earlier time steps fell from its best before, in points; below 0 it rose",
    "backward_transfer": "how far accuracy on earlier time steps has moved since each was learned, in points; "
    "below 0 it fell",
    "forward_transfer": "accuracy on the next time step's images before it is learned",
    "final_current": "accuracy on the last time step's images at the end",
    "final_old_mean": "accuracy on all earlier time steps' images at the end",
    "spent": "share of the budgets of all time steps that was spent",
    "passes": "images run forward and backward through the full network, or what cost as much",
    "seconds": "wall-clock time of all time steps",
    "data_wait": "share of that time in which the network waited for images",
    "substituted": "images drawn that could not be read: in training others stood in for them, tests were gray",
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
    steps = [step for run in runs if run.receipts for step in run.receipts.steps]
    items = [item for step in steps for item in step.items if item.purpose != "evaluation" and item.passes > 0]
    passes = passes_by_purpose(items)
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
    Column("substituted", "Stand-ins", lambda run: run.total("substituted"), percent=False),
    Column("state", "State (MB)", _state_megabytes, percent=False),
)
