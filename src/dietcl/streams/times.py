"""Times of a manifest: how they are cut into time steps, and how they are written."""

import datetime
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dietcl.errors import UserError
from dietcl.streams.options import EVEN_CUTS, MOST_TIME_STEPS, Cut

Times = npt.NDArray[np.float64]

DATES_AT_MOST = 50  # with more distinct dates, time is cut into TIME_STEPS steps of equal count
TIME_STEPS = 20
_DAY = 86_400.0  # seconds
_MONDAY = 4 * _DAY  # 1970-01-01 was a Thursday
_EPOCH = datetime.datetime(1970, 1, 1)


def cut_edges(times: Times, cut: Cut, time_steps: int) -> Times:
    """Return the moments at which the second and every later time step begin; reorders `times`."""
    if cut == "count":
        return _edges_by_count(times, time_steps)
    if cut == "duration":
        edges = np.linspace(times.min(), times.max(), time_steps + 1)[1:-1]
        # All at one moment leaves nothing to cut: then every image arrives at once, at the first time step.
        return np.asarray(edges[edges > times.min()])
    starts = _unit_starts(times, cut)
    if len(starts) != time_steps:
        raise UserError(f"--time-steps {time_steps}: --cut {cut} makes {len(starts):,}; leave one out")
    return starts[1:]


def count_steps(times: Times, cut: Cut) -> int:
    """Return how many time steps a cut makes when the user gives no number."""
    if cut in EVEN_CUTS:
        return min(TIME_STEPS, len(np.unique(times)))
    steps = len(_unit_starts(times, cut))
    if steps > MOST_TIME_STEPS:
        raise UserError(f"--cut {cut}: makes {steps:,} time steps; cut into {MOST_TIME_STEPS:,} at most")
    return steps


def suggest_cut(times: Times) -> tuple[Cut, int]:
    """Return the cut and the number of time steps for times: one per distinct date if these are few."""
    if are_dates(times.min(), times.max()) and 1 < (days := len(_unit_starts(times, "day"))) <= DATES_AT_MOST:
        return "day", days
    values = len(np.unique(times))
    return ("value", values) if values <= DATES_AT_MOST else ("count", TIME_STEPS)


def _unit_starts(times: Times, cut: Cut) -> Times:
    """Return where the days, weeks or months that occur begin, or the distinct values."""
    if cut == "value":
        return np.unique(times)
    if not are_dates(times.min(), times.max()):
        span = f"{times.min():,.10g} to {times.max():,.10g}"
        raise UserError(f"--cut {cut}: the times from {span} are not dates (seconds since 1970); cut by count or value")
    if cut == "month":
        months = np.unique(np.floor(times).astype("datetime64[s]").astype("datetime64[M]"))
        return months.astype("datetime64[s]").astype(np.float64)
    first, length = (_MONDAY, 7 * _DAY) if cut == "week" else (0.0, _DAY)
    return np.unique(np.floor((times - first) / length)) * length + first


def _edges_by_count(times: Times, time_steps: int) -> Times:
    """Cut into equal counts; a moment belongs where its first image falls, so the first time step is never empty."""
    positions = [-(-step * len(times) // time_steps) for step in range(1, time_steps)]
    positions = [position for position in positions if position < len(times)]
    if not positions:
        return np.zeros(0)
    times.partition(sorted({position + shift for position in positions for shift in (-1, 0)}))
    edges = []
    for position in positions:
        moment = times[position]
        if times[position - 1] == moment:  # begun before: cut at the next moment
            later = times[times > moment]
            if not len(later):
                break
            moment = later.min()
        edges.append(moment)
    return np.array(edges)


def are_dates(first: float, last: float) -> bool:
    """Tell whether times can only be seconds since 1970: no count or year is as large, no millisecond as small."""
    return 1e8 < max(abs(first), abs(last)) < 1e10


def format_spans(spans: Sequence[tuple[float, float]]) -> list[str]:
    """Write spans such as 2024-03-01 to 2024-03-31 in UTC, or numbers; if some begin on one day, when they begin."""
    dated = are_dates(min((first for first, _ in spans), default=0), max((last for _, last in spans), default=0))
    begins = _format([first for first, _ in spans], dated)
    if any(" " in begin for begin in begins):
        return begins
    ends = [_format([last], dated)[0] for _, last in spans]
    return [begin if begin == end else f"{begin} to {end}" for begin, end in zip(begins, ends, strict=True)]


def _format(moments: Sequence[float], dated: bool) -> list[str]:
    if not dated:
        return [f"{moment:.10g}" for moment in moments]
    dates = [_EPOCH + datetime.timedelta(seconds=moment) for moment in moments]
    days = [date.date().isoformat() for date in dates]
    return days if len(set(days)) == len(set(moments)) else [date.isoformat(" ", "seconds") for date in dates]
