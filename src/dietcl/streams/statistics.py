"""What a stream holds, in the shape of the paper's table of benchmarks, and how far that is from what was published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_SPLITS = Published("splits", "20", 20, 20)
_RELEASED_CLASSES = "training images of the released choice of classes; other classes have at least 1,140 images each"

# Section B.1 of the paper, its text and both of its tables; for ImageNet2k the script and the class sizes released by
# github.com/drimpossible/BudgetCL, 7b5057f, scripts/split_imgnet21k.py and scripts/class_sizes.npy.
PAPER: Mapping[str, tuple[Published, ...]] = {
    "imagenet10k": (
        _SPLITS,
        Published("classes", "9,459", 9_459, 9_459),
        Published("classes per split", "473", 472.5, 473.5),
        Published(
            "images", "9,822,675", 9_822_675, 9_822_675, "for training: 11,060,223 less 991 classes of some 1,250"
        ),
        Published(_RATE, "1 %", 0.01, 0.01),
        Published(_LABELED, "5k", 4_500, 5_500, "the released code rounds down in each class, this one to nearest"),
        Published(_UNLABELED, "500k", 450_000, 550_000),
        Published(_TEST, "12k", 11_500, 12_500, "473 classes of 50 test images are 23.6k, not 12k", (23_500, 23_700)),
    ),
    "imagenet2k": (
        _SPLITS,
        Published("classes", "1,000", 1_000, 1_000),
        Published("classes per split", "50", 50, 50),
        Published("images", "1,302,903", 1_302_903, 1_302_903, _RELEASED_CLASSES, (1_140_000, float("inf"))),
        Published(_TEST, "2.5k", 2_500, 2_500, "50 in each class"),
    ),
    "cloc": (
        _SPLITS,
        Published("classes", "713", 713, 713, "712 in one table, 713 in the other, 10788 in the text", (712, 712)),
        Published("classes per split", "712", 711.5, 712.5, "712 in one table, 713 in the other", (712.5, 713.5)),
        Published("images", "38 m", 37.5e6, 38.5e6, "CLOC's own page says roughly 39 million", (38.5e6, 39.5e6)),
        Published(_RATE, "0.5 %", 0.005, 0.005),
        Published(_LABELED, "1k", 500, 1_500, "0.5 % of 1.9 m is 9.5k, not 1k", (9_250, 9_750)),
        Published(_UNLABELED, "1.9 m", 1.85e6, 1.95e6),
        Published(_TEST, "19k", 18_500, 19_500),
    ),
    "cglm": (
        _SPLITS,
        Published("classes", "10,788", 10_788, 10_788),
        Published("images", "581,100", 581_100, 581_100, "the paper does not say whether test images are included"),
        Published(_RATE, "5 %", 0.05, 0.05),
        Published(_LABELED, "0.6k", 550, 650, "5 % of 30k is 1.5k, not 0.6k; classes are rounded", (650, 1_550)),
        Published(_UNLABELED, "30k", 25_000, 35_000),
        Published(_TEST, "3k", 2_500, 3_500),
    ),
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
