"""Naive fine-tuning: the labels of this time step and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class Naive(Method):
    """Fine-tunes on this time step's labels alone, and so forgets."""

    keeps = "nothing"
    cost = "1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Fine-tuning has no options of its own."""

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done or not len(step.labeled):
            return None
        return Phase(name="fine-tune", mix=Mix(labeled=1))

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        assert batch.labeled is not None
        (logits,) = net.logits(batch.labeled)
        yield Term("labeled", batch.labeled.cross_entropy(logits))
