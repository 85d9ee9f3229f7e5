"""DietCL (Zhang et al., ICLR 2024, section 4 and Algorithm 1)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


def limit(threshold: str) -> tuple[float, float]:
    """Return the joint phase's limits: updates' worth of passes, and share of the budget."""
    is_share = threshold.endswith("%")
    try:
        value = float(threshold.removesuffix("%"))
    except ValueError:
        value = math.nan
    if is_share and 0 <= value <= 100:
        return math.inf, value / 100
    if not is_share and value >= 0:
        return value, 1.0
    raise UserError(f"--threshold {threshold}: give a number of updates from 0, a share such as 80%, or auto")


class DietCL(Method):
    """Learns jointly from three pools until the threshold, then from the balanced memory alone."""

    keeps = "row numbers of all labels; the decoder"
    cost = "1 (less in FLOPs: a reconstruction is cheaper)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of DietCL; every part can be switched off."""

        threshold: str = "400"
        """What the joint phase may spend (B): 400 (updates' worth of passes), 80% (of the budget) or auto
        (cross-validated on the first time steps); the rest goes to the memory."""
        alpha: float = 50.0
        """Weight of the reconstruction."""
        unlabeled: float = 1 / 3
        """Share of unlabeled images in a joint batch (0: no reconstruction)."""
        labeled: float = 1 / 3
        """Share of this time step's labels (0: no masked loss)."""
        memory: float = 1 / 3
        """Share of the memory (0: no memory at all, so no phase on it either)."""
        mask_classes: bool = True
        """Restrict the loss on this time step's labels to the classes revealed in it."""
        balance_memory: bool = True
        """Draw every time step of the memory equally often (otherwise every label)."""
        balance_lr: float = 0.1
        """Learning-rate factor of the memory-only phase."""
        reconstruct: Literal["unlabeled", "labeled"] = "unlabeled"
        """What is reconstructed; labeled: as many images, but drawn from those with labels in this time step."""

        def __post_init__(self) -> None:
            if self.threshold != "auto":
                limit(self.threshold)
            if not 0 <= self.alpha < math.inf:
                raise UserError(f"--alpha {self.alpha}: give a weight from 0")
            if not 0 < self.balance_lr <= 1:
                raise UserError(f"--balance-lr {self.balance_lr}: give a factor above 0, at most 1")
            shares = (self.unlabeled, self.labeled, self.memory)
            if not min(shares) >= 0 or not 0 < sum(shares) < math.inf:
                raise UserError("--unlabeled, --labeled, --memory: give shares from 0, at least one of them above it")

    variants: ClassVar[dict[str, Config]] = {
        "release": Config(unlabeled=0.4, labeled=0.3, memory=0.3, threshold="80%"),
        "labeled": Config(reconstruct="labeled"),
    }

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if step.is_first:
            phases = [Phase(name="joint", mix=self._joint_mix(first=True))]
        elif not self.config.memory:
            phases = [Phase(name="joint", mix=self._joint_mix())]
        else:
            updates, share = limit(self.config.threshold)
            phases = [
                Phase(name="joint", mix=self._joint_mix(), updates=updates, share=share),
                Phase(
                    name="balance",
                    mix=Mix(memory=1, by_time_step=self.config.balance_memory),
                    lr_scale=self.config.balance_lr,
                ),
            ]
        return phases[len(done)] if len(done) < len(phases) else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        if self.config.reconstruct == "labeled":
            batch = self._divide(phase, batch)
        parts = batch.supervised
        for part, logits in zip(parts, net.logits(*parts), strict=True):
            if part.pool == "memory":
                yield Term("memory", part.cross_entropy(logits))
            else:
                only = batch.classes if self.config.mask_classes else None
                yield Term("masked", part.cross_entropy(logits, only))
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key), self.config.alpha)

    def _joint_mix(self, first: bool = False) -> Mix:
        config = self.config
        unlabeled, labeled, memory = config.unlabeled, config.labeled, config.memory
        if first:  # the memory would only repeat the labels at hand
            labeled, memory = labeled + memory, 0.0
        if config.reconstruct == "labeled":
            unlabeled, labeled = 0.0, unlabeled + labeled
        by_time_step = config.balance_memory and not first
        return Mix(unlabeled=unlabeled, labeled=labeled, memory=memory, by_time_step=by_time_step)

    def _divide(self, phase: Phase, batch: "Batch") -> "Batch":
        """Return the batch with the last of its labeled images, cropped but not mixed, to be reconstructed."""
        part = batch.labeled
        if part is None or not self.config.unlabeled:
            return batch
        # As many as the unlabeled images would be; half an image is theirs, as when a batch is dealt over pools.
        number = int(len(part) * self.config.unlabeled / phase.mix.labeled + 0.5 + 1e-9)
        edge = len(part) - number
        last = part.take(slice(edge, len(part)))
        return replace(
            batch,
            labeled=part.take(slice(0, edge)) if edge else None,
            unlabeled=replace(last, images=last.view("reconstruct")) if number else None,
        )
