"""Times of a manifest as they are written."""

import datetime

import pytest

from dietcl.streams.times import format_spans


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(f"{text}+00:00").timestamp()


@pytest.mark.parametrize(
    ("spans", "written"),
    [
        (
            [("2024-03-01", "2024-03-31T23:59"), ("2024-04-02", "2024-04-02T12:00")],
            ["2024-03-01 to 2024-03-31", "2024-04-02"],
        ),
        (
            [("2024-03-01T08:00", "2024-03-01T09:00"), ("2024-03-01T10:30", "2024-03-02")],
            ["2024-03-01 08:00:00", "2024-03-01 10:30:00"],
        ),
    ],
)
def test_spans_are_written_as_days_or_by_the_second(spans: list[tuple[str, str]], written: list[str]) -> None:
    assert format_spans([(seconds(first), seconds(last)) for first, last in spans]) == written


def test_times_that_are_no_seconds_since_1970_are_numbers() -> None:
    assert format_spans([(0.0, 19.0), (20.5, 12000.0)]) == ["0 to 19", "20.5 to 12000"]
    assert format_spans([(2024.0, 2024.0)]) == ["2024"]  # a year
