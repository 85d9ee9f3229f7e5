"""Linear probe: a linear head on a frozen encoder, fitted to all labels so far."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dietcl.methods.base import Batch, Mix, Net, Phase, Reserve, Segment, Sweep, Term, TimeStep
from dietcl.methods.pieces.ridge import pad_scores, score_shares, solve, solve_flops
from dietcl.methods.pieces.store import StoringMethod
from dietcl.methods.supervised_options import LinearProbeOptions


class LinearProbe(StoringMethod):
    """A linear head on a frozen encoder."""

    Config = LinearProbeOptions
    config: LinearProbeOptions

    def setup(self, net: Net) -> None:
        self.dim = net.dim
        self.fitted = 0  # number of stored features in the solution
        self.weight, self.bias = torch.zeros(net.dim, 0), torch.zeros(0)

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if self.config.head == "sgd":
            return [Phase(name="head", mix=Mix(memory=1), price=1 / 3, plain=not self.config.augment)]
        flops = solve_flops(len(self.store) + len(step.labeled), self.dim, step.seen_classes)
        return [Sweep(name="features", pool="labeled", reserve=Reserve(flops=flops))] if len(step.labeled) else []

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        (part,) = batch.supervised
        features = net.features(part.images, "features")
        yield Term("head", part.cross_entropy(net.classify(features, "head")))

    def end_step(self, net: Net, step: TimeStep) -> None:
        # Features whose solve exceeds the budget are fitted in the next time step.
        if self.fitted < len(self.store) and net.pay("solve", solve_flops(len(self.store), net.dim, net.classes)):
            solution = solve(self.store.values, self.store.labels, net.classes, self.config.scale)
            self.weight, self.bias, self.fitted = solution.weight, solution.bias, len(self.store)

    def predict(self, net: Net, images: Tensor) -> Tensor:
        if self.config.head == "sgd":
            return net.scores(images)
        features = net.features(images, "predict")
        return pad_scores(features @ self.weight.to(features) + self.bias.to(features), net.classes)

    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(scores) if self.config.head == "sgd" else score_shares(scores)

    def state(self) -> dict[str, Tensor]:
        if self.config.head == "sgd":
            return {}
        return self.store.state() | self.predict_state() | {"fitted": torch.tensor(self.fitted)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        if state:
            self.store.load_state(state)
            self.load_predict_state(state)
            self.fitted = int(state["fitted"])

    def predict_state(self) -> dict[str, Tensor]:
        return {} if self.config.head == "sgd" else {"weight": self.weight, "bias": self.bias}

    def load_predict_state(self, state: dict[str, Tensor]) -> None:
        if state:
            self.weight, self.bias = state["weight"], state["bias"]
