"""What a stream holds, in the shape of the paper's table of benchmarks, and how far that is from what was published."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dietcl.errors import UserError
from dietcl.streams.assign_steps import TRAIN
from dietcl.streams.index import Index
from dietcl.streams.stream import Stream

VERDICTS = AGREES, OTHERWISE, DIFFERS = "agrees", "agrees otherwise", "differs"  # the best one first


@dataclass(frozen=True)
class Spread:
    """A quantity over the time steps."""

    mean: float
    least: int
    most: int


@dataclass(frozen=True)
class Statistics:
    """Counts of a stream, from all labels, revealed or not: for whoever owns the data, not for a learner."""

    time_steps: int
    classes: int  # that training images have
    test_only_classes: int  # that test images have and training images have not: never revealed
    revealed_classes: int
    classes_per_step: Spread
    labeled: Spread  # per time step, like the next two
    unlabeled: Spread
    test: Spread
    train_images: int
    test_images: int
    label_rate: float | None  # asked for, if that is known
    realized_rate: float
    images_per_class: tuple[int, float, int]  # least, median and most training images


def statistics(stream: Stream, index: Index, label_rate: float | None = None) -> Statistics:
    """Count what a stream that was cut from this index holds."""
    of_class = np.zeros(len(index.classes), np.int64)
    per_step = []
    for step in stream.steps:
        labels = index.label[stream.index_row[np.concatenate([step.labeled, step.unlabeled])]]
        counts = np.bincount(labels[labels >= 0], minlength=len(of_class))
        per_step.append(int(np.count_nonzero(counts)))
        of_class += counts
    in_tests = np.unique(index.label[(index.split != TRAIN) & (index.label >= 0)])
    present = of_class[of_class > 0]
    sizes = present if len(present) else np.zeros(1, np.int64)
    labeled, unlabeled = ([len(getattr(step, name)) for step in stream.steps] for name in ("labeled", "unlabeled"))
    test = [len(found.rows) for found in stream.tests]
    return Statistics(
        time_steps=len(stream.steps),
        classes=len(present),
        test_only_classes=int(np.count_nonzero(of_class[in_tests] == 0)),
        revealed_classes=len(stream.classes),
        classes_per_step=_spread(per_step),
        labeled=_spread(labeled),
        unlabeled=_spread(unlabeled),
        test=_spread(test),
        train_images=sum(labeled) + sum(unlabeled),
        test_images=sum(test),
        label_rate=label_rate,
        realized_rate=stream.realized_rate,
        images_per_class=(int(sizes.min()), float(np.median(sizes)), int(sizes.max())),
    )


def _spread(counts: Sequence[int]) -> Spread:
    return Spread(float(np.mean(counts)), min(counts), max(counts))


class Published(NamedTuple):
    """A published quantity: as it is written, and the range of numbers that round to this."""

    quantity: str
    written: str
    low: float
    high: float
    note: str = ""
    otherwise: tuple[float, float] | None = None  # another range that the publication also allows

    def verdict(self, number: float) -> str:
        """Tell whether a number is what was published."""
        if self.low <= number <= self.high:
            return AGREES
        return OTHERWISE if self.otherwise and self.otherwise[0] <= number <= self.otherwise[1] else DIFFERS


@dataclass(frozen=True)
class Difference:
    """One quantity of a stream beside what is published about it."""

    quantity: str
    expected: str
    found: float
    verdict: str  # agrees | agrees otherwise | differs
    note: str


_RATE = "label rate asked"
_LABELED, _UNLABELED, _TEST = "labeled per split", "unlabeled per split", "inference data per split"

# Section B.1 of the paper, its text and both of its tables; for ImageNet2k the script and the class sizes released by
# github.com/drimpossible/BudgetCL, 7b5057f, scripts/split_imgnet21k.py and scripts/class_sizes.npy.
PAPER: Mapping[str, tuple[Published, ...]] = {
    name: tuple(Published(*row) for row in rows)
    for name, rows in json.loads(Path(__file__).with_name("published_counts.json").read_text()).items()
}


def differences(name: str, found: Statistics) -> list[Difference]:
    """Compare a stream with what is published about a benchmark."""
    if name not in PAPER:
        raise UserError(f"--check {name}: nothing is published under this name; choose from {', '.join(PAPER)}")
    quantities: dict[str, list[float]] = {
        "splits": [found.time_steps],
        "classes": [found.classes],
        "classes per split": [found.classes_per_step.mean],
        "images": [found.train_images, found.train_images + found.test_images],  # a total may count test images or not
        _RATE: [] if found.label_rate is None else [found.label_rate],
        _LABELED: [found.labeled.mean],
        _UNLABELED: [found.unlabeled.mean],
        _TEST: [found.test.mean],
    }
    result = []
    for one in PAPER[name]:
        if candidates := quantities[one.quantity]:
            number = min(candidates, key=lambda number: VERDICTS.index(one.verdict(number)))
            result.append(Difference(one.quantity, one.written, number, one.verdict(number), one.note))
    return result
