"""Every measure of a run from integer counts: accuracy, forgetting, transfer, standard errors, paired differences.

Row t of every matrix was measured after learning time step t + 1; column k holds the test images of time step k + 1.
A cell without test images is unknown (nan), never 0, and is left out of every mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.plural import plural

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
FEW_TEST_IMAGES = 30  # below, an accuracy deserves a warning
NEVER_REVEALED, NO_ANSWER = "never revealed", "no answer"
"""What -1 stands for: a true class of which no label was revealed, and the answer of a model that knows no class."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """Every figure of one run; `*_mean` weighs time steps alike, `*_pooled` test images alike; nan is unknown."""

    time_steps: int
    learned: int  # the last time step after which was measured, counted from 1; 0: none
    test_images: int  # on which was measured after it

    accuracy: Floats  # [T, T]
    accuracy_se: Floats  # [T, T], binomial

    # Along the stream, [T]: entry t - 1 is after learning time step t.
    accuracy_mean: Floats
    accuracy_mean_se: Floats
    accuracy_pooled: Floats
    accuracy_pooled_se: Floats
    loss_mean: Floats
    loss_pooled: Floats
    current: Floats  # on the time step just learned
    current_se: Floats
    old_mean: Floats  # on the time steps before it
    old_mean_se: Floats
    old_pooled: Floats
    old_pooled_se: Floats

    # A(T): after the last learned time step.
    final_mean: float
    final_mean_se: float
    final_pooled: float
    final_pooled_se: float
    final_current: float
    final_current_se: float
    final_old_mean: float
    final_old_mean_se: float
    final_old_pooled: float
    final_old_pooled_se: float

    # A: over the stream. The same images are tested again and again, so binomial errors would not combine here.
    average_mean: float
    average_pooled: float

    forgetting: float  # best accuracy a time step ever had, less its accuracy at the end
    backward_transfer: float  # accuracy at the end, less that right after learning
    forward_transfer: float  # accuracy on the next time step before learning it; a head without its classes scores 0


def few_tests_warning(count: int) -> str | None:
    """Return a sentence for people if an accuracy is measured on few test images."""
    if not 0 < count < FEW_TEST_IMAGES:
        return None
    images = plural(count, "test image")
    return f"only {images}: an accuracy measured on so few is a rough guess, and so is its standard error"


def summarize(correct: npt.ArrayLike, count: npt.ArrayLike, loss_sum: npt.ArrayLike) -> Summary:
    """Compute every figure from correct[T, T], count[T, T] and loss_sum[T, T]; rows of zeros were never measured."""
    right, seen, losses = _checked(correct, count, loss_sum)
    time_steps = len(seen)
    accuracy, variance = _rates(right, seen)
    until_now = np.tri(time_steps, dtype=bool)
    all_seen = _along_stream(right, seen, until_now)
    old = _along_stream(right, seen, np.tri(time_steps, k=-1, dtype=bool))
    cells = np.where(until_now, _ratio(losses, seen), np.nan)
    current = np.diagonal(accuracy).copy()
    curves: dict[str, Any] = {"current": current, "current_se": np.sqrt(np.diagonal(variance))}
    curves |= {f"old_{name}": curve for name, curve in old.items()}

    measured = np.flatnonzero(~np.isnan(all_seen["mean"]))
    last = int(measured[-1]) if len(measured) else -1
    at_end = accuracy[last, :last] if last > 0 else np.empty(0)
    # A column counts from the time step that taught it: what came by forward transfer cannot be forgotten.
    best = np.fmax.reduce(np.where(until_now, accuracy, np.nan)[: max(last, 0)], axis=0, initial=np.nan)

    finals: dict[str, Any] = {
        f"final_{name}": float(curve[last]) if last >= 0 else math.nan for name, curve in (all_seen | curves).items()
    }
    return Summary(
        time_steps=time_steps,
        learned=last + 1,
        test_images=int(seen[last, : last + 1].sum()) if last >= 0 else 0,
        accuracy=accuracy,
        accuracy_se=np.sqrt(variance),
        loss_mean=_ratio(np.nansum(cells, axis=1), (~np.isnan(cells)).sum(axis=1)),
        loss_pooled=_ratio((losses * until_now).sum(axis=1), (seen * until_now).sum(axis=1)),
        average_mean=_known_mean(all_seen["mean"]),
        average_pooled=_known_mean(all_seen["pooled"]),
        forgetting=_known_mean(best[: len(at_end)] - at_end),
        backward_transfer=_known_mean(at_end - current[: len(at_end)]),
        forward_transfer=_known_mean(np.diagonal(accuracy, offset=1)),
        **{f"accuracy_{name}": curve for name, curve in all_seen.items()},
        **curves,
        **finals,
    )


def paired_difference(
    a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return the mean of a - b over seeds and its Student t interval; one pair alone has no interval (nan)."""
    if len(a) != len(b) or not len(a):
        raise ValueError(f"paired values must be as many on both sides and at least one, not {len(a)} and {len(b)}")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    mean = float(difference.mean())
    if len(difference) == 1:
        return mean, math.nan, math.nan
    standard_error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    half = student_t(len(difference) - 1, confidence) * standard_error
    return mean, mean - half, mean + half


def student_t(freedom: int, confidence: float = 0.95) -> float:
    """Return the t with P(|T| < t) = confidence for a whole number of degrees of freedom."""
    low, high = 0.0, math.pi / 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return math.tan(middle) * math.sqrt(freedom)
        if _student_mass(middle, freedom) < confidence:
            low = middle
        else:
            high = middle


def _student_mass(angle: float, freedom: int) -> float:
    """Return P(|T| < tan(angle) * sqrt(freedom)), which is a finite sum for whole degrees of freedom."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for j in range(1, freedom // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * j - 1 + odd) / (2 * j + odd)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total


def _checked(correct: npt.ArrayLike, count: npt.ArrayLike, loss_sum: npt.ArrayLike) -> tuple[Counts, Counts, Floats]:
    right, seen = np.asarray(correct), np.asarray(count)
    losses = np.asarray(loss_sum, dtype=np.float64)
    if not right.shape == seen.shape == losses.shape or seen.ndim != 2 or seen.shape[0] != seen.shape[1]:
        raise ValueError(f"correct, count and loss_sum must be [T, T], not {right.shape}, {seen.shape}, {losses.shape}")
    if not (np.issubdtype(right.dtype, np.integer) and np.issubdtype(seen.dtype, np.integer)):
        raise ValueError(f"correct and count must be integers, not {right.dtype} and {seen.dtype}")
    if (right < 0).any() or (right > seen).any():
        raise ValueError("correct must lie between 0 and count")
    return right.astype(np.int64), seen.astype(np.int64), losses


def _along_stream(correct: Counts, count: Counts, mask: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return the mean and the pooled accuracy of each row's masked columns, and their standard errors."""
    correct, count = np.where(mask, correct, 0), np.where(mask, count, 0)
    rate, variance = _rates(correct, count)
    columns, images = (count > 0).sum(axis=1), count.sum(axis=1)
    return {
        "mean": _ratio(np.nansum(rate, axis=1), columns),
        "mean_se": _ratio(np.sqrt(np.nansum(variance, axis=1)), columns),
        "pooled": _ratio(correct.sum(axis=1), images),
        # The sample is stratified by time step: only the spread within columns is chance.
        "pooled_se": _ratio(np.sqrt(np.nansum(variance * np.square(count, dtype=np.float64), axis=1)), images),
    }


def _rates(correct: Counts, count: Counts) -> tuple[Floats, Floats]:
    rate = _ratio(correct, count)
    return rate, _ratio(rate * (1 - rate), count)


def _ratio(above: npt.NDArray[np.generic], below: npt.NDArray[np.generic]) -> Floats:
    top, bottom = above.astype(np.float64), below.astype(np.float64)
    quotient = np.full(bottom.shape, np.nan)
    np.divide(top, bottom, out=quotient, where=bottom > 0)
    return quotient


def _known_mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def known(value: float) -> float | None:
    """Return None for nan and infinity, which JSON does not have."""
    return float(value) if math.isfinite(value) else None
