"""Memory aware synapses (Aljundi et al. 2018)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.streams.mix import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.engine.net import Net
    from dietcl.methods.pieces.importance import Pair
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


class MAS(Method):
    """Fine-tunes, but holds weights that the outputs are sensitive to near their former values."""

    keeps = "weights and their importance"
    cost = "1, and 1 per label for the importance pass"

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

    def __init__(self, config: Config) -> None:
        from dietcl.methods.pieces.importance import Estimate

        super().__init__(config)
        self._pair: Pair | None = None
        self._sensitivity = Estimate()

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if not len(step.labeled):
            return None
        if not done:
            reserve = Reserve(importance=len(step.labeled)) if self.config.strength else Reserve()
            return Phase(name="fine-tune", mix=Mix(labeled=1), reserve=reserve)
        return Sweep(name="importance", pool="labeled") if self.config.strength and len(done) == 1 else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        assert batch.labeled is not None
        (logits,) = net.logits(batch.labeled)
        yield Term("labeled", batch.labeled.cross_entropy(logits))
        if self._pair is not None:
            yield Term("penalty", self._pair.penalty(net.weights()), self.config.strength)

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> None:
        gradients = net.gradients(part, _squared_length)
        self._sensitivity.add({name: value.abs() for name, value in gradients.items()})

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        from dietcl.methods.pieces.importance import Pair, add

        importance, decay = self._sensitivity.take(), self.config.decay
        if not importance:
            return
        if self._pair is not None:  # the first estimate has nothing to be mixed with
            fresh = {name: (1 - decay) * value for name, value in importance.items()}
            importance = add(self._pair.importance, fresh, decay)
        self._pair = Pair(net.copy(), importance)

    def state(self) -> "dict[str, torch.Tensor]":
        from dietcl.methods.pieces.importance import pack

        return pack([] if self._pair is None else [self._pair])

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        from dietcl.methods.pieces.importance import unpack

        self._pair = next(iter(unpack(state)), None)


def _squared_length(part: "Part", logits: "torch.Tensor") -> "torch.Tensor":
    return logits.square().sum(1).mean()
