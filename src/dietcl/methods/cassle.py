"""CaSSLe (Fini et al. 2022) with Barlow Twins (Zbontar et al. 2021), and a classifier of the labels on top."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep

_LEAST = 1 / 8  # share of a pool below which a small micro-batch has no place for an image of it


class CaSSLe(Method):
    """Learns features from pairs of views while still able to predict its former features, then a classifier."""

    keeps = "row numbers of all labels; the network of the time step before; projector and predictor"
    cost = "2, and 8/3 after the first time step (teacher 2/3); the classifier 1/3"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of CaSSLe."""

        ssl: float = 0.8
        """Share of the budget that is spent on views; the rest goes to the classifier."""
        strength: float = 1.0
        """Weight of the distillation (0: fine-tuned Barlow Twins without a teacher)."""
        off_diagonal: float = 5e-3
        """Weight of the redundancy between features."""
        scale: float = 0.1
        """Factor of every Barlow Twins loss."""
        width: int = 2048
        """Number of features that the projector makes."""
        classifier: Literal["probe", "fine_tune"] = "probe"
        """probe: the labels train the head alone; fine_tune: the encoder too, at three times the price."""

        def __post_init__(self) -> None:
            if not 0 <= self.ssl < 1:
                raise UserError(f"--ssl {self.ssl}: give a share from 0 and below 1, or no classifier is learned")
            for option in ("strength", "off_diagonal"):
                if not 0 <= getattr(self, option) < math.inf:
                    name = option.replace("_", "-")
                    raise UserError(f"--{name} {getattr(self, option)}: give a weight from 0")
            if not 0 < self.scale < math.inf:
                raise UserError(f"--scale {self.scale}: give a factor above 0")
            if self.width < 1:
                raise UserError(f"--width {self.width}: give at least one feature")

    def __init__(self, config: Config) -> None:
        from dietcl.methods.pieces.teacher import Teacher

        super().__init__(config)
        self._teacher = Teacher()

    def setup(self, net: "Net") -> None:
        from dietcl.methods.pieces.barlow import projector

        width = self.config.width
        self._projector = net.build(lambda: projector(net.dim, width), "projector")
        self._predictor = net.build(lambda: projector(width, width, layers=2), "predictor")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        phases = [Phase(name="classifier", mix=Mix(memory=1), price=1 / 3 if self.config.classifier == "probe" else 1)]
        if self.config.ssl and _has_pairs(step):
            price = 8 / 3 if self._teacher else 2
            share = self.config.ssl if step.seen_classes else 1.0  # without any class there is nothing to classify
            phases.insert(0, Phase(name="ssl", mix=_arrived(step), share=share, price=price))
        return phases[len(done)] if len(done) < len(phases) else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        if phase.name == "ssl":
            yield from self._views(net, batch)
        else:
            part = batch.memory
            assert part is not None
            if self.config.classifier == "probe":
                logits = net.classify(net.features(part.images, "features"), "head")
            else:
                (logits,) = net.logits(part)
            yield Term("classifier", part.cross_entropy(logits))

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        if self.config.strength and self.config.ssl and _has_pairs(step):
            self._teacher.take(net, projector=self._projector)

    def modules(self) -> "dict[str, torch.nn.Module]":
        return {"projector": self._projector, "predictor": self._predictor}

    def state(self) -> "dict[str, torch.Tensor]":
        return self._teacher.state()

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        self._teacher.load_state(state)

    def _views(self, net: "Net", batch: "Batch") -> Iterator[Term]:
        from dietcl.methods.pieces.barlow import barlow_twins, correlation_flops, two_views

        config, teacher = self.config, self._teacher
        images = two_views(batch.parts)
        features = net.run(self._projector, net.encode(images, "views"), purpose="projector")
        one, two = features.chunk(2)
        net.charge("projector", correlation_flops(one))
        yield Term("views", barlow_twins(one, two, config.off_diagonal, config.scale))
        if teacher:
            former = net.features(images, "teacher", teacher.weights)
            former = net.run(self._projector, former, purpose="teacher", weights=teacher.module("projector"))
            predicted = net.run(self._predictor, features, purpose="predictor")
            net.charge("predictor", 2 * correlation_flops(one, factors=1))
            pairs = zip(predicted.chunk(2), former.chunk(2), strict=True)
            one, two = (barlow_twins(new, old, config.off_diagonal, config.scale) for new, old in pairs)
            yield Term("distill", (one + two) / 2, config.strength)


def _has_pairs(step: "TimeStep") -> bool:
    """Tell whether there are two images, without which no feature varies."""
    return len(step.labeled) + len(step.unlabeled) > 1


def _arrived(step: "TimeStep") -> Mix:
    """Draw every image of the time step equally often, but leave out a pool that is too small a part of them."""
    labeled, unlabeled = step.realized_rate, 1 - step.realized_rate
    return Mix(labeled=labeled * (labeled >= _LEAST), unlabeled=unlabeled * (unlabeled >= _LEAST))
