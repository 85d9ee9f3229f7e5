"""Recipes: how a manifest is cut into time steps, as options; free of numpy so that the command line starts quickly."""

from dataclasses import dataclass
from typing import Literal

from dietcl.errors import UserError

BAD_SHARE = 0.01  # of the images that may turn out unreadable before a run stops
MOST_TIME_STEPS = 5_000  # counts are kept for every pair of time steps


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a stream is cut into time steps and how many labels it reveals."""

    recipe: Literal["class", "time", "data"] = "class"
    """class: classes are dealt over time steps; time: cuts of the timestamp; data: i.i.d. cuts."""
    time_steps: int = 20
    """Number of time steps T."""
    label_rate: float = 0.01
    """Share of labels revealed, per class and time step (rounded to the nearest count)."""
    at_least_one: bool = False
    """Reveal at least one label of every class in every time step where it occurs."""
    cut: Literal["count", "duration"] = "count"
    """Cut time into time steps of equal count or of equal duration (recipe 'time' only)."""
    test_per_time_step: int | None = None
    """At most this many test images per time step (all by default)."""

    def __post_init__(self) -> None:
        if not 1 <= self.time_steps <= MOST_TIME_STEPS:
            raise UserError(f"--time-steps {self.time_steps}: give from 1 to {MOST_TIME_STEPS}")
        if not 0 <= self.label_rate <= 1:
            raise UserError(f"--label-rate {self.label_rate}: give a share between 0 and 1, such as 0.01")
        if self.test_per_time_step is not None and self.test_per_time_step < 1:
            raise UserError(f"--test-per-time-step {self.test_per_time_step}: give at least 1, or leave it out for all")
