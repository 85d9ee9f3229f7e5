"""ER-ACE: replay whose incoming labels compete with each other only (Caccia et al., ICLR 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep

SCALE = 10.0  # of the cosine head


class ERACE(Method):
    """Replays the past like ER, but incoming images push no class down that is not among them."""

    keeps = "row numbers of all labels"
    cost = "1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of ER-ACE."""

        cosine: bool = True
        """Compare directions of features in the head (otherwise it is linear)."""

    @property
    def cosine_scale(self) -> float | None:
        return SCALE if self.config.cosine else None

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        # The memory holds this time step's labels too: under the mask, nothing else sets new classes against old ones.
        return Phase(name="replay", mix=Mix(labeled=1 / 2, memory=1 / 2, past_only=step.is_first))

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        parts, losses = batch.supervised, []
        for part, logits in zip(parts, net.logits(*parts), strict=True):
            # Without a past there is nothing to protect.
            alone = part.pool == "labeled" and batch.memory is not None
            losses.append(part.cross_entropy(logits, part.present() if alone else None))
        yield Term("replay", batch.mean(losses))
