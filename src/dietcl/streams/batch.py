"""What a method computes its losses on: the parts of one micro-batch, one per pool."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dietcl.streams.options import PoolName

# Makes further random views of a part's images: a name that tells views apart, and whether to distort strongly.
ViewMaker = Callable[[str, bool], torch.Tensor]


@dataclass(frozen=True)
class Part:
    """The images of one pool in a micro-batch, augmented; a labeled part knows its targets, mixed or not."""

    pool: PoolName
    images: torch.Tensor
    labels: torch.Tensor | None = None
    partners: torch.Tensor | None = None  # labels of the images mixed in
    weight: torch.Tensor | None = None  # share of the image's own label, per image
    smoothing: float = 0.0
    rows: torch.Tensor | None = None  # opaque row numbers, on the CPU
    view_maker: ViewMaker | None = None

    def __len__(self) -> int:
        return len(self.images)

    def view(self, name: str, strong: bool = False) -> torch.Tensor:
        """Return another random crop of the same images, not mixed; strong ones are also recolored and cut out of."""
        assert self.view_maker is not None, "this part cannot make views"
        return self.view_maker(name, strong)

    def take(self, where: slice) -> "Part":
        """Return some of the images."""
        tensors = {name: getattr(self, name) for name in ("images", "labels", "partners", "weight", "rows")}
        cut: dict[str, Any] = {name: values[where] for name, values in tensors.items() if values is not None}
        if maker := self.view_maker:
            cut["view_maker"] = lambda name, strong: maker(name, strong)[where]
        return replace(self, **cut)

    def with_values(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the row numbers and labels of the images beside values that were computed from them."""
        assert self.rows is not None
        assert self.labels is not None
        return {"rows": self.rows, "labels": self.labels, "values": values}

    def cross_entropy(self, logits: torch.Tensor, only: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean loss against the mixed and smoothed targets, over all classes or over some only."""
        # Leaving a class out is a logit of minus infinity; the smoothing mass is spread over the classes left in.
        assert self.labels is not None, "an unlabeled part has no targets"
        labels, partners = self.labels, self.partners
        if only is not None:
            position = torch.full((logits.shape[1],), -1, device=logits.device)
            position[only] = torch.arange(len(only), device=logits.device)
            logits, labels = logits[:, only], position[labels]
            partners = None if partners is None else position[partners]
        log_p = logits.log_softmax(1)
        loss = -log_p.gather(1, labels[:, None])[:, 0]
        if partners is not None:
            assert self.weight is not None
            mixed_in = -log_p.gather(1, partners[:, None])[:, 0]
            loss = self.weight * loss + (1 - self.weight) * mixed_in
        if self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * log_p.mean(1)
        return loss.mean()

    def present(self) -> torch.Tensor:
        """Return the class numbers that occur among the labels and the labels mixed in, sorted."""
        assert self.labels is not None, "an unlabeled part has no classes"
        both = self.labels if self.partners is None else torch.cat([self.labels, self.partners])
        found: torch.Tensor = both.unique()
        return found


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch; a pool with nothing drawn from it is None."""

    labeled: Part | None = None
    unlabeled: Part | None = None
    memory: Part | None = None
    larder: Part | None = None
    classes: torch.Tensor  # class numbers revealed in this time step
    key: tuple[int | str, ...]  # (seed, t, phase, update, micro-batch)

    @property
    def parts(self) -> list[Part]:
        """All parts."""
        return [part for part in (self.unlabeled, self.labeled, self.memory, self.larder) if part is not None]

    @property
    def supervised(self) -> list[Part]:
        """The parts that have labels, revealed or guessed."""
        return [part for part in (self.labeled, self.memory, self.larder) if part is not None]

    def cross_entropy(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one mean over all images that have labels."""
        return self.mean([part.cross_entropy(scores) for part, scores in zip(self.supervised, logits, strict=True)])

    def mean(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one mean over all images that have labels from the means over each such part."""
        total = sum(len(part) for part in self.supervised)
        pairs = zip(self.supervised, losses, strict=True)
        return torch.stack([loss * (len(part) / total) for part, loss in pairs]).sum()
