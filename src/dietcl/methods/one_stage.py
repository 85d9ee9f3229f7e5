"""OneStage: supervised learning alone, the paper's control for reconstruction (Zhang et al., ICLR 2024)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class OneStage(Method):
    """Fine-tunes on uniform draws from all labels so far."""

    keeps = "row numbers of all labels"
    cost = "1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """One stage has no options of its own."""

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        return None if done else Phase(name="fine-tune", mix=Mix(memory=1))

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        yield Term("memory", batch.cross_entropy(net.logits(*batch.supervised)))
