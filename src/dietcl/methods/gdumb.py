"""GDumb: greedy memory, dumb learner (Prabhu et al., ECCV 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class GDumb(Method):
    """Forgets its weights at every time step and learns anew from the memory alone."""

    keeps = "row numbers of all labels (or of a share of them, equal over classes)"
    cost = "1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of GDumb."""

        memory: int | None = None
        """Keep this many labels in all, as equally many of each class as there are (all by default)."""

        def __post_init__(self) -> None:
            if self.memory is not None and self.memory < 1:
                raise UserError(f"--memory {self.memory}: keep at least one label, or leave the option out to keep all")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        mix = Mix(memory=1, by_class=True, capacity=self.config.memory)
        return Phase(name="retrain", mix=mix, fresh=True)

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        yield Term("memory", batch.cross_entropy(net.logits(*batch.supervised)))
