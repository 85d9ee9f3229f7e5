"""Evaluation: one pass over the seen test images, kept as integers by time step of origin."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from dietcl.budget.ledger import Ledger
from dietcl.engine.net import Net
from dietcl.keys import numpy_generator
from dietcl.methods.base import Method
from dietcl.streams.augment import normalize
from dietcl.streams.loader import Loader
from dietcl.streams.stream import Stream, TestStep

CHUNK = 256


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


class Evaluator:
    """Scores a method on a fixed set of test images, free of charge."""

    def __init__(self, stream: Stream, loader: Loader, ledger: Ledger, test_images: int | None) -> None:
        self.tests = stratified_sample(stream, test_images)
        self._loader = loader
        self._ledger = ledger

    def measure(self, method: Method, net: Net, counts: Counts, row: int, until: int) -> None:
        """Fill a row of the counts with the test images of time steps 1 to `until`."""
        for test in self.tests[:until]:
            column = test.t - 1
            predicted, losses = self.predict(method, net, test)
            counts.correct[row, column] = int(((predicted == test.labels) & (test.labels >= 0)).sum())
            counts.count[row, column] = len(test.rows)
            counts.loss_sum[row, column] = float(losses.sum())

    def predict(
        self, method: Method, net: Net, test: TestStep
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return predicted class numbers (-1 while no class is known) and losses.

        A class that is not known yet counts as a uniform guess over the known classes and one more.
        """
        predicted = np.full(len(test.rows), -1, np.int64)
        losses = np.full(len(test.rows), math.log(net.classes + 1))
        if not net.classes:
            return predicted, losses
        # Reading the images is free too: under a budget in seconds it would be paid in time.
        with self._ledger.free(), torch.no_grad():
            parts = [slice(start, start + CHUNK) for start in range(0, len(test.rows), CHUNK)]
            for part, images in zip(parts, self._loader.read_ahead([test.rows[part] for part in parts]), strict=True):
                scores = method.predict(net, normalize(images)).float()
                predicted[part] = scores.argmax(1).cpu().numpy()
                known = (test.labels[part] >= 0) & (test.labels[part] < net.classes)
                labels = torch.from_numpy(np.where(known, test.labels[part], 0)).to(scores.device)
                entropy = F.cross_entropy(scores, labels, reduction="none").double().cpu().numpy()
                losses[part][known] = entropy[known]
        return predicted, losses


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
    kept = np.zeros(total, np.bool_)
    kept[chosen] = True
    bounds = np.cumsum([len(test.rows) for test in stream.tests])[:-1]
    masks = np.split(kept, bounds)
    pairs = zip(stream.tests, masks, strict=True)
    return tuple(TestStep(test.t, test.rows[mask], test.labels[mask]) for test, mask in pairs)
