"""Experience replay: cross-entropy on labels of this and earlier time steps (Chaudhry et al. 2019)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.mix import Mix

if TYPE_CHECKING:
    from dietcl.engine.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class ER(Method):
    """Replays all labels so far: uniformly, or half of this time step and half of the past."""

    keeps = "row numbers of all labels (or of a reservoir)"
    cost = "1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of experience replay."""

        sampling: Literal["uniform", "balanced"] = "balanced"
        """uniform: the whole batch from all labels so far; balanced: half this time step's, half the past's."""
        memory: int | None = None
        """Keep a reservoir of this many labels of earlier time steps (all by default)."""

        def __post_init__(self) -> None:
            if self.memory is not None and self.memory < 1:
                raise UserError(f"--memory {self.memory}: keep at least one label, or leave the option out to keep all")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        if self.config.sampling == "uniform":
            return Phase(name="replay", mix=Mix(memory=1, capacity=self.config.memory))
        return Phase(name="replay", mix=Mix(labeled=1 / 2, memory=1 / 2, past_only=True, capacity=self.config.memory))

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        yield Term("replay", batch.cross_entropy(net.logits(*batch.supervised)))
