"""Linear probe: the encoder stays as it is and a linear head on its features is fitted to all labels so far."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


class LinearProbe(Method):
    """Fits a linear head to all labels so far on an encoder that never changes."""

    keeps = "features of all labels and the solution (ridge), or row numbers of all labels (sgd)"
    cost = "1/3 (ridge: every label once, and the solve; sgd: every image drawn, and the head)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of the linear probe."""

        head: Literal["ridge", "sgd"] = "ridge"
        """ridge: solve the head from stored features after every time step; sgd: learn it by updates."""

    variants: ClassVar[dict[str, Config]] = {"sgd": Config(head="sgd")}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        import torch

        from dietcl.methods.pieces.store import Store

        self.store = Store()
        self.fitted = 0  # stored features that the solution knows
        self.dim = 0
        self.weight, self.bias = torch.zeros(0, 0), torch.zeros(0)

    def setup(self, net: "Net") -> None:
        self.dim = net.dim
        self.weight = self.weight.new_zeros(net.dim, 0)

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        if self.config.head == "sgd":
            return Phase(name="head", mix=Mix(memory=1), price=1 / 3)
        if not len(step.labeled):
            return None
        from dietcl.methods.pieces.ridge import solve_flops

        flops = solve_flops(len(self.store) + len(step.labeled), self.dim, step.seen_classes)
        return Sweep(name="features", pool="labeled", reserve=Reserve(flops=flops))

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        assert batch.memory is not None
        features = net.features(batch.memory.images, "features")
        yield Term("head", batch.memory.cross_entropy(net.classify(features, "head")))

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        return part.with_values(net.features(part.images, "features"))

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        self.store.add(**gathered)

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        from dietcl.methods.pieces.ridge import solve, solve_flops

        # Features that could not be fitted for want of budget wait for the next time step.
        if self.fitted < len(self.store) and net.pay("solve", solve_flops(len(self.store), net.dim, net.classes)):
            solution = solve(self.store.values, self.store.labels, net.classes)
            self.weight, self.bias, self.fitted = solution.weight, solution.bias, len(self.store)

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        if self.config.head == "sgd":
            return net.scores(images)
        from dietcl.methods.pieces.ridge import widen

        features = net.features(images, "predict")
        return widen(features @ self.weight.to(features) + self.bias.to(features), net.classes)

    def state(self) -> "dict[str, torch.Tensor]":
        import torch

        solution = {"weight": self.weight, "bias": self.bias, "fitted": torch.tensor(self.fitted)}
        return {} if self.config.head == "sgd" else self.store.state() | solution

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        if state:
            self.store.load_state(state)
            self.weight, self.bias, self.fitted = state["weight"], state["bias"], int(state["fitted"])
