"""FixMatch with replay: confident guesses of weak views are the targets of strong ones (Sohn et al., NeurIPS 2020)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dietcl.methods.base import Batch, Mix, Net, Phase, PlannedMethod, Segment, Term, TimeStep
from dietcl.methods.semi_supervised_options import FixMatchOptions


class FixMatch(PlannedMethod):
    """FixMatch with experience replay."""

    Config = FixMatchOptions
    config: FixMatchOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        # Guesses are among the classes revealed in this time step; without any there is nothing to guess.
        unlabeled = self.config.unlabeled if len(step.labeled) and len(step.unlabeled) else 0.0
        labels = (1 - unlabeled) / 2
        mix = Mix(unlabeled=unlabeled, labeled=labels, memory=labels, past_only=True)
        return [Phase(name="match", mix=mix, price=1 + unlabeled / 3)]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if batch.unlabeled is None:
            yield Term("replay", batch.cross_entropy(net.logits(*batch.supervised)))
            return
        guesses = net.scores(batch.unlabeled.view("weak"), "guess")[:, batch.classes].softmax(1)
        probabilities, places = guesses.max(1)
        is_sure = probabilities >= self.config.threshold
        # Guesses below the threshold are run as well, so that the cost does not depend on the images.
        strong = replace(batch.unlabeled, images=batch.unlabeled.view("strong", strong=True))
        *logits, guessed = net.logits(*batch.supervised, strong)
        yield Term("replay", batch.cross_entropy(logits))
        losses = -guessed.log_softmax(1).gather(1, batch.classes[places][:, None])[:, 0]
        yield Term("guess", (losses * is_sure).mean(), self.config.strength)
