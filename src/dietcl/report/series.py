"""What the charts draw, computed once for the page and for the PNG figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dietcl.budget.accounts import Item
from dietcl.report.runs import Run

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LOSS_POINTS = 400
_SAMPLES = 40
_TRIPLES = 8


@dataclass(frozen=True, eq=False)
class Lines:
    """Named lines over x, which runs from t - 1/2 to t + 1/2 while time step t is learned."""

    t: Ints
    x: Floats
    lines: dict[str, Floats]


@dataclass(frozen=True, eq=False)
class Spending:
    """Per time step and purpose what was spent, what was not, and what was given."""

    t: tuple[int, ...]
    unit: str
    by_purpose: dict[str, Floats]
    unused: Floats
    budget: Floats


@dataclass(frozen=True, eq=False)
class Measure:
    """A curve along the stream that the accuracy chart offers."""

    key: str
    title: str
    curve: str
    error: str


MEASURES = (
    Measure("mean", "Mean over time steps", "accuracy_mean", "accuracy_mean_se"),
    Measure("pooled", "Pooled over images", "accuracy_pooled", "accuracy_pooled_se"),
    Measure("current", "Newest time step", "current", "current_se"),
    Measure("old", "Older time steps", "old_mean", "old_mean_se"),
)


def loss_lines(run: Run) -> Lines | None:
    """Return the training loss by term, averaged over short stretches, or None without updates."""
    events = run.of("update")
    if not events:
        return None
    t = np.array([int(event["t"]) for event in events])
    whole = {step.t: sum(item.passes for item in step.items) for step in run.receipts.steps} if run.receipts else {}
    x = _positions(t, np.array([float(event["spent"]) for event in events]), whole)
    terms = list(dict.fromkeys(name for event in events for name in event["loss"]))
    table = np.array([[_float(event["loss"].get(name)) for name in terms] for event in events])
    # Stretches never span two time steps, or the jumps between them would blur.
    per_step = max(1, _LOSS_POINTS // len(np.unique(t)))
    within = np.minimum((x - t + 0.5) * per_step, per_step - 1).astype(np.int64)
    _, first, stretch = np.unique(t * per_step + within, return_index=True, return_inverse=True)
    return Lines(
        t=t[first],
        x=_stretch_means(x, stretch),
        lines={name: _stretch_means(table[:, i], stretch) for i, name in enumerate(terms)},
    )


def origin_lines(run: Run) -> Lines | None:
    """Return accuracy within time steps by time step of origin, or None if no curves were asked for."""
    events = run.of("curve")
    if not events:
        return None
    t = np.array([int(event["t"]) for event in events])
    x = _positions(t, np.array([float(event["update"]) for event in events]), {})
    table = np.full((len(events), max(len(event["accuracy"]) for event in events)), np.nan)
    for row, event in zip(table, events, strict=True):
        row[: len(event["accuracy"])] = [_float(value) for value in event["accuracy"]]
    # Where a time step has no test images, the events hold zeros for want of a value.
    tested = np.flatnonzero((run.summary.accuracy >= 0).any(axis=0, keepdims=True))
    lines = {str(k + 1): table[:, k] for k in tested.tolist() if k < table.shape[1]}
    return Lines(t=t, x=x, lines=lines) if lines else None


def spending(run: Run) -> Spending | None:
    """Return where the budget went, or None without receipts."""
    if run.receipts is None or not run.receipts.steps:
        return None
    steps = run.receipts.steps
    purposes = dict.fromkeys(item.purpose for step in steps for item in step.items)
    amounts = [_amounts(step.items, run.receipts.unit, step.spent) for step in steps]
    return Spending(
        t=tuple(step.t for step in steps),
        unit=run.receipts.unit,
        # Some work is counted but free, such as evaluation.
        by_purpose={
            name: np.array([amount.get(name, 0.0) for amount in amounts])
            for name in purposes
            if any(amount.get(name) for amount in amounts)
        },
        unused=np.array([step.unused for step in steps]),
        budget=np.array([step.budget for step in steps]),
    )


def chosen_samples(run: Run) -> list[int]:
    """Return which sample images to show: evenly spread, in the order of the stream."""
    if run.samples is None:
        return []
    order = sorted(range(len(run.samples.t)), key=run.samples.t.__getitem__)
    return [order[i] for i in _spread(len(order), _SAMPLES)]


def chosen_triples(run: Run) -> list[int]:
    """Return which reconstructions to show."""
    return _spread(len(run.samples.originals), _TRIPLES) if run.samples else []


def lone_points(values: Floats) -> npt.NDArray[np.bool_]:
    """Return which known values have no known neighbour, so that no line shows them."""
    known: npt.NDArray[np.bool_] = np.pad(~np.isnan(values), 1)
    alone: npt.NDArray[np.bool_] = known[1:-1] & ~(known[:-2] | known[2:])
    return alone


def is_point(run: Run) -> bool:
    """Tell whether a run over several time steps was tested only once, as when it learns all of them together."""
    return run.summary.learned > 1 and int((~np.isnan(run.summary.accuracy_mean)).sum()) == 1


def ceiling(runs: Sequence[Run]) -> float:
    """Return the top of the accuracy scale that all matrices share."""
    best = [float(np.nanmax(run.summary.accuracy)) for run in runs if not np.isnan(run.summary.accuracy).all()]
    return min(1.0, max(0.1, math.ceil(max(best, default=1.0) * 10 - 1e-9) / 10))


def _amounts(items: Sequence[Item], unit: str, spent: float) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for item in items:
        amounts[item.purpose] = amounts.get(item.purpose, 0.0) + item.passes
    if unit == "passes":
        return amounts
    # Seconds are not itemized; passes say how they divide.
    total = sum(amounts.values())
    return {name: spent * amount / total for name, amount in amounts.items()} if total else {}


def _positions(t: Ints, progress: Floats, whole: dict[int, float]) -> Floats:
    """Place each event within its time step by its share of the whole, or of the last event if that is unknown."""
    x = np.empty(len(t))
    for step in np.unique(t).tolist():
        own = t == step
        x[own] = step - 0.5 + progress[own] / max(float(progress[own].max()), whole.get(step, 0.0), 1.0)
    return x


def _stretch_means(values: Floats, stretch: npt.NDArray[np.int64]) -> Floats:
    known = ~np.isnan(values)
    total = np.bincount(stretch, weights=np.where(known, values, 0.0))
    number = np.bincount(stretch, weights=known)
    means = np.full(len(total), np.nan)
    np.divide(total, number, out=means, where=number > 0)
    return means


def _spread(size: int, limit: int) -> list[int]:
    return [round(i * (size - 1) / max(min(size, limit) - 1, 1)) for i in range(min(size, limit))]


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)
