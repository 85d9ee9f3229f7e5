"""RanPAC: ridge regression on random features of an encoder that the first labels adapt (McDonnell et al. 2023)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dietcl.budget.ledger import Overdraft
from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.methods.pieces.ridge import Sums
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep

HELD_OUT = 5  # one label in five chooses the penalty


class RanPAC(Method):
    """Adapts the encoder to the first labels, then solves a head on random features of it that never forgets."""

    keeps = "features of all labels while they are fewer than random features, then sums of products; the head"
    cost = "1 in the first time step with labels, to adapt; 1/3, every label once, and the solve"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of RanPAC."""

        random_features: int = 10_000
        """Number of random features (M); as many labels cost a solve of about 9 M³ FLOPs, fewer labels far less."""
        adapt: bool = True
        """Fine-tune the encoder on the labels of the first time step that has any; it stays as it is from then on."""

        def __post_init__(self) -> None:
            if self.random_features < 1:
                raise UserError(f"--random-features {self.random_features}: give at least 1")

    variants: ClassVar[dict[str, Config]] = {"frozen": Config(adapt=False)}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        import torch

        from dietcl.methods.pieces.store import Store

        self.store = Store()  # features that are not in the sums
        self.fitted = 0  # how many of them the head knows
        self.sums: Sums | None = None
        self.weight, self.penalty = torch.zeros(config.random_features, 0), 1.0

    def setup(self, net: "Net") -> None:
        from torch import nn

        def make() -> nn.Module:
            linear = nn.Linear(net.dim, self.config.random_features, bias=False)
            nn.init.normal_(linear.weight)
            return nn.Sequential(linear, nn.ReLU()).requires_grad_(False)

        self.dim = net.dim
        self.projection = net.build(make, "random features")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if not len(step.labeled):
            return None
        rows = len(self.store) + len(step.labeled)
        flops = self._fit_flops(rows, _held_out(rows), step.seen_classes)
        flops += 2 * rows * self.dim * self.config.random_features
        stretches: list[Stretch] = [Sweep(name="features", pool="labeled", reserve=Reserve(flops=flops))]
        if self.config.adapt and step.is_first:
            reserve = Reserve(forward=len(step.labeled), flops=flops)
            stretches.insert(0, Phase(name="adapt", mix=Mix(labeled=1), reserve=reserve))
        return stretches[len(done)] if len(done) < len(stretches) else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        assert batch.labeled is not None
        (logits,) = net.logits(batch.labeled)
        yield Term("labeled", batch.labeled.cross_entropy(logits))

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        return part.with_values(net.features(part.images, "features"))

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        self.store.add(**gathered)

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        import torch

        from dietcl.methods.pieces.ridge import Sums, exact, fit

        total = len(self.store)
        if total == self.fitted:
            return
        # Row numbers are random, so in their order the last labels are a fair sample of all.
        order = self.store.rows.argsort()
        values, labels = self.store.values[order], self.store.labels[order]
        try:
            with torch.no_grad():
                rows = exact(net.run(self.projection, values, purpose="project"))
        except Overdraft:
            return  # the features wait for the next time step, and so they do if no solve fits
        held_out = _held_out(total)
        choose = held_out > 0 and net.pay("solve", self._fit_flops(total, held_out, net.classes))
        if not choose and not net.pay("solve", self._fit_flops(total, 0, net.classes)):
            return
        targets = torch.nn.functional.one_hot(labels, net.classes).to(rows)
        penalty = None if choose else self.penalty
        found = fit(rows, targets, self.sums, penalty, held_out, torch.finfo(values.dtype).eps)
        self.weight, self.penalty, self.fitted = found.weight.to(values), found.penalty, total
        if found.sums is not None:
            self.sums = Sums(found.sums.gram.to(values), found.sums.cross.to(values))
            self.store.clear()
            self.fitted = 0

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        from dietcl.methods.pieces.ridge import widen

        rows = net.run(self.projection, net.features(images, "predict"), purpose="predict")
        return widen(rows @ self.weight.to(rows), net.classes)

    def state(self) -> "dict[str, torch.Tensor]":
        import torch

        numbers = {"exponent": torch.tensor(round(math.log10(self.penalty))), "fitted": torch.tensor(self.fitted)}
        sums = {} if self.sums is None else {"gram": self.sums.gram, "cross": self.sums.cross}
        return self.store.state() | sums | numbers | {"weight": self.weight}

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        from dietcl.methods.pieces.ridge import Sums

        self.store.load_state(state)
        self.sums = Sums(state["gram"], state["cross"]) if "gram" in state else None
        self.weight, self.fitted = state["weight"], int(state["fitted"])
        self.penalty = 10.0 ** int(state["exponent"])

    def _fit_flops(self, rows: int, held_out: int, classes: int) -> float:
        from dietcl.methods.pieces.ridge import fit_flops

        return fit_flops(rows, self.config.random_features, self.sums is not None, held_out, classes)


def _held_out(labels: int) -> int:
    return -(-labels // HELD_OUT) if labels > 1 else 0
