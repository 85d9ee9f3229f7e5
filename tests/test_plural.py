"""Counts with their nouns."""

import pytest

from dietcl.plural import plural


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (1, "class", "1 class"),
        (0, "class", "0 classes"),
        (2000, "class", "2,000 classes"),
        (1, "time step", "1 time step"),
        (3, "time step", "3 time steps"),
    ],
)
def test_nouns_agree_with_their_counts(count: int, noun: str, expected: str) -> None:
    assert plural(count, noun) == expected
