"""The accuracy of a head that is solved in closed form on a frozen encoder, from the labels of a stream."""

from typing import Literal

import numpy as np
import torch

from dietcl.config import RunConfig
from dietcl.engine.device import pick_device
from dietcl.engine.evaluator import stratified_sample
from dietcl.engine.learner import starting_network
from dietcl.methods.pieces.ridge import solve
from dietcl.run import stream_of
from dietcl.streams.loader import Loader
from dietcl.streams.normalize import normalize
from dietcl.streams.storage import Storage
from dietcl.streams.stream import Rows

CHUNK = 256
MOST_TESTS = 10_000  # where all are tested, so that millions of scores for thousands of classes fit


def solved_head_accuracy(config: RunConfig, tokens: Literal["mean", "class"] = "mean", device: str = "cpu") -> float:
    """Return the test accuracy of a ridge classifier on the frozen encoder of a configuration, from its labels."""
    (stream, index), place = stream_of(config), pick_device(device)
    network = starting_network(config)[0].to(place)
    encode = network.features if tokens == "mean" else network.query
    loader = Loader(stream, Storage(index, config.model.image_size, resizing=config.model.resizing), place)

    def features(rows: Rows) -> torch.Tensor:
        with torch.no_grad():
            chunks = np.array_split(rows, -(-len(rows) // CHUNK))
            parts = [encode(normalize(loader.read(chunk))).cpu() for chunk in chunks]
        return torch.cat(parts).double()

    labels = np.concatenate([step.labels for step in stream.steps])
    train = features(np.concatenate([step.labeled for step in stream.steps]))
    solution = solve(train, torch.from_numpy(labels), len(stream.classes), "each")
    evaluation = config.evaluation
    wanted = None if evaluation.all_at_end else evaluation.test_images
    tests = stratified_sample(stream, wanted or MOST_TESTS)
    truth = np.concatenate([step.labels for step in tests])
    scores = features(np.concatenate([step.rows for step in tests])) @ solution.weight + solution.bias
    return float((scores.argmax(1).numpy() == truth).mean())
