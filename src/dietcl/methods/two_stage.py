"""TwoStage: pre-training by reconstruction, then fine-tuning, in every time step (Zhang et al., ICLR 2024)."""

import math
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


class TwoStage(Method):
    """Reconstructs this time step's unlabeled images first, then fine-tunes on uniform draws from all labels."""

    keeps = "row numbers of all labels; the decoder"
    cost = "1 (less in FLOPs: a reconstruction is cheaper)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of the two stages."""

        pretrain: float = 0.8
        """Share of the budget for the reconstruction (0: none)."""
        fine_tune_lr: float = 5.0
        """Learning-rate factor of the fine-tuning."""

        def __post_init__(self) -> None:
            if not 0 <= self.pretrain <= 1:
                raise UserError(f"--pretrain {self.pretrain}: give a share from 0 to 1")
            if not 0 < self.fine_tune_lr < math.inf:
                raise UserError(f"--fine-tune-lr {self.fine_tune_lr}: give a factor above 0")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        phases = []
        if self.config.pretrain and len(step.unlabeled):
            # Without any label so far there is nothing to save the budget for.
            share = self.config.pretrain if step.seen_classes else 1.0
            phases.append(Phase(name="reconstruct", mix=Mix(unlabeled=1), share=share))
        phases.append(Phase(name="fine-tune", mix=Mix(memory=1), lr_scale=self.config.fine_tune_lr))
        return phases[len(done)] if len(done) < len(phases) else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key))
        else:
            yield Term("memory", batch.cross_entropy(net.logits(*batch.supervised)))
