"""Differences that are paired by seed, and what follows from them: computed, not written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dietcl.metrics import paired_difference
from reproduction.measures import Measure
from reproduction.study import Study
from reproduction.suites import Arm, Point

Verdict = Literal["holds", "does not hold", "cannot tell"]
Values = npt.NDArray[np.float64]
CONFIDENCE = 0.95
HELP = 0.05
"""Of the accuracy itself: what the paper's larger parts bring it (0.86 of 16.82); what is less counts as nothing."""
SIMILAR = 0.11
"""The same over stream lengths, where the paper calls 24.9 and 22.2 similar."""


def signed(points: float) -> str:
    """Write points with their sign; a half rounds alike however it was computed."""
    return f"{round(points, 9):+.1f}"


@dataclass(frozen=True)
class Contrast:
    """A difference by seed, in points, and on which side of a bound the claim puts it; without values: unknown."""

    label: str
    values: tuple[float, ...]
    bound: float = 0.0
    is_above: bool = True

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean, and the 95 % interval of the mean."""
        return paired_difference(self.values, [0.0] * len(self.values))

    @property
    def verdict(self) -> Verdict:
        """Whether the complete interval is on the claimed side, on the other one, or neither."""
        return self.verdict_at(CONFIDENCE)

    def verdict_at(self, confidence: float) -> Verdict:
        """Return the verdict of an interval of another confidence."""
        if len(self.values) < 2:
            return "cannot tell"
        _, low, high = paired_difference(self.values, [0.0] * len(self.values), confidence=confidence)
        above, below = low > self.bound, high < self.bound
        if above == below:
            return "cannot tell"
        return "holds" if above == self.is_above else "does not hold"

    @property
    def support(self) -> float:
        """How far the complete interval is on the claimed side."""
        mean, low, high = self.interval
        if len(self.values) < 2:
            low = high = mean
        return low - self.bound if self.is_above else self.bound - high

    @property
    def text(self) -> str:
        """The mean with its interval."""
        mean, low, high = self.interval
        return f"{signed(mean)} [{signed(low)}, {signed(high)}]" if len(self.values) > 1 else signed(mean)

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


def less(label: str, one: Values, other: Values, bound: float = 0.0, is_above: bool = True) -> Contrast:
    """Return the difference of two measures over the seeds that have a result in both."""
    common = min(len(one), len(other))
    difference = one[:common] - other[:common]
    return Contrast(label, tuple(difference[~np.isnan(difference)].tolist()), bound, is_above)


def within(label: str, one: Values, other: Values, margin: float) -> list[Contrast]:
    """Return that two measures differ by less than a margin, either way, as two differences."""
    return [
        less(label, one, other, margin, is_above=False),
        less(label, one, other, -margin),
    ]


def judge(contrasts: Sequence[Contrast]) -> Verdict:
    """Return what follows from all differences together: it takes all to hold, and one to fall."""
    if failing(contrasts):
        return "does not hold"
    return "holds" if {contrast.verdict for contrast in contrasts} == {"holds"} else "cannot tell"


def failing(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return the differences with each of which a claim falls.

    One of many falls by chance more often than one alone, so that their intervals are widened (Bonferroni). The two
    sides of one difference count once.
    """
    together = 1 - (1 - CONFIDENCE) / max(1, len({contrast.label for contrast in contrasts if contrast.values}))
    return [contrast for contrast in contrasts if contrast.verdict_at(together) == "does not hold"]


@dataclass(frozen=True)
class Evidence:
    """The finished runs of a study."""

    study: Study

    def values(self, arm: Arm, measure: Measure, point: Point = Point()) -> Values:  # noqa: B008 (it is frozen)
        """Return a measure of an arm by seed, in percent; nan where it diverged."""
        results = self.study.finished(arm, point)
        return 100 * np.array([np.nan if result.failure else measure(result) for result in results])


Contrasts = Callable[[Evidence], list[Contrast]]


def share(level: Values, part: float = HELP) -> float:
    """Return a share of an accuracy, as a bound."""
    return part * float(np.nanmean(level))


def common(*values: Values) -> list[Values]:
    """Return measures over their common seeds."""
    seeds = min(map(len, values))
    return [each[:seeds] for each in values]


def peaks(choices: Sequence[Values]) -> list[int | None]:
    """Return for each seed which choice is best for the others, as no seed chooses its own; None without any."""
    table = np.array(choices)
    complete = np.flatnonzero(~np.isnan(table).any(axis=0))
    if len(complete) < 2:
        return [None] * table.shape[1]
    best = {seed: int(table[:, complete[complete != seed]].sum(axis=1).argmax()) for seed in complete.tolist()}
    return [best.get(seed) for seed in range(table.shape[1])]


def at_peak(choices: Sequence[Values]) -> Values:
    """Return each seed at the choice that is best for the others; nan where there is none."""
    places = peaks(choices)
    return np.array([np.nan if place is None else choices[place][seed] for seed, place in enumerate(places)])
