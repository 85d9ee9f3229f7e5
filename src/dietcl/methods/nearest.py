"""Classification by the nearest class means or the nearest stored features of a frozen encoder."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot, pad

from dietcl.methods.base import Net, Part, PlannedMethod, Segment, Sweep, TimeStep
from dietcl.methods.pieces.store import StoringMethod, vote
from dietcl.methods.supervised_options import ACMOptions, NCMOptions

SCALE = 10.0  # from cosines to logits, so that losses are comparable


class NCM(PlannedMethod):
    """Nearest class mean by cosine, known as SimpleCIL (Zhou et al. 2023)."""

    Config = NCMOptions

    def setup(self, net: Net) -> None:
        self.sums, self.counts = torch.zeros(0, net.dim), torch.zeros(0)

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        return [Sweep(name="means", pool="labeled")] if len(step.labeled) else []

    def begin_step(self, net: Net, step: TimeStep) -> None:
        new = net.classes - len(self.counts)
        self.sums, self.counts = pad(self.sums, (0, 0, 0, new)), pad(self.counts, (0, new))

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        features = net.features(part.images, "features")
        assert part.labels is not None
        member = one_hot(part.labels, len(self.counts)).to(features)
        return {"sums": member.T @ features, "counts": member.sum(0)}

    def absorb(self, net: Net, sweep: Sweep, gathered: dict[str, Tensor]) -> None:
        sums, counts = gathered["sums"], gathered["counts"]
        self.sums, self.counts = self.sums.to(sums) + sums, self.counts.to(counts) + counts

    def predict(self, net: Net, images: Tensor) -> Tensor:
        features = net.features(images, "predict")
        # The sum has the direction of the mean.
        cosine = normalize(features) @ normalize(self.sums.to(features)).T
        return SCALE * cosine.masked_fill(self.counts.to(features) == 0, -1.0)

    def state(self) -> dict[str, Tensor]:
        return {"sums": self.sums, "counts": self.counts}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.sums, self.counts = state["sums"], state["counts"]


class ACM(StoringMethod):
    """Nearest neighbors by cosine, found exactly where ACM approximates them (Prabhu et al. 2023)."""

    Config = ACMOptions
    config: ACMOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        return [Sweep(name="features", pool="labeled")] if len(step.labeled) else []

    def predict(self, net: Net, images: Tensor) -> Tensor:
        return vote(net.features(images, "predict"), self.store, self.config.neighbors, net.classes)
