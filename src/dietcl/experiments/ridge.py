"""A head that is solved, not learned: what an encoder is worth to a classifier with the same few labels."""

import numpy as np
import numpy.typing as npt
import torch

from dietcl.config import RunConfig
from dietcl.engine.learner import starting_network
from dietcl.run import open_stream
from dietcl.streams.augment import normalize
from dietcl.streams.loader import Loader
from dietcl.streams.storage import Storage

Floats = npt.NDArray[np.float64]
CHUNK = 256
PENALTIES = 10.0 ** np.arange(-4, 5)


def ridge_accuracy(config: RunConfig) -> float:
    """Return the pooled test accuracy of a ridge classifier, from all revealed labels, on a configuration's encoder.

    The encoder is the one that the configuration's weights hold, and stays as it is.
    """
    stream, index = open_stream(config)
    network, _ = starting_network(config)
    loader = Loader(stream, Storage(index, config.model.image_size), torch.device("cpu"))

    def features(rows: npt.NDArray[np.int64]) -> Floats:
        with torch.no_grad():
            chunks = np.array_split(rows, -(-len(rows) // CHUNK))
            parts = [network.features(normalize(loader.read(chunk))) for chunk in chunks]
        return torch.cat(parts).double().numpy()

    train = features(np.concatenate([step.labeled for step in stream.steps]))
    labels = np.concatenate([step.labels for step in stream.steps])
    test = features(np.concatenate([step.rows for step in stream.tests]))
    truth = np.concatenate([step.labels for step in stream.tests])
    mean, spread = train.mean(0), train.std(0) + 1e-6
    scores = _ridge((train - mean) / spread, np.eye(len(stream.classes))[labels], (test - mean) / spread)
    return float((scores.argmax(1) == truth).mean())


def _ridge(x: Floats, y: Floats, x_test: Floats) -> Floats:
    """Solve for every penalty from one factorization; the penalty with the least leave-one-out error predicts."""
    x, x_test = (np.hstack([part, np.ones((len(part), 1))]) for part in (x, x_test))
    u, s, v = np.linalg.svd(x, full_matrices=False)
    best, least = None, np.inf
    for penalty in PENALTIES:
        shrunk = s**2 / (s**2 + penalty)
        fitted = u @ (shrunk[:, None] * (u.T @ y))
        leverage = ((u**2) * shrunk).sum(1, keepdims=True)
        error = float((((y - fitted) / (1 - leverage)) ** 2).mean())
        if error < least:
            least, best = error, v.T @ ((s / (s**2 + penalty))[:, None] * (u.T @ y))
    assert best is not None
    scores: Floats = x_test @ best
    return scores
