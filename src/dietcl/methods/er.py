"""Experience replay: cross-entropy on labels of this and earlier time steps (Chaudhry et al. 2019)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.methods.dietcl import limit
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class ER(Method):
    """Replays all labels so far: uniformly, or half of this time step and half of the past."""

    keeps = "row numbers of all labels (or of a reservoir)"
    cost = "1"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of experience replay."""

        sampling: Literal["uniform", "balanced"] = "balanced"
        """uniform: the whole batch from all labels so far; balanced: half this time step's, half the past's."""
        memory: int | None = None
        """Keep a reservoir of this many labels of earlier time steps (all by default)."""
        dietcl_flops: bool = False
        """Spend only the FLOPs that DietCL spends of a budget priced by images, whose reconstructions are cheaper."""
        threshold: str = "400"
        """DietCL's threshold, with --dietcl-flops: updates' worth of passes, or a share of the budget such as 80%."""

        def __post_init__(self) -> None:
            if self.memory is not None and self.memory < 1:
                raise UserError(f"--memory {self.memory}: keep at least one label, or leave the option out to keep all")
            limit(self.threshold)

    variants: ClassVar[dict[str, Config]] = {
        "uniform": Config(sampling="uniform"),
        "dietcl_flops": Config(dietcl_flops=True),
    }

    def setup(self, net: "Net") -> None:
        self._saved = max(0.0, 1 - net.relative_flops("reconstruct")) / 3  # DietCL reconstructs a third of its images

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        mix = Mix(labeled=1 / 2, memory=1 / 2, past_only=True, capacity=self.config.memory)
        if self.config.sampling == "uniform":
            mix = Mix(memory=1, capacity=self.config.memory)
        if not self.config.dietcl_flops or not len(step.unlabeled):
            return Phase(name="replay", mix=mix)
        # It does so for the whole first time step with labels, and until its threshold in later ones.
        updates, share = limit(self.config.threshold)
        joint = 1.0 if step.is_first else min(share, updates / remaining if remaining else 1.0)
        return Phase(name="replay", mix=mix, share=1 - joint * self._saved)

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        yield Term("replay", batch.cross_entropy(net.logits(*batch.supervised)))
