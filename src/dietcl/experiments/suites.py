"""Suites: every table and figure of the paper as data, in the paper's own terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PAPER_UPDATES = 500
PAPER_RATE = 0.01
PAPER_THRESHOLD = 400


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table or line of a figure: a method, with options that differ from its own."""

    title: str
    method: str
    """METHOD or METHOD:VARIANT."""
    options: Mapping[str, Any] = field(default_factory=dict)
    tuned_as: str = ""
    """The arm's method whose searched rates it takes; its own by default."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where an arm is measured, as the paper says it of ImageNet10k; a setup scales it to its own size."""

    updates: int = PAPER_UPDATES
    """Per time step."""
    label_rate: float = PAPER_RATE
    time_steps: int = 20
    first_time_steps: int | None = None
    curves: int = 0
    threshold: int = PAPER_THRESHOLD
    """DietCL's B: updates' worth of passes that its joint phase may take."""
    accounting: Literal["images", "flops"] = "images"
