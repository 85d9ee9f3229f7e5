"""Cuts of time: calendar units that occur, distinct values, and what some times suggest."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.errors import UserError
from dietcl.streams.times import are_dates, count_steps, cut_edges, format_spans, suggest_cut

DAY = 86_400


def seconds(*dates: str) -> np.ndarray:
    """Dates as seconds since 1970."""
    return np.array([datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp() for date in dates])


def steps(times: np.ndarray, cut: Any) -> list[int]:
    """The time step of each time."""
    edges = cut_edges(times.copy(), cut, count_steps(times, cut))
    return np.searchsorted(edges, times, side="right").tolist()


def test_days_weeks_and_months_by_hand() -> None:
    # A Sunday evening, the Monday after, the last and first day of a month, a year later.
    times = seconds(
        "2026-03-01T23:59:59", "2026-03-02T00:00:00", "2026-03-02T18:00", "2026-03-31", "2026-04-01", "2027-04-01"
    )
    assert steps(times, "day") == [0, 1, 1, 2, 3, 4]
    assert steps(times, "week") == [0, 1, 1, 2, 2, 3]
    assert steps(times, "month") == [0, 0, 0, 0, 1, 2]


@given(st.lists(st.integers(-(2**31), 2**32), min_size=1, max_size=40), st.sampled_from(["day", "week", "month"]))
@settings(max_examples=100, deadline=None)
def test_calendar_cuts_are_those_of_the_calendar(moments: list[int], cut: Any) -> None:
    times = np.array([*moments, 2**31], float)  # one that can only be a date
    days = [datetime.fromtimestamp(time, UTC) for time in times]
    units = [{"day": day.date(), "week": day.isocalendar()[:2], "month": (day.year, day.month)}[cut] for day in days]
    order = sorted(set(units))
    assert steps(times, cut) == [order.index(unit) for unit in units]


def test_distinct_values_are_time_steps() -> None:
    times = np.array([2010.0, 1990.0, 2010.0, 1850.0])
    assert steps(times, "value") == [2, 1, 2, 0]


def test_what_times_suggest() -> None:
    spring = seconds("2026-03-01")[0]
    hours = spring + 3600 * np.arange(24 * 4.0)
    assert suggest_cut(hours) == ("day", 4)
    assert suggest_cut(spring + DAY * np.arange(50.0)) == ("day", 50)
    assert suggest_cut(spring + DAY * np.arange(51.0)) == ("count", 20)
    assert suggest_cut(hours[:5]) == ("value", 5)  # one day alone is no stream
    assert suggest_cut(spring + np.arange(1000.0)) == ("count", 20)
    assert suggest_cut(np.arange(1970.0, 2015.0)) == ("value", 45)
    assert suggest_cut(np.arange(1900.0, 2015.0)) == ("count", 20)
    assert suggest_cut(np.full(9, 3.0)) == ("value", 1)


def test_a_number_that_the_cut_does_not_make_is_refused() -> None:
    times = seconds("2026-03-01", "2026-03-02")
    with pytest.raises(UserError, match="--time-steps 3: --cut day makes 2;"):
        cut_edges(times, "day", 3)


def test_years_are_not_dates() -> None:
    with pytest.raises(UserError, match="--cut month: the times from 1,990 to 2,010 are not dates"):
        count_steps(np.array([1990.0, 2010.0]), "month")
    with pytest.raises(UserError, match="--cut value: makes 5,001 time steps"):
        count_steps(np.arange(5001.0), "value")


def test_dates_are_told_from_other_numbers() -> None:
    early, late = seconds("1905-06-01", "1969-12-31T23:00")
    assert are_dates(early, late)
    assert format_spans([(early, early), (late, late)]) == ["1905-06-01", "1969-12-31"]
    assert not are_dates(0, 5_000)
    assert not are_dates(1e12, 1.8e12)  # milliseconds
