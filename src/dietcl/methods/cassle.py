"""CaSSLe (Fini et al. 2022) with Barlow Twins (Zbontar et al. 2021), and a classifier on top."""

from collections.abc import Iterator, Sequence

from torch import nn

from dietcl.methods.base import Batch, Mix, Net, Phase, Segment, Term, TimeStep
from dietcl.methods.pieces.barlow import barlow_twins, correlation_flops, projector, two_views
from dietcl.methods.pieces.store import TaughtMethod
from dietcl.methods.semi_supervised_options import CaSSLeOptions
from dietcl.models.network import below

_LEAST = 1 / 8  # a pool with a smaller share may get no image of a small micro-batch


class CaSSLe(TaughtMethod):
    """Barlow Twins with distillation from the previous network, and a classifier."""

    Config = CaSSLeOptions
    config: CaSSLeOptions

    def setup(self, net: Net) -> None:
        width = self.config.width
        self._projector = net.build(lambda: projector(net.dim, width), "projector")
        self._predictor = net.build(lambda: projector(width, width, layers=2), "predictor")

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        phases = [Phase(name="classifier", mix=Mix(memory=1), price=1 / 3 if self.config.classifier == "probe" else 1)]
        if self.config.ssl and _has_pairs(step):
            price = 8 / 3 if self.teacher else 2
            share = self.config.ssl if step.seen_classes else 1.0  # without any class there is nothing to classify
            # Every image of the time step is drawn equally often.
            labeled, unlabeled = (rate * (rate >= _LEAST) for rate in (step.realized_rate, 1 - step.realized_rate))
            mix = Mix(labeled=labeled, unlabeled=unlabeled)
            phases.insert(0, Phase(name="ssl", mix=mix, share=share, price=price))
        return phases

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if phase.name == "ssl":
            yield from self._views(net, batch)
        elif self.config.classifier == "probe":
            (part,) = batch.supervised
            logits = net.classify(net.features(part.images, "features"), "head")
            yield Term("classifier", part.cross_entropy(logits))
        else:
            yield Term("classifier", batch.cross_entropy(net.logits(*batch.supervised)))

    def end_step(self, net: Net, step: TimeStep) -> None:
        if self.config.strength and self.config.ssl and _has_pairs(step):
            projector = {f"projector.{name}": v.detach().clone() for name, v in self._projector.state_dict().items()}
            self.teacher = net.copy() | projector

    def modules(self) -> dict[str, nn.Module]:
        return {"projector": self._projector, "predictor": self._predictor}

    def _views(self, net: Net, batch: Batch) -> Iterator[Term]:
        config, teacher = self.config, self.teacher
        images = two_views(batch.parts)
        features = net.run(self._projector, net.encode(images, "views"), purpose="projector")
        one, two = features.chunk(2)
        net.charge("projector", correlation_flops(one))
        yield Term("views", barlow_twins(one, two, config.off_diagonal, config.scale))
        if teacher:
            former = net.features(images, "teacher", teacher)
            former = net.run(self._projector, former, purpose="teacher", weights=below("projector", teacher))
            predicted = net.run(self._predictor, features, purpose="predictor")
            net.charge("predictor", 2 * correlation_flops(one, factors=1))
            pairs = zip(predicted.chunk(2), former.chunk(2), strict=True)
            one, two = (barlow_twins(new, old, config.off_diagonal, config.scale) for new, old in pairs)
            yield Term("distill", (one + two) / 2, config.strength)


def _has_pairs(step: TimeStep) -> bool:
    """Return whether there are two images; a single one has no correlation between features."""
    return len(step.labeled) + len(step.unlabeled) > 1
