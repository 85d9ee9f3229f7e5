"""Evaluation: one pass over the seen test images, counted by their time step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from dietcl.budget.ledger import Ledger
from dietcl.config import Evaluation
from dietcl.engine.deferred_charges import deferring, settle
from dietcl.engine.distributed import World
from dietcl.methods.base import Method
from dietcl.models.net import Net
from dietcl.rng import numpy_generator
from dietcl.streams.assign_steps import rank_in_group
from dietcl.streams.augment import plain_images
from dietcl.streams.index import Index
from dietcl.streams.loader import Loader
from dietcl.streams.sampler import Pool
from dietcl.streams.stream import Stream, TestStep

CHUNK = 256
MISTAKES, EXAMPLES = 8, 6  # of how many mistakes examples are kept, and how many of each
Answers = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


@dataclass
class Counts:
    """correct[t, k] and count[t, k] of time step k's test images after learning time step t, and summed loss."""

    correct: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    loss_sum: npt.NDArray[np.float64]

    @classmethod
    def empty(cls, time_steps: int) -> "Counts":
        """Return matrices of zeros."""
        shape = (time_steps, time_steps)
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape))


@dataclass
class ClassCounts:
    """The seen test images by class: their confusion after the latest evaluation, and right and total after each.

    Class -1 is a true class that is never revealed, or the answer of a model that knows no class yet. It has the last
    column of right[t, class] and total[t, class].
    """

    truth: npt.NDArray[np.int64]  # with `predicted` and `count`, the cells of the confusion that are not 0
    predicted: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    examples: npt.NDArray[np.int64]  # rows of some test images of the most frequent mistakes, -1 where there are fewer

    @classmethod
    def empty(cls, time_steps: int, classes: int) -> "ClassCounts":
        """Return counts of nothing."""
        cells, shape = np.zeros(0, np.int64), (time_steps, classes + 1)
        examples = np.zeros((0, EXAMPLES), np.int64)
        return cls(cells, cells, cells, np.zeros(shape, np.int64), np.zeros(shape, np.int64), examples)

    def record(self, row: int, tests: Sequence[TestStep], answers: Sequence[npt.NDArray[np.int64]]) -> None:
        """Count the answers of the evaluation after time step `row` + 1."""
        truth, predicted = np.concatenate([test.labels for test in tests]), np.concatenate(answers)
        width = self.total.shape[1]
        code = (truth + 1) * width + predicted + 1
        cells, self.count = np.unique(code, return_counts=True)
        self.truth, self.predicted = cells // width - 1, cells % width - 1
        rows = np.concatenate([test.rows for test in tests])
        mistakes = self.mistakes()
        self.examples = np.full((len(mistakes), EXAMPLES), -1)
        for found, mistake in zip(self.examples, mistakes.tolist(), strict=True):
            chosen = rows[code == cells[mistake]][:EXAMPLES]
            found[: len(chosen)] = chosen
        is_right = (truth == predicted) & (truth >= 0)
        self.total[row] = np.bincount(truth % width, minlength=width)
        self.right[row] = np.bincount(truth[is_right], minlength=width)

    def mistakes(self) -> npt.NDArray[np.intp]:
        """Return the cells of the most frequent mistakes, in the order of the examples."""
        wrong = np.flatnonzero((self.truth != self.predicted) | (self.truth < 0))
        return wrong[np.argsort(-self.count[wrong], kind="stable")][:MISTAKES]


class Evaluator:
    """Scores a method on a fixed set of test images, free of charge."""

    def __init__(
        self, stream: Stream, loader: Loader, ledger: Ledger, config: Evaluation, world: World | None = None
    ) -> None:
        self.tests = tests_of(stream, config)
        self._at_end = stream.tests if config.all_at_end else self.tests
        self._loader, self._ledger, self._world = loader, ledger, world or World()

    def measure(
        self,
        method: Method,
        net: Net,
        counts: Counts,
        row: int,
        until: int,
        by_class: ClassCounts | None = None,
        is_last: bool = False,
    ) -> None:
        """Fill a row of the counts with the test images of time steps 1 to `until`, shared out to all processes.

        Of these, `by_class` counts the images of the time steps up to `row` + 1: what comes later is not learned yet.
        """
        tests = (self._at_end if is_last else self.tests)[:until]
        answers = self._answers(method, net, tests, self._world)
        if by_class is not None:
            by_class.record(row, tests[: row + 1], [predicted for predicted, _ in answers[: row + 1]])
        for test, (predicted, losses) in zip(tests, answers, strict=True):
            counts.correct[row, test.t - 1] = int(((predicted == test.labels) & (test.labels >= 0)).sum())
            counts.count[row, test.t - 1] = len(test.rows)
            counts.loss_sum[row, test.t - 1] = float(losses.sum())

    def predict(self, method: Method, net: Net, test: TestStep) -> Answers:
        """Return predicted class numbers (-1 while no class is known) and losses, computed by this process alone."""
        return self._answers(method, net, [test], World())[0]

    def _answers(self, method: Method, net: Net, tests: Sequence[TestStep], world: World) -> list[Answers]:
        """Return predicted classes and losses of each time step's test images."""
        guess = _guess(net.classes)
        answers = [(np.full(len(test.rows), -1, np.int64), np.full(len(test.rows), guess)) for test in tests]
        if not net.classes:
            return answers
        starts = [(number, start) for number, test in enumerate(tests) for start in range(0, len(test.rows), CHUNK)]
        own = [(number, slice(start, start + CHUNK)) for number, start in world.own_share(starts)]
        rows = [tests[number].rows[part] for number, part in own]
        # Reading the images is free too: under a budget in seconds it would be paid in time.
        with self._ledger.free(), torch.no_grad():
            with deferring(self._ledger, self._loader) as notes:
                found = [
                    (number, part, *_answer(method, net, images, tests[number].labels[part]))
                    for (number, part), images in zip(own, self._loader.read_ahead(rows), strict=True)
                ]
            for entries, noted in world.exchange((found, notes)):
                settle(self._ledger, self._loader, noted)
                for number, part, predicted, losses in entries:
                    answers[number][0][part], answers[number][1][part] = predicted, losses
        return answers


def right_guesses(pool: Pool, stream: Stream, index: Index) -> tuple[int, int]:
    """Count the labels of a pool that are the images' own, which nobody else may read, and the images that have one."""
    assert pool.labels is not None
    code = index.label[stream.index_row[pool.rows]]
    is_known = code >= 0
    number = {name: number for number, name in enumerate(stream.classes)}
    of_code = np.array([number.get(name, -1) for name in index.classes], np.int64)  # -1: a class that is never revealed
    is_right = of_code[code[is_known]] == pool.labels[is_known]
    return int(is_right.sum()), int(is_known.sum())


def _answer(method: Method, net: Net, images: torch.Tensor, labels: npt.NDArray[np.int64]) -> Answers:
    """Return predicted classes and losses of a chunk."""
    scores = method.predict(net, plain_images(images)).float()
    known = (labels >= 0) & (labels < net.classes)
    targets = torch.from_numpy(np.where(known, labels, 0)).to(scores.device)
    losses = F.cross_entropy(scores, targets, reduction="none").cpu().double().numpy()
    return scores.argmax(1).cpu().numpy(), np.where(known, losses, _guess(net.classes))


def _guess(classes: int) -> float:
    """Return the loss of a class that is not known yet: that of a guess among the known classes and one more."""
    return math.log(classes + 1)


def tests_of(stream: Stream, config: Evaluation) -> tuple[TestStep, ...]:
    """Return the test images that a configuration asks for, all or a sample."""
    sample = common_sample if config.all_at_end else stratified_sample
    return stream.tests if config.test_images is None else sample(stream, config.test_images)


def common_sample(stream: Stream, size: int) -> tuple[TestStep, ...]:
    """Return about this many test images, in proportion to every class of a time step, the same for every seed."""
    share = size / max(1, sum(len(test.rows) for test in stream.tests))
    number = numpy_generator("test-sample").random(len(stream.index_row))  # of rows of the index, which seeds share
    found = []
    for test in stream.tests:
        own = number[stream.index_row[test.rows]]
        order = np.argsort(own, kind="stable")
        rank = rank_in_group(test.labels, order)
        _, group, count = np.unique(test.labels, return_inverse=True, return_counts=True)
        first = np.full(len(count), np.inf)
        np.minimum.at(first, group, own)
        # The smallest number of a class decides whether a fraction is rounded up; this makes it uniform.
        kept = rank + (1 - (1 - first) ** count)[group] < share * count[group]
        found.append(TestStep(test.t, test.rows[kept], test.labels[kept]))
    return tuple(found)


def stratified_sample(stream: Stream, size: int | None) -> tuple[TestStep, ...]:
    """Return a seeded sample of the test images in which every time step and class keeps its share."""
    total = sum(len(test.rows) for test in stream.tests)
    if size is None or size >= total:
        return stream.tests
    generator = numpy_generator(stream.seed, "test-sample")
    step = np.concatenate([np.full(len(test.rows), test.t) for test in stream.tests])
    label = np.concatenate([test.labels for test in stream.tests])
    # Every image gets its place within its class, then every (total / size)-th image is taken along that order.
    order = np.lexsort((generator.random(total), label, step))
    chosen = order[np.floor((np.arange(size) + generator.random()) * total / size).astype(np.int64)]
    kept = np.isin(np.arange(total), chosen)
    masks = np.split(kept, np.cumsum([len(test.rows) for test in stream.tests])[:-1])
    pairs = zip(stream.tests, masks, strict=True)
    return tuple(TestStep(test.t, test.rows[mask], test.labels[mask]) for test, mask in pairs)
