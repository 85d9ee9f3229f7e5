"""Controls of Larder and DietCL, each with one part left out or exchanged: methods of the reproduction alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from dietcl import Method, Mix, Phase, Term, register_method
from dietcl.methods import METHODS
from dietcl.methods.base import Batch, Net, Part, Segment, TimeStep
from dietcl.methods.dietcl import DietCL
from dietcl.methods.fixmatch import FixMatch
from dietcl.methods.larder import LarderMethod
from dietcl.methods.pieces.averaged import AveragedWeights
from dietcl.methods.pieces.guessing import Guesser
from dietcl.methods.pieces.larder import Larder
from dietcl.methods.pieces.trust import Evidence
from dietcl.models.network import Weights
from reproduction.oracle import ORACLE, LarderOracle
from reproduction.tried import TRIED

# What is learned of a guess.


class LarderHard(LarderMethod):
    """Larder that replays guesses as if they were labels."""

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        yield Term(self.term, batch.cross_entropy(net.logits(*batch.supervised)))


class UncorrectedGuesses(Larder):
    """A larder whose beliefs are the targets, whatever the network answers."""

    def cross_entropy(self, part: Part, logits: Tensor) -> Tensor:
        assert part.rows is not None
        assert part.weight is not None
        log_p = logits.log_softmax(1)
        beliefs, weight = self.beliefs(part.rows, logits.shape[1]).to(logits), part.weight[:, None]
        loss = -((weight * beliefs + (1 - weight) * beliefs.flip(0)) * log_p).sum(1)
        return ((1 - part.smoothing) * loss - part.smoothing * log_p.mean(1)).mean()


class LarderUncorrected(LarderMethod):
    """Larder that learns what it believed of an image when it arrived, not corrected by the network's answer."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.larder = UncorrectedGuesses()


# How labels are guessed.


class SpreadAlone(Guesser):
    """Labels that spread along a graph of nearest neighbors."""

    def shares(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        shares = self._spread(labels, classes)
        return shares, shares


class RidgeAlone(Guesser):
    """A ridge classifier."""

    def shares(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        shares = self._fit(labels, classes)
        return shares, shares


class OwnWord(Evidence):
    """Expects a guesser to be right as often as it is confident, as there is no other one to agree with."""

    def chance_of_right(self, confidence: Tensor, expected: float) -> Tensor:
        return super().chance_of_right(confidence, float(confidence.mean()))


class LarderSpread(LarderMethod):
    """Larder with one guesser: labels that spread along a graph of nearest neighbors."""

    guesser: ClassVar[type[Guesser]] = SpreadAlone

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.evidence = OwnWord()


class LarderRidge(LarderSpread):
    """Larder with one guesser: a ridge classifier."""

    guesser = RidgeAlone


# What is remembered.


class Certainty(Evidence):
    """Takes every guess for right."""

    def chance_of_right(self, confidence: Tensor, expected: float) -> Tensor:
        return torch.ones_like(confidence, dtype=torch.float64)


class LarderAlike(LarderMethod):
    """Larder that remembers every guess and trusts all alike, without asking for evidence."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.evidence = Certainty()


class LarderForgetful(LarderMethod):
    """Larder that forgets its guesses when a time step begins."""

    def begin_step(self, net: Net, step: TimeStep) -> None:
        super().begin_step(net, step)
        self.larder = Larder()


# Under which weights it answers.


class LarderLastWeights(LarderMethod):
    """Larder that guesses under averaged weights and answers under the last ones."""

    def predict(self, net: Net, images: Tensor) -> Tensor:
        return net.scores(images, "predict")

    def predict_weights(self) -> Weights | None:
        return None


class AveragedAnswers(Method):
    """Lets a method answer under averaged weights, as Larder does."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.averaged = AveragedWeights()

    def begin_step(self, net: Net, step: TimeStep) -> None:
        super().begin_step(net, step)
        self.averaged.begin_step(net)

    def after_update(self, net: Net, phase: Phase) -> None:
        super().after_update(net, phase)
        self.averaged.update(net)

    def predict(self, net: Net, images: Tensor) -> Tensor:
        return net.scores(images, "predict", self.averaged.values or None)  # a loaded model has them for its own

    def predict_weights(self) -> Weights | None:
        return self.averaged.values

    def predict_state(self) -> dict[str, Tensor]:
        return {}

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **self.averaged.state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.averaged.load_state(state)


class LarderFixMatch(AveragedAnswers, FixMatch):
    """FixMatch's guesses, which are not remembered, beside Larder's replay of labels and its averaged answers."""

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        unlabeled = self.config.unlabeled if len(step.labeled) and len(step.unlabeled) else 0.0
        return [Phase(name="match", mix=Mix(unlabeled=unlabeled, memory=1 - unlabeled), price=1 + unlabeled / 3)]


class DietCLAveraged(AveragedAnswers, DietCL):
    """DietCL that answers under averaged weights."""


CONTROLS: dict[str, type[Method]] = {
    "larder_hard": LarderHard,
    "larder_uncorrected": LarderUncorrected,
    "larder_spread": LarderSpread,
    "larder_ridge": LarderRidge,
    "larder_alike": LarderAlike,
    "larder_forgetful": LarderForgetful,
    "larder_last_weights": LarderLastWeights,
    "larder_fixmatch": LarderFixMatch,
    ORACLE: LarderOracle,
    "dietcl_averaged": DietCLAveraged,
}


@contextmanager
def known_controls() -> Iterator[None]:
    """Register the controls and what was tried for a while; whoever does not ask for them never sees them."""
    known = dict(METHODS)
    for name, control in {**CONTROLS, **TRIED}.items():
        register_method(name)(control)
    try:
        yield
    finally:
        METHODS.clear()
        METHODS.update(known)
