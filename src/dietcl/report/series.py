"""What the charts draw, computed once for the PNG figures and for the page, which takes it as JSON."""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.budget.receipts import Item
from dietcl.metrics import Floats
from dietcl.report.confusion import Ints
from dietcl.report.groups import Entry, Group, entries_of
from dietcl.report.runs import RunRecord
from dietcl.report.style import FEW, NAME_PALETTE, NAME_PLACES
from dietcl.streams.times import format_spans

_LOSS_POINTS = 400
_SAMPLES = 40
_TRIPLES = 8
Dates = list[str] | None  # by time step
INTERACTIVE_STEPS = 150  # a browser is slow at more: then the page has the matrix as its PNG figure


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


# The curves that the accuracy chart offers, by field of the summary; the standard error is called the same and _se.
MEASURES = {
    "accuracy_mean": "Mean over time steps",
    "accuracy_pooled": "Pooled over images",
    "current": "Newest time step",
    "old_mean": "Older time steps",
}


def loss_lines(run: RunRecord) -> Lines | None:
    """Return the training loss by term, averaged over short segments, or None without updates."""
    events = run.of("update")
    if not events:
        return None
    t = np.array([event["t"] for event in events], np.int64)
    totals = {step.t: sum(item.passes for item in step.items) for step in run.receipts.steps} if run.receipts else {}
    x = _positions(t, np.array([event["spent"] for event in events], np.float64), totals)
    terms = list(dict.fromkeys(name for event in events for name in event["loss"]))
    table = np.array([[event["loss"].get(name) for name in terms] for event in events], np.float64)  # None is nan
    # Stretches never span two time steps, or the jumps between them would blur.
    per_step = max(1, _LOSS_POINTS // len(np.unique(t)))
    within = np.minimum((x - t + 0.5) * per_step, per_step - 1).astype(np.int64)
    _, first, segment = np.unique(t * per_step + within, return_index=True, return_inverse=True)
    lines = {name: _segment_means(values, segment) for name, values in zip(terms, table.T, strict=True)}
    return Lines(t[first], _segment_means(x, segment), lines)


def origin_lines(run: RunRecord) -> Lines | None:
    """Return accuracy within time steps by time step of origin, or None if no curves were asked for."""
    events = run.of("curve")
    if not events:
        return None
    t = np.array([event["t"] for event in events], np.int64)
    x = _positions(t, np.array([event["update"] for event in events], np.float64), {})
    table = np.full((len(events), max(len(event["accuracy"]) for event in events)), np.nan)
    for row, event in zip(table, events, strict=True):
        row[: len(event["accuracy"])] = event["accuracy"]
    # Where a time step has no test images, the events have zeros instead of a value.
    tested = np.flatnonzero((run.summary.accuracy >= 0).any(axis=0, keepdims=True))
    lines = {str(k + 1): table[:, k] for k in tested.tolist() if k < table.shape[1]}
    return Lines(t, x, lines) if lines else None


def spending(run: RunRecord) -> Spending | None:
    """Return where the budget went, or None without receipts."""
    if run.receipts is None or not run.receipts.steps:
        return None
    steps = run.receipts.steps
    amounts = [passes_by_purpose(step.items) for step in steps]
    if run.receipts.unit != "passes":  # seconds are not itemized, so they are divided as the passes are
        for step, passes in zip(steps, amounts, strict=True):
            total = sum(passes.values())
            passes |= {name: step.spent * part / total for name, part in passes.items() if total}
    purposes = dict.fromkeys(name for amount in amounts for name in amount)
    table = {name: np.array([amount.get(name, 0.0) for amount in amounts]) for name in purposes}
    by_purpose = {name: values for name, values in table.items() if values.any()}  # evaluation is counted but free
    unused, budget = np.array([(step.unused, step.budget) for step in steps]).T
    return Spending(tuple(step.t for step in steps), run.receipts.unit, by_purpose, unused, budget)


def chosen_samples(run: RunRecord) -> list[int]:
    """Return which sample images to show: evenly spread, in the order of the stream."""
    order = sorted(range(len(run.samples.t)), key=run.samples.t.__getitem__)
    return [order[i] for i in evenly(len(order), _SAMPLES)]


def chosen_triples(run: RunRecord) -> list[int]:
    """Return which reconstructions to show."""
    return evenly(len(run.samples.triples["original"]), _TRIPLES)


def lone_points(values: Floats) -> npt.NDArray[np.bool_]:
    """Return which known values have no known neighbour, so that no line shows them."""
    known: npt.NDArray[np.bool_] = np.pad(~np.isnan(values), 1)
    return known[1:-1] & ~(known[:-2] | known[2:])


def is_point(run: RunRecord) -> bool:
    """Tell whether a run over several time steps was tested only once, as when it learns all of them together."""
    return run.summary.learned > 1 and int((~np.isnan(run.summary.accuracy_mean)).sum()) == 1


def ceiling(runs: Sequence[RunRecord]) -> float:
    """Return the top of the accuracy scale that all matrices share."""
    best = [float(np.nanmax(run.summary.accuracy)) for run in runs if not np.isnan(run.summary.accuracy).all()]
    return min(1.0, max(0.1, math.ceil(max(best, default=1.0) * 10 - 1e-9) / 10))


def chance_line(runs: Sequence[RunRecord]) -> list[float | None]:
    """Return the accuracy of guessing among the classes seen so far, by time step; None where runs do not agree."""
    return [1 / classes if classes else None for classes in _agreed(runs, "classes")]


def shared_dates(runs: Sequence[RunRecord]) -> Dates:
    """Return the user's own dates by time step, if the stream is cut by time and the runs agree in them."""
    return dates_of(_agreed(runs, "times"))


def dates_of(spans: Sequence[tuple[float, float] | None]) -> Dates:
    """Write the first and the last time of each time step, where there are any."""
    known = [span for span in spans if span]
    texts = iter(format_spans(known))
    return [next(texts) if span else "–" for span in spans] if known else None


def first_date(span: str, gap: str = " ") -> str:
    """Return when a time step begins; a gap other than a space also breaks the line after the year."""
    first = span.partition(" to ")[0].replace(" ", gap)
    return first if gap == " " else first[:4] + first[4:].replace("-", f"-{gap}", 1)


def _agreed(runs: Sequence[RunRecord], field: str) -> list[Any]:
    """Return by time step what all runs recorded at its beginning; None where they differ or none has begun it."""
    found: list[list[Any]] = [[] for _ in range(max((run.summary.time_steps for run in runs), default=0))]
    for run in runs:
        # A run that learns everything at once knows nothing of single time steps.
        for event in run.of("step_begin") if not is_point(run) or len(runs) == 1 else ():
            if 0 < event["t"] <= len(found):
                found[event["t"] - 1].append(event.get(field))
    return [values[0] if values and values.count(values[0]) == len(values) else None for values in found]


def passes_by_purpose(items: Iterable[Item]) -> dict[str, float]:
    """Return the passes spent on each purpose, in the order of its first item."""
    passes: dict[str, float] = {}
    for item in items:
        passes[item.purpose] = passes.get(item.purpose, 0.0) + item.passes
    return passes


def _positions(t: Ints, progress: Floats, totals: dict[int, float]) -> Floats:
    """Place each event within its time step by its share of the total, or of the last event if that is unknown."""
    x = np.empty(len(t))
    for step in np.unique(t).tolist():
        is_in_step = t == step
        done = progress[is_in_step]
        x[is_in_step] = step - 0.5 + done / max(float(done.max()), totals.get(step, 0.0), 1.0)
    return x


def _segment_means(values: Floats, segment: npt.NDArray[np.int64]) -> Floats:
    known = ~np.isnan(values)
    total = np.bincount(segment, weights=np.where(known, values, 0.0))
    number = np.bincount(segment, weights=known)
    return np.asarray(np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0))


def evenly(size: int, limit: int) -> list[int]:
    """Return positions from 0 to below size: all of them, or `limit` evenly spaced ones with both ends included."""
    count = min(size, limit)
    return [round(i * (size - 1) / max(count - 1, 1)) for i in range(count)]


def name_colors(runs: Sequence[RunRecord]) -> dict[str, int]:
    """Give every purpose and loss term a place in the palette: that of every report, or one that its charts lack."""
    charts = [list(losses.lines) for run in runs if (losses := loss_lines(run))]
    charts += [list(spent.by_purpose) for run in runs if (spent := spending(run))]
    names = sorted({name for chart in charts for name in chart})
    places = {name: NAME_PLACES[name] for name in names if name in NAME_PLACES}
    for name in (name for name in names if name not in NAME_PLACES):
        taken = {places.get(other) for chart in charts if name in chart for other in chart}
        order = [(zlib.crc32(name.encode()) + further) % len(NAME_PALETTE) for further in range(len(NAME_PALETTE))]
        places[name] = next((place for place in order if place not in taken), order[0])
    return places


def page_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return everything the charts of the page need."""
    entries = entries_of(groups)
    runs = [entry.run for entry in entries]
    members = [[i for i, entry in enumerate(entries) if entry.place == place] for place in range(len(groups))]
    points = [all(map(is_point, group.runs)) for group in groups]
    return {
        "measures": [{"key": curve, "title": title} for curve, title in MEASURES.items()],
        "groups": [
            {"label": group.label, **vars(group.look), "point": point, "runs": own}
            for group, point, own in zip(groups, points, members, strict=True)
        ],
        "few": FEW,
        "names": name_colors(runs),
        "ceiling": ceiling(runs),
        "chance": chance_line(runs),
        "dates": shared_dates(runs),
        "runs": [_run(i, entry) for i, entry in enumerate(entries)],
    }


def _run(index: int, entry: Entry) -> dict[str, Any]:
    run, summary = entry.run, entry.run.summary
    is_interactive = summary.time_steps <= INTERACTIVE_STEPS
    values: dict[str, Any] = {
        "series": {curve: getattr(summary, curve) for curve in MEASURES},
        "errors": {curve: getattr(summary, f"{curve}_se") for curve in MEASURES},
        "matrix": summary.accuracy if is_interactive else (),
        "matrixErrors": summary.accuracy_se if is_interactive else (),
        "losses": loss_lines(run),
        "within": origin_lines(run),
        "budget": spending(run),
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
