"""What is measured of a finished run, between 0 and 1."""

from collections.abc import Callable, Sequence

import numpy as np

from reproduction.run_cache import Result

Measure = Callable[[Result], float]


def final(result: Result) -> float:
    """Return A(T)."""
    return result.final


def average(result: Result) -> float:
    """Return A: the mean of accuracy along the stream."""
    return result.average


def current(result: Result) -> float:
    """Return the accuracy on the last time step's own test images."""
    return result.summary.final_current


def old(result: Result) -> float:
    """Return the accuracy on earlier time steps' test images."""
    return result.summary.final_old_mean


def after(t: int) -> Measure:
    """Return the accuracy after a time step; nan beyond the stream's last one."""
    return lambda result: float(result.along[t - 1]) if t <= len(result.along) else float("nan")


def first(result: Result) -> float:
    """Return the accuracy after the first time step that has test images."""
    return float(result.along[~np.isnan(result.along)][0])


def solved(result: Result) -> float:
    """Return the accuracy of the final encoder under a head solved from all labels, pooled; nan if it did not learn."""
    return float(result.facts.get("ridge", np.nan))


def pooled(result: Result) -> float:
    """Return A(T) pooled over test images, as the solved head is measured."""
    return result.summary.final_pooled


def unevenness(result: Result) -> float:
    """Return the standard deviation of the final accuracy over time steps of origin, less what chance adds to it.

    Of few test images an accuracy is uncertain, the more the closer it is to a half.
    """
    last = result.summary.learned - 1
    variance = np.nanvar(result.summary.accuracy[last]) - np.nanmean(result.summary.accuracy_se[last] ** 2)
    return float(np.sqrt(max(0.0, variance)))


def new_classes(result: Result) -> float:
    """Return the accuracy on a time step's own test images right after it, averaged along the stream."""
    return float(np.nanmean(result.summary.current))


def gaps(results: Sequence[Result]) -> list[float]:
    """Return the stability gap of every seed: how far accuracy on earlier classes fell in the last time step and rose.

    It is read where the other seeds have their lowest point: the lowest of its own would make a gap of noise. What a
    time step loses for good is forgetting, and no part of it.
    """
    curves = np.array([_earlier(result) for result in results])
    others = [np.delete(curves, seed, axis=0) if len(curves) > 1 else curves for seed in range(len(curves))]
    lowest = [curve[other.mean(axis=0).argmin()] for curve, other in zip(curves, others, strict=True)]
    return [float(min(curve[0], curve[-1]) - low) for curve, low in zip(curves, lowest, strict=True)]


def lost(result: Result) -> float:
    """Return how much accuracy on earlier classes was lost from the start to the end of the last time step."""
    earlier = _earlier(result)
    return earlier[0] - earlier[-1]


def _earlier(result: Result) -> list[float]:
    """Return the accuracy on earlier classes along the last time step, as far as they have test images."""
    curve = result.facts["curve"]
    last = max(event["t"] for event in curve)
    tested = ~np.isnan(result.summary.accuracy[last - 1, : last - 1])
    return [float(np.mean(np.array(event["accuracy"][:-1])[tested])) for event in curve if event["t"] == last]
