"""The oracle: Larder with true labels in the place of guesses. Nothing else in the reproduction reads hidden labels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dietcl import RunConfig
from dietcl.methods.base import Net
from dietcl.methods.larder import LarderMethod
from dietcl.methods.pieces.larder import Larder
from dietcl.run import stream_of

ORACLE = "larder_oracle"


class TrueLabels(Larder):
    """A larder that puts the true label in the place of a guess, and trusts it wholly."""

    def __init__(self, truth: Tensor) -> None:
        super().__init__()
        self._truth = truth

    def add(self, rows: Tensor, labels: Tensor, trust: Tensor, possible: Tensor) -> None:
        truth = self._truth[rows]
        known = torch.isin(truth, possible)  # of others no label was revealed
        super().add(rows[known], truth[known], torch.ones_like(trust[known]), possible)


class LarderOracle(LarderMethod):
    """Larder that knows the label of every image that it remembers: the ceiling of guessing."""

    truth: ClassVar[Tensor | None] = None
    """The class of every row, only while `telling_oracle` tells it."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        if net.is_frozen:
            raise RuntimeError(f"{ORACLE} solves no head from true labels; let the encoder learn")
        if self.truth is None:
            raise RuntimeError(f"{ORACLE} learns only where telling_oracle tells it the labels")
        self.larder = TrueLabels(self.truth)


@contextmanager
def telling_oracle(config: RunConfig) -> Iterator[None]:
    """Tell the oracle the labels of the stream that it is about to learn; a run of any other method goes untold."""
    if config.method == ORACLE:
        LarderOracle.truth = true_classes(config)
    try:
        yield
    finally:
        LarderOracle.truth = None


def true_classes(config: RunConfig) -> Tensor:
    """Return the class of every row of a stream, or -1 if it is never revealed."""
    stream, index = stream_of(config)
    number = {name: number for number, name in enumerate(stream.classes)}
    of_code = np.array([number.get(name, -1) for name in index.classes] + [-1])  # the last one answers for label -1
    return torch.from_numpy(of_code[index.label[stream.index_row]])
