"""Elastic weight consolidation (Kirkpatrick et al. 2017); online after Schwarz et al. (2018)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dietcl.errors import UserError
from dietcl.methods.base import Sweep
from dietcl.methods.pieces.anchored import Anchored

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Part
    from dietcl.streams.stream import TimeStep

FEW_PAIRS = 5  # when fewer than these fit into the memory, the user is told


class EWC(Anchored):
    """Fine-tunes, but holds weights that the Fisher information says mattered near their former values."""

    keeps = "weights and their importance, once per time step (--online: once)"
    cost = "1, and 1 per label for the Fisher pass"
    sweep = "fisher"
    _has_warned = False

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of elastic weight consolidation."""

        strength: float = 10.0
        """Weight of the penalty (0: fine-tuning without a Fisher pass)."""
        online: bool = False
        """Keep one importance for all time steps together (otherwise one for each, so that memory grows with them)."""
        decay: float = 1.0
        """Factor on the importance so far when another time step's is added, with --online."""
        fisher: Literal["per_sample", "batch_mean"] = "per_sample"
        """Square the gradient of each image, or that of a micro-batch's mean, which is much smaller."""

        def __post_init__(self) -> None:
            if not 0 <= self.strength < math.inf:
                raise UserError(f"--strength {self.strength}: give a weight from 0")
            if not 0 <= self.decay <= 1:
                raise UserError(f"--decay {self.decay}: give a factor from 0 to 1")
            if self.decay != 1 and not self.online:
                raise UserError(f"--decay {self.decay}: only with --online are importances added up; use both")
            if self.fisher not in ("per_sample", "batch_mean"):
                raise UserError(f"--fisher {self.fisher}: choose per_sample or batch_mean")

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        from dietcl.methods.pieces.importance import counted

        if self.config.fisher == "per_sample":
            return counted(net.squared_gradients(part, _own_loss), len(part))
        gradients = net.gradients(part, _own_loss)
        return counted({name: value.square() for name, value in gradients.items()})

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        from dietcl.methods.pieces.importance import Pair, add

        importance = self._estimate.take()
        if not importance:
            return
        if self.config.online and self._pairs:
            importance = add(self._pairs.pop().importance, importance, self.config.decay)
        self._pairs.append(Pair(net.copy(), importance))
        if not self.config.online:
            self._warn_of_memory(net)

    def _warn_of_memory(self, net: "Net") -> None:
        from dietcl.methods.pieces import importance

        room = importance.room_for_more(self._pairs)
        if room < FEW_PAIRS and not self._has_warned:
            self._has_warned = True
            net.say(
                f"ewc: memory is left for about {max(0, int(room))} more time steps, each of which adds "
                f"{self._pairs[-1].nbytes / 1e9:.1f} GB; with --online it would not grow"
            )


def _own_loss(part: "Part", logits: "torch.Tensor") -> "torch.Tensor":
    return part.cross_entropy(logits)
