"""DER++: replay of labels and of the logits that the network once gave (Buzzega et al., NeurIPS 2020)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from dietcl.methods.base import Batch, Mix, Net, Part, Phase, Reserve, Segment, Sweep, Term, TimeStep
from dietcl.methods.pieces.store import StoringMethod
from dietcl.methods.supervised_options import DERppOptions


class DERpp(StoringMethod):
    """Dark experience replay with labels."""

    Config = DERppOptions
    config: DERppOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if not self.config.alpha:
            return [Phase(name="replay", mix=Mix(labeled=1 / 2, memory=1 / 2, past_only=True))]
        mix = Mix(labeled=1 / 3, memory=2 / 3, past_only=True)
        replay = Phase(name="replay", mix=mix, reserve=Reserve(forward=len(step.labeled)))
        return [replay, Sweep(name="logits", pool="labeled")] if len(step.labeled) else [replay]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        distilled, replayed = self._split(batch.memory)
        batch = replace(batch, memory=replayed)
        parts = batch.supervised
        logits = net.logits(*parts, *([] if distilled is None else [distilled]))
        losses = [part.cross_entropy(scores) for part, scores in zip(parts, logits, strict=False)]
        if replayed is not None:
            losses[-1] = self.config.beta * losses[-1]
        # One mean, as in replay; the authors take the sum of two means, which is twice this.
        yield Term("replay", batch.mean(losses))
        if distilled is not None and replayed is not None:
            share = len(replayed) / sum(len(part) for part in parts)
            yield Term("logits", self._distance(distilled, logits[-1]), self.config.alpha * share)

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        return part.with_values(net.scores(part.images, "logits"))

    def _split(self, memory: Part | None) -> tuple[Part | None, Part | None]:
        """Return the images whose logits are compared, as plain crops, and those whose labels are replayed."""
        if memory is None or not self.config.alpha or len(memory) < 2:
            return None, memory
        split = len(memory) - len(memory) // 2
        first = memory.take(slice(0, split))
        return replace(first, images=first.view("logits")), memory.take(slice(split, len(memory)))

    def _distance(self, part: Part, logits: Tensor) -> Tensor:
        """Return the mean over images, and over the classes that each had logits for, of the squared difference."""
        assert part.rows is not None
        stored = self.store.values_of(part.rows).to(logits)
        known = ~stored.isnan()
        squares = (logits[:, : stored.shape[1]] - stored.where(known, 0.0)).square().where(known, 0.0)
        of_image = squares.sum(1) / known.sum(1).clamp(min=1)
        return of_image.sum() / known.any(1).sum().clamp(min=1)
