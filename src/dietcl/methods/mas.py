"""Memory aware synapses (Aljundi et al. 2018)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Sweep
from dietcl.methods.pieces.anchored import Anchored

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Part
    from dietcl.streams.stream import TimeStep


class MAS(Anchored):
    """Fine-tunes, but holds weights that the outputs are sensitive to near their former values."""

    keeps = "weights and their importance"
    cost = "1, and 1 per label for the importance pass"
    sweep = "importance"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of memory aware synapses."""

        strength: float = 1.0
        """Weight of the penalty (0: fine-tuning without an importance pass)."""
        decay: float = 0.5
        """Share of the importance so far in the next one; this time step's own has the rest."""

        def __post_init__(self) -> None:
            if not 0 <= self.strength < math.inf:
                raise UserError(f"--strength {self.strength}: give a weight from 0")
            if not 0 <= self.decay <= 1:
                raise UserError(f"--decay {self.decay}: give a share from 0 to 1")

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        from dietcl.methods.pieces.importance import counted

        gradients = net.gradients(part, _squared_length)
        return counted({name: value.abs() for name, value in gradients.items()})

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        from dietcl.methods.pieces.importance import Pair, add

        importance, decay = self._estimate.take(), self.config.decay
        if not importance:
            return
        if self._pairs:  # the first estimate has nothing to be mixed with
            fresh = {name: (1 - decay) * value for name, value in importance.items()}
            importance = add(self._pairs[0].importance, fresh, decay)
        self._pairs = [Pair(net.copy(), importance)]


def _squared_length(part: "Part", logits: "torch.Tensor") -> "torch.Tensor":
    return logits.square().sum(1).mean()
