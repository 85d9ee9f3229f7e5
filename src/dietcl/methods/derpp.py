"""DER++: replay of labels and of the logits that the network once gave (Buzzega et al., NeurIPS 2020)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from torch import Tensor

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


class DERpp(Method):
    """Replays the past twice: by its labels, and by the logits that its images had when their time step ended."""

    keeps = "row numbers of all labels; the logits of their images"
    cost = "1, and 1/3 for each new label (its logits)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of DER++."""

        alpha: float = 0.3
        """Weight of the distance to the stored logits (0: none are stored, and half of the batch is memory)."""
        beta: float = 0.5
        """Weight of the cross-entropy on the memory."""

        def __post_init__(self) -> None:
            for name in ("alpha", "beta"):
                if not 0 <= getattr(self, name) < math.inf:
                    raise UserError(f"--{name} {getattr(self, name)}: give a weight from 0")

    def setup(self, net: "Net") -> None:
        from dietcl.methods.pieces.store import Store

        self._store = Store()

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if not self.config.alpha:
            mix = Mix(labeled=1 / 2, memory=1 / 2, past_only=True)
            return None if done else Phase(name="replay", mix=mix)
        reserve = Reserve(forward=len(step.labeled))
        stretches: list[Stretch] = [
            Phase(name="replay", mix=Mix(labeled=1 / 3, memory=2 / 3, past_only=True), reserve=reserve)
        ]
        if len(step.labeled):
            stretches.append(Sweep(name="logits", pool="labeled"))
        return stretches[len(done)] if len(done) < len(stretches) else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        distilled, replayed = self._split(batch.memory)
        batch = replace(batch, memory=replayed)
        parts = batch.supervised
        logits = net.logits(*parts, *([] if distilled is None else [distilled]))
        losses = [part.cross_entropy(scores) for part, scores in zip(parts, logits, strict=False)]
        if replayed is not None:
            losses[-1] = self.config.beta * losses[-1]
        # One mean, as in replay: half of the sum of both means that the authors take.
        yield Term("replay", batch.mean(losses))
        if distilled is not None and replayed is not None:
            share = len(replayed) / sum(len(part) for part in parts)
            yield Term("logits", self._distance(distilled, logits[-1]), self.config.alpha * share)

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, Tensor]":
        return part.with_values(net.scores(part.images, "logits"))

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, Tensor]") -> None:
        self._store.add(**gathered)

    def state(self) -> "dict[str, Tensor]":
        return self._store.state()

    def load_state(self, state: "dict[str, Tensor]") -> None:
        self._store.load_state(state)

    def _split(self, memory: "Part | None") -> "tuple[Part | None, Part | None]":
        """Return the images whose logits are compared, as plain crops, and those whose labels are replayed."""
        if memory is None or not self.config.alpha or len(memory) < 2:
            return None, memory
        edge = len(memory) - len(memory) // 2
        first = memory.take(slice(0, edge))
        return replace(first, images=first.view("logits")), memory.take(slice(edge, len(memory)))

    def _distance(self, part: "Part", logits: "Tensor") -> "Tensor":
        """Return the mean over images, and over the classes that each had logits for, of the squared difference."""
        assert part.rows is not None
        stored = self._store.values_of(part.rows).to(logits)
        known = ~stored.isnan()
        squares = (logits[:, : stored.shape[1]] - stored.where(known, 0.0)).square().where(known, 0.0)
        of_image = squares.sum(1) / known.sum(1).clamp(min=1)
        return of_image.sum() / known.any(1).sum().clamp(min=1)
