"""The test images by true and predicted class: accuracy by class, and which classes are confused with which."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.metrics import NEVER_REVEALED, NO_ANSWER, known

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
    """Sparse integer counts of test images by true and predicted class number; -1 is none of the classes."""

    classes: tuple[str, ...]
    truth: Ints
    predicted: Ints
    count: Ints
    unknown: int = field(default=0, kw_only=True)
    """How many of the classes, the last ones, the model does not know."""
    noun: str = field(default="test image", kw_only=True)

    @property
    def answers(self) -> int:
        """Number of classes among which the model chooses."""
        return len(self.classes) - self.unknown

    @property
    def chance(self) -> float | None:
        """Accuracy of guessing among the classes that the model knows."""
        return 1 / self.answers if self.answers else None

    @property
    def unknown_classes(self) -> tuple[str, ...]:
        """Classes that the model does not know; their images count as wrong."""
        return self.classes[self.answers :]

    @cached_property
    def total(self) -> int:
        """Number of test images."""
        return int(self.count.sum())

    @cached_property
    def right(self) -> int:
        """Number of test images that were classified correctly."""
        return int(self._count_right.sum())

    @cached_property
    def _count_right(self) -> Ints:
        return np.where((self.truth == self.predicted) & (self.truth >= 0), self.count, 0)

    @property
    def accuracy(self) -> float:
        """Share of the test images that were classified correctly; nan if there are none."""
        return self.right / self.total if self.total else math.nan

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the rows and columns of the matrix; the last is none of the classes."""
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
        np.add.at(right, self.truth, self._count_right)
        taken_for = {mistake.truth: mistake for mistake in reversed(self.mistakes())}
        cells = zip((*self.classes, NEVER_REVEALED), right.tolist(), total.tolist(), strict=True)
        rows = [ClassRow(name, good, count, taken_for.get(name)) for name, good, count in cells if count]
        return sorted(rows, key=lambda row: (row.accuracy, -row.total))

    def mistakes(self, most: int | None = None) -> list[Mistake]:
        """Return which classes were taken for which others, the most frequent first, and no more than `most`."""
        truth, predicted = (*self.classes, NEVER_REVEALED), (*self.classes, NO_ANSWER)
        cells = zip(self.truth.tolist(), self.predicted.tolist(), self.count.tolist(), strict=True)
        wrong = sorted((cell for cell in cells if cell[0] != cell[1] or cell[0] < 0), key=lambda cell: -cell[2])
        return [Mistake(truth[t], predicted[p], count) for t, p, count in wrong[:most]]

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        keys = ("right", "total", "accuracy")
        rows = [{"class": row.name} | {key: getattr(row, key) for key in keys} for row in self.by_class()]
        mistakes = [vars(mistake) for mistake in self.mistakes()]
        totals = {"right": self.right, "total": self.total, "accuracy": known(self.accuracy), "chance": self.chance}
        return {**totals, "unknown_classes": self.unknown_classes, "by_class": rows, "mistakes": mistakes}
