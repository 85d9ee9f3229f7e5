"""FixMatch with replay: confident guesses of weak views are the targets of strong ones (Sohn et al., NeurIPS 2020)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


class FixMatch(Method):
    """Replays labels half and half, and learns from its own confident guesses of unlabeled images."""

    keeps = "row numbers of all labels"
    cost = "1, and 4/3 for an unlabeled image (weak view 1/3)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of FixMatch."""

        unlabeled: float = 1 / 3
        """Share of unlabeled images in a batch (0: balanced replay); the rest is half this time step's labels, half
        the past's."""
        threshold: float = 0.95
        """Learn from a guess of at least this probability (above 1: from none)."""
        strength: float = 1.0
        """Weight of the guesses."""

        def __post_init__(self) -> None:
            if not 0 <= self.unlabeled < 1:
                raise UserError(f"--unlabeled {self.unlabeled}: give a share from 0 that leaves room for labels")
            if not self.threshold >= 0:
                raise UserError(f"--threshold {self.threshold}: give a probability, or more than 1 for no guesses")
            if not 0 <= self.strength < math.inf:
                raise UserError(f"--strength {self.strength}: give a weight from 0")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        # Guesses are among the classes revealed in this time step; without any there is nothing to guess.
        unlabeled = self.config.unlabeled if len(step.labeled) and len(step.unlabeled) else 0.0
        labels = (1 - unlabeled) / 2
        mix = Mix(unlabeled=unlabeled, labeled=labels, memory=labels, past_only=True)
        return Phase(name="match", mix=mix, price=1 + unlabeled / 3)

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        if batch.unlabeled is None:
            yield Term("replay", batch.cross_entropy(net.logits(*batch.supervised)))
            return
        targets, is_sure = self._guess(net, batch.unlabeled, batch.classes)
        # Unsure guesses are run as well, so that the cost does not depend on the images.
        strong = replace(batch.unlabeled, images=batch.unlabeled.view("strong", strong=True))
        *logits, guessed = net.logits(*batch.supervised, strong)
        yield Term("replay", batch.cross_entropy(logits))
        losses = -guessed.log_softmax(1).gather(1, targets[:, None])[:, 0]
        yield Term("guess", (losses * is_sure).mean(), self.config.strength)

    def _guess(self, net: "Net", part: "Part", classes: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the likeliest of some classes for each image, and whether it is likely enough."""
        probability, place = net.scores(part.view("weak"), "guess")[:, classes].softmax(1).max(1)
        return classes[place], probability >= self.config.threshold
