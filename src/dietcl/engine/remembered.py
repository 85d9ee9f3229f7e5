"""Remembered guesses: the pool `larder` as a method returns it, refused if it holds what the method cannot know."""

import numpy as np
import numpy.typing as npt

from dietcl.methods.base import Method, Pool, TimeStep
from dietcl.streams.stream import Rows, Stream


class Remembered:
    """Asks a method for the pool `larder`; what is wrong with it is an error in a sentence."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._is_shown = np.zeros(0, np.bool_)
        self._until = 0  # the last time step that the mask knows of

    def pool(self, method: Method, step: TimeStep) -> Pool:
        """Return what a method remembers in a time step."""
        pool = method.remembered()
        if fault := self._row_fault(pool, step) or _label_fault(pool, step) or _weight_fault(pool):
            raise RuntimeError(f"{type(method).__name__}.remembered returns {fault}")
        return pool

    def _row_fault(self, pool: Pool, step: TimeStep) -> str | None:
        rows, labels = pool.rows, pool.labels
        if labels is None:
            return "no labels; return a guess for every row"
        if rows.ndim != 1 or rows.shape != labels.shape:
            return f"rows of shape {rows.shape} and labels of shape {labels.shape}; return a guess for every row"
        if rows.dtype != np.int64 or labels.dtype != np.int64:
            return f"rows of {rows.dtype} and labels of {labels.dtype}; return arrays of int64"
        total = len(self._stream.index_row)
        if len(wrong := rows[(rows < 0) | (rows >= total)]):
            return f"row {wrong[0]}, which the stream does not have; return row numbers as `Part.rows` has them"
        if len(wrong := rows[~self._shown(rows, step.t)]):
            what = f"row {wrong[0]}, a test image or one of a later time step than {step.t}"
            return f"{what}; return images that the method was shown"
        return None

    def _shown(self, rows: Rows, t: int) -> npt.NDArray[np.bool_]:
        """Return which rows have arrived by time step t; a resumed run marks all of them at once."""
        if not len(rows):
            return np.zeros(0, np.bool_)  # most methods remember nothing and need no mask
        if not len(self._is_shown):
            self._is_shown = np.zeros(len(self._stream.index_row), np.bool_)
        for step in self._stream.steps:
            if self._until < step.t <= t:
                self._is_shown[step.labeled] = True
                self._is_shown[step.unlabeled] = True
        self._until = max(self._until, t)
        return self._is_shown[rows]


def _label_fault(pool: Pool, step: TimeStep) -> str | None:
    assert pool.labels is not None
    if len(wrong := pool.labels[(pool.labels < 0) | (pool.labels >= step.seen_classes)]):
        known = f"{step.seen_classes} classes are revealed by time step {step.t}"
        return f"label {wrong[0]}, but {known}; return class numbers below that"
    return None


def _weight_fault(pool: Pool) -> str | None:
    sums = pool.cumulative
    if sums is None:
        return None
    if sums.shape != pool.rows.shape:
        return f"{len(pool.rows)} rows and `cumulative` of shape {sums.shape}; return a sum for every row"
    if not np.isfinite(sums).all():
        return "`cumulative` with values that are not finite; return running sums of finite weights"
    if len(sums) and (sums[0] < 0 or (sums[1:] < sums[:-1]).any() or sums[-1] <= 0):
        return "`cumulative` that falls or stays 0; return running sums of weights from 0, at least one of them above 0"
    return None
