"""Learning without forgetting (Li and Hoiem 2016), with one head for all classes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class LwF(Method):
    """Fine-tunes while answering for earlier classes as the network did at the end of the last time step."""

    keeps = "the network of the time step before"
    cost = "1, and 4/3 after the first time step (teacher 1/3)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of learning without forgetting."""

        strength: float = 1.0
        """Weight of the distillation (0: fine-tuning without a teacher)."""
        temperature: float = 2.0
        """Divides the logits that are compared; above 1, unlikely classes count more."""

        def __post_init__(self) -> None:
            if not 0 <= self.strength < math.inf:
                raise UserError(f"--strength {self.strength}: give a weight from 0")
            if not 0 < self.temperature < math.inf:
                raise UserError(f"--temperature {self.temperature}: give a number above 0")

    def __init__(self, config: Config) -> None:
        from dietcl.methods.pieces.teacher import Teacher

        super().__init__(config)
        self._teacher = Teacher()

    def begin_step(self, net: "Net", step: "TimeStep") -> None:
        known = step.seen_classes - len(step.new_classes)
        # A single class has probability one whatever is learned, so a teacher of one would be paid for nothing.
        if self.config.strength and known > 1:
            self._teacher.take(net, known)

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done or not len(step.labeled):
            return None
        return Phase(name="fine-tune", mix=Mix(labeled=1), price=4 / 3 if self._teacher else 1.0)

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        part = batch.labeled
        assert part is not None
        (logits,) = net.logits(part)
        yield Term("labeled", part.cross_entropy(logits))
        if self._teacher:
            taught = net.scores(part.images, "teacher", self._teacher.weights)
            yield Term("distill", self._divergence(taught, logits[:, : taught.shape[1]]), self.config.strength)

    def state(self) -> "dict[str, torch.Tensor]":
        return self._teacher.state()

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        self._teacher.load_state(state)

    def _divergence(self, taught: "torch.Tensor", learned: "torch.Tensor") -> "torch.Tensor":
        """Return the mean divergence of the learned from the taught distribution.

        Its gradient shrinks with the square of the temperature, which is made up for.
        """
        temperature: float = self.config.temperature
        log_p, log_q = (taught / temperature).log_softmax(1), (learned / temperature).log_softmax(1)
        return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()
