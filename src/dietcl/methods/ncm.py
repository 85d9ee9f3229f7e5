"""Nearest class mean on a frozen encoder, known as SimpleCIL (Zhou et al. 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dietcl.methods.base import Method, Phase, Stretch, Sweep, Term

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep

SCALE = 10.0  # from cosines to logits, so that a loss can tell sure from unsure


class NCM(Method):
    """Gives an image the class whose mean feature points most nearly the same way; the encoder never changes."""

    keeps = "a sum of features and a count for every class"
    cost = "1/3, every label once"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """The nearest class mean has no options."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        import torch

        self.sums, self.counts = torch.zeros(0, 0), torch.zeros(0)

    def setup(self, net: "Net") -> None:
        self.sums = self.sums.new_zeros(0, net.dim)

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        return None if done or not len(step.labeled) else Sweep(name="means", pool="labeled")

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        return iter(())  # it makes no updates

    def begin_step(self, net: "Net", step: "TimeStep") -> None:
        from torch.nn.functional import pad

        new = net.classes - len(self.counts)
        self.sums, self.counts = pad(self.sums, (0, 0, 0, new)), pad(self.counts, (0, new))

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        from torch.nn.functional import one_hot

        features = net.features(part.images, "features")
        assert part.labels is not None
        member = one_hot(part.labels, len(self.counts)).to(features)
        return {"sums": member.T @ features, "counts": member.sum(0)}

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        sums, counts = gathered["sums"], gathered["counts"]
        self.sums, self.counts = self.sums.to(sums) + sums, self.counts.to(counts) + counts

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        from torch.nn.functional import normalize

        features = net.features(images, "predict")
        # A sum points where the mean does.
        cosine = normalize(features) @ normalize(self.sums.to(features)).T
        return SCALE * cosine.masked_fill(self.counts.to(features) == 0, -1.0)

    def state(self) -> "dict[str, torch.Tensor]":
        return {"sums": self.sums, "counts": self.counts}

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        self.sums, self.counts = state["sums"], state["counts"]
