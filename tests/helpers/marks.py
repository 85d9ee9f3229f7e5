"""Marks for some of the cases of a test."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[str], short: Collection[str]) -> list[Any]:
    """Return the cases, all but some of them marked as long."""
    cases = list(cases)
    assert set(short) <= set(cases)
    return [case if case in short else pytest.param(case, marks=pytest.mark.long) for case in cases]
