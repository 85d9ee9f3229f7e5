"""Whether an arm leads: its differences to others, judged together, and how many seeds would settle an open one."""

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from dietcl.metrics import student_t
from reproduction.measures import Measure
from reproduction.run_cache import Result
from reproduction.study import Measured
from reproduction.verdicts import CONFIDENCE, Contrast, Verdict

MOST_SEEDS = 200
"""Beyond which it is not told how many seeds would settle a difference."""
TOO_FEW = "cannot tell (one seed has no interval)"
_LEADS: dict[Verdict, str] = {"holds": "above", "does not hold": "below"}


def common_seeds(one: Measured, other: Measured) -> list[tuple[Result, Result]]:
    """Return the results of two arms in pairs of a seed."""
    theirs = {result.seed: result for result in other.results}
    return [(result, theirs[result.seed]) for result in one.results if result.seed in theirs]


def paired(one: Measured, other: Measured, measure: Measure) -> Contrast:
    """Return one arm less another over their common seeds, in points."""
    label = f"{one.arm.title} less {other.arm.title}"
    return Contrast(label, tuple(100 * (measure(a) - measure(b)) for a, b in common_seeds(one, other)))


def number_testable(contrasts: Sequence[Contrast]) -> int:
    """Return how many differences can be tested."""
    return sum(len(contrast.values) > 1 for contrast in contrasts)


def judged(contrasts: Sequence[Contrast]) -> tuple[list[Verdict], float]:
    """Return the verdict on every difference, all of them together, and the confidence that an open one lacks.

    Of many differences some would be told by chance, so that they are judged by Holm's method: each by an interval that
    is widened for as many as are open (Bonferroni), until none of these is told.
    """
    verdicts: list[Verdict] = ["cannot tell"] * len(contrasts)
    while True:
        waiting = [place for place, verdict in enumerate(verdicts) if verdict == "cannot tell"]
        confidence = 1 - (1 - CONFIDENCE) / max(1, number_testable([contrasts[place] for place in waiting]))
        told = {place: contrasts[place].verdict_at(confidence) for place in waiting}
        if set(told.values()) <= {"cannot tell"}:
            return verdicts, confidence
        for place, verdict in told.items():
            verdicts[place] = verdict


def seeds_needed(contrast: Contrast, confidence: float = CONFIDENCE) -> int | None:
    """Return the fewest seeds at which an interval of the observed mean and spread would exclude 0; None: very many."""
    mean, spread = abs(float(np.mean(contrast.values))), float(np.std(contrast.values, ddof=1))

    def is_enough(seeds: int) -> bool:
        return mean > student_t(seeds - 1, confidence) * spread / math.sqrt(seeds)

    numbers = range(2, MOST_SEEDS + 1)
    place = bisect_left(numbers, True, key=is_enough)  # more seeds make the interval ever narrower
    return numbers[place] if place < len(numbers) else None


def bare_words(contrasts: Sequence[Contrast]) -> list[str]:
    """Say of every difference whether it is above 0 or below, as far as that can be told."""
    verdicts, _ = judged(contrasts)
    told = zip(contrasts, verdicts, strict=True)
    return [_LEADS.get(verdict) or (verdict if len(each.values) > 1 else TOO_FEW) for each, verdict in told]


def lead_words(contrasts: Sequence[Contrast]) -> list[str]:
    """Say of every difference whether it is above 0 or below, or how many seeds would tell."""
    verdicts, confidence = judged(contrasts)
    return [_LEADS.get(verdict) or _open(each, confidence) for each, verdict in zip(contrasts, verdicts, strict=True)]


def _open(contrast: Contrast, confidence: float) -> str:
    if len(contrast.values) < 2:
        return TOO_FEW
    seeds = seeds_needed(contrast, confidence)
    return f"cannot tell ({f'about {seeds}' if seeds else f'more than {MOST_SEEDS}'} seeds would)"


def place_words(rivals: Sequence[Sequence[Contrast]]) -> list[str]:
    """Say of every point, given by its differences to all other arms, whether an arm is best there.

    To be best it takes all differences, judged together with those of all points. To be below, the 95 % interval of one
    is enough as it is: wider ones would let it pass as within the interval of the best.
    """
    verdicts, _ = judged([contrast for point in rivals for contrast in point])
    words = iter(verdicts)
    return [_place(point, [next(words) for _ in point]) for point in rivals]


def _place(contrasts: Sequence[Contrast], verdicts: Sequence[Verdict]) -> str:
    if any(len(contrast.values) < 2 for contrast in contrasts):
        return TOO_FEW
    if set(verdicts) == {"holds"}:
        return "best"
    if any(contrast.verdict == "does not hold" for contrast in contrasts):
        return "below"
    is_highest = all(np.mean(contrast.values) > 0 for contrast in contrasts)
    return "highest, within the interval" if is_highest else "within the interval of the best"
