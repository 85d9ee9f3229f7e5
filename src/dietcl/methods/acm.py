"""Approximate nearest neighbors on features that are kept for good, here exact (ACM, Prabhu et al. 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Sweep, Term

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


class ACM(Method):
    """Lets the nearest stored features vote, which never forget; the encoder never changes."""

    keeps = "features of all labels"
    cost = "1/3, every label once"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of the vote."""

        neighbors: int = 2
        """How many of the nearest labels vote; the nearest decides among equal votes."""

        def __post_init__(self) -> None:
            if self.neighbors < 1:
                raise UserError(f"--neighbors {self.neighbors}: let at least one neighbor vote")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        from dietcl.methods.pieces.store import Store

        self.store = Store()

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        return None if done or not len(step.labeled) else Sweep(name="features", pool="labeled")

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        return iter(())  # it makes no updates

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        return part.with_values(net.features(part.images, "features"))

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        self.store.add(**gathered)

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        from dietcl.methods.pieces.neighbors import vote

        return vote(net.features(images, "predict"), self.store, self.config.neighbors, net.classes)

    def state(self) -> "dict[str, torch.Tensor]":
        return self.store.state()

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        self.store.load_state(state)
