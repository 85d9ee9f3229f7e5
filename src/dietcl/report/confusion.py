"""The test images by true and predicted class: accuracy by class, and which classes are confused with which."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.metrics import NEVER_REVEALED, NO_ANSWER

Images = npt.NDArray[np.uint8]  # [n, H, W, 3]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mistake:
    """Images of one class that were classified as another."""

    truth: str
    predicted: str
    count: int


@dataclass(frozen=True)
class ClassRow:
    """The test images of one class, how many were classified correctly, and the most frequent mistake."""

    name: str
    right: int
    total: int
    taken_for: Mistake | None

    @property
    def accuracy(self) -> float:
        return self.right / self.total


@dataclass(frozen=True, eq=False)
class Examples:
    """Test images with the names of their true and predicted classes."""

    images: Images
    label: tuple[str, ...]
    predicted: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Confusion:
    """Sparse integer counts of test images by true and predicted class number; -1 is no known class."""

    classes: tuple[str, ...]
    truth: Ints
    predicted: Ints
    count: Ints

    @cached_property
    def total(self) -> int:
        """Number of test images."""
        return int(self.count.sum())

    @cached_property
    def right(self) -> int:
        """Number of test images that were classified correctly."""
        return int(self.count[self._is_right].sum())

    @cached_property
    def _is_right(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self.truth == self.predicted) & (self.truth >= 0))

    @property
    def accuracy(self) -> float:
        """Share of the test images that were classified correctly; nan if there are none."""
        return self.right / self.total if self.total else math.nan

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the rows and columns of the matrix; the last stands for no known class."""
        return (*self.classes, f"{NEVER_REVEALED} / {NO_ANSWER}")

    def matrix(self) -> Ints:
        """Return the counts as a dense matrix: one row for each true class, one column for each predicted class."""
        dense = np.zeros((len(self.classes) + 1,) * 2, np.int64)
        dense[self.truth, self.predicted] = self.count  # -1 is the last row or column
        return dense

    def by_class(self) -> list[ClassRow]:
        """Return the classes that have test images, the worst first; of equal accuracy, the one of most images."""
        total, right = np.zeros((2, len(self.classes) + 1), np.int64)
        np.add.at(total, self.truth, self.count)
        np.add.at(right, self.truth[self._is_right], self.count[self._is_right])
        most_frequent = {int(self.truth[cell]): cell for cell in reversed(self._wrong_cells())}
        rows = []
        for number in np.flatnonzero(total).tolist():
            cell = most_frequent.get(number if number < len(self.classes) else -1)
            taken_for = None if cell is None else self._mistake(cell)
            name = (*self.classes, NEVER_REVEALED)[number]
            rows.append(ClassRow(name, int(right[number]), int(total[number]), taken_for))
        return sorted(rows, key=lambda row: (row.accuracy, -row.total))

    def mistakes(self, most: int | None = None) -> list[Mistake]:
        """Return which classes were taken for which others, the most frequent first, and no more than `most`."""
        return [self._mistake(cell) for cell in self._wrong_cells()[:most]]

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        return {
            "right": self.right,
            "total": self.total,
            "accuracy": self.accuracy if self.total else None,
            "by_class": [
                {"class": row.name, "right": row.right, "total": row.total, "accuracy": row.accuracy}
                for row in self.by_class()
            ],
            "mistakes": [vars(mistake) for mistake in self.mistakes()],
        }

    def _wrong_cells(self) -> list[int]:
        return [cell for cell in np.argsort(-self.count, kind="stable").tolist() if not self._is_right[cell]]

    def _mistake(self, cell: int) -> Mistake:
        truth, predicted = (*self.classes, NEVER_REVEALED), (*self.classes, NO_ANSWER)
        return Mistake(truth[self.truth[cell]], predicted[self.predicted[cell]], int(self.count[cell]))
