"""A few pictures of what a run can do: predictions on test images, and reconstructions."""

from pathlib import Path

import numpy as np
import torch

from dietcl.budget.ledger import Ledger
from dietcl.engine.learner import Learner
from dietcl.files import write_arrays
from dietcl.metrics import NEVER_REVEALED, NO_ANSWER
from dietcl.models.decoder import hide
from dietcl.models.net import Net
from dietcl.models.network import Network
from dietcl.streams.loader import Loader
from dietcl.streams.normalize import denormalize, normalize
from dietcl.streams.stream import Rows, TestStep

PREDICTIONS = 40
RECONSTRUCTIONS = 8


def save_samples(learner: Learner, path: Path) -> None:
    """Write test images with their predictions, frequent mistakes and reconstructed images as samples.npz."""
    arrays = _predictions(learner) | _mistakes(learner)
    step = next((step for step in reversed(learner.stream.steps) if len(step.unlabeled)), None)
    if step is not None and learner.network.decoder is not None:
        network, net, ledger, loader = learner.network, learner.net, learner.ledger, learner.loader
        arrays |= reconstruction_pictures(network, net, ledger, loader, step.unlabeled, "samples")
    write_arrays(path, arrays)


def reconstruction_pictures(
    network: Network, net: Net, ledger: Ledger, loader: Loader, rows: Rows, key: str
) -> dict[str, np.ndarray]:
    """Return a few images, their visible patches, and their reconstructions, as uint8 [n, H, W, 3]."""
    images = normalize(loader.read(rows[:RECONSTRUCTIONS]))
    with ledger.free():
        patches, mask = net.reconstructions(images, (key,))
    return {
        "originals": _pixels(images),
        "masked": _pixels(hide(images, mask, network.tokens.patch)),
        "reconstructed": _pixels(network.paint(images, patches, mask)),
    }


def _predictions(learner: Learner) -> dict[str, np.ndarray]:
    tests = [test for test in learner.evaluator.tests if len(test.rows)]
    each = -(-PREDICTIONS // max(1, len(tests)))
    found = [np.zeros((4, 0), np.int64)]
    for test in (TestStep(test.t, test.rows[:each], test.labels[:each]) for test in tests):
        predicted, _ = learner.evaluator.predict(learner.method, learner.net, test)
        found.append(np.stack([test.rows, test.labels, predicted, np.full(len(test.rows), test.t)]))
    rows, labels, predicted, t = np.concatenate(found, axis=1)
    truths, answers = _class_names(learner)
    images = learner.loader.read(rows).permute(0, 2, 3, 1).cpu().numpy()
    return {"images": images, "label": truths[labels], "predicted": answers[predicted], "t": t}


def _mistakes(learner: Learner) -> dict[str, np.ndarray]:
    counts, (truths, answers) = learner.class_counts, _class_names(learner)
    is_there = counts.examples >= 0
    cells = np.repeat(counts.mistakes()[: len(is_there)], is_there.sum(axis=1))
    return {
        "mistake_images": learner.loader.read(counts.examples[is_there]).permute(0, 2, 3, 1).cpu().numpy(),
        "mistake_label": truths[counts.truth[cells]],
        "mistake_predicted": answers[counts.predicted[cells]],
    }


def _class_names(learner: Learner) -> tuple[np.ndarray, np.ndarray]:
    """Return names of true and of predicted classes; the last one is that of -1, which is not a known class."""
    truths, answers = (np.array([*learner.stream.classes, last]) for last in (NEVER_REVEALED, NO_ANSWER))
    return truths, answers


def _pixels(images: torch.Tensor) -> np.ndarray:
    pixels: np.ndarray = denormalize(images).permute(0, 2, 3, 1).cpu().numpy()
    return pixels
