"""Learning without forgetting (Li and Hoiem 2016), with one head for all classes."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from dietcl.methods.base import Batch, Mix, Net, Phase, Segment, Term, TimeStep
from dietcl.methods.pieces.store import TaughtMethod
from dietcl.methods.supervised_options import LwFOptions


class LwF(TaughtMethod):
    """Learning without forgetting."""

    Config = LwFOptions
    config: LwFOptions

    def begin_step(self, net: Net, step: TimeStep) -> None:
        known = step.seen_classes - len(step.new_classes)
        # A single class always has probability one, so its teacher would cost and teach nothing.
        if self.config.strength and known > 1:
            weights = net.copy()
            self.teacher = weights | {name: weights[name][:known].clone() for name in ("head.weight", "head.bias")}

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        phase = Phase(name="fine-tune", mix=Mix(labeled=1), price=4 / 3 if self.teacher else 1.0)
        return [phase] if len(step.labeled) else []

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        (part,) = batch.supervised
        (logits,) = net.logits(part)
        yield Term("labeled", part.cross_entropy(logits))
        if self.teacher:
            taught = net.scores(part.images, "teacher", self.teacher)
            yield Term("distill", self._divergence(taught, logits[:, : taught.shape[1]]), self.config.strength)

    def _divergence(self, taught: Tensor, learned: Tensor) -> Tensor:
        """Return the mean divergence of the learned from the taught distribution."""
        # The factor compensates for gradients that shrink with the square of the temperature.
        temperature: float = self.config.temperature
        log_p, log_q = (taught / temperature).log_softmax(1), (learned / temperature).log_softmax(1)
        return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()
