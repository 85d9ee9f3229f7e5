"""RanPAC: ridge regression on random features of an encoder that the first labels adapt (McDonnell et al. 2023)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dietcl.budget.ledger import Overdraft
from dietcl.methods.base import Mix, Net, Phase, Reserve, Segment, Sweep, TimeStep
from dietcl.methods.pieces.ridge import Sums, fit, fit_flops, pad_scores, score_shares, to_double
from dietcl.methods.pieces.store import StoringMethod
from dietcl.methods.supervised_options import RanPACOptions

HELD_OUT = 5  # one label in five chooses the penalty


class RanPAC(StoringMethod):
    """Ridge regression on random projections."""

    Config = RanPACOptions
    config: RanPACOptions

    def setup(self, net: Net) -> None:
        def make() -> nn.Module:
            linear = nn.Linear(net.dim, self.config.random_features, bias=False)
            nn.init.normal_(linear.weight)
            return nn.Sequential(linear, nn.ReLU()).requires_grad_(False)

        self.dim = net.dim
        self.projection = net.build(make, "random features")
        self.sums: Sums | None = None
        self.fitted = 0  # number of stored features, those not in the sums, that the head was solved with
        self.weight, self.penalty = torch.zeros(self.config.random_features, 0), 1.0

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if not len(step.labeled):
            return []
        rows = len(self.store) + len(step.labeled)
        project = 2 * rows * self.dim * self.config.random_features
        flops = project + self._fit_flops(rows, _held_out(rows), step.seen_classes)
        sweep = Sweep(name="features", pool="labeled", reserve=Reserve(flops=flops))
        if not self.config.adapt or not step.is_first:
            return [sweep]
        reserve = Reserve(forward=len(step.labeled), flops=flops)
        return [Phase(name="adapt", mix=Mix(labeled=1), reserve=reserve), sweep]

    def end_step(self, net: Net, step: TimeStep) -> None:
        total = len(self.store)
        if total == self.fitted:
            return
        # Row numbers are random, so the last labels in their order are a random sample.
        order = self.store.rows.argsort()
        values, labels = self.store.values[order], self.store.labels[order]
        try:
            with torch.no_grad():
                rows = to_double(net.run(self.projection, values, purpose="project"))
        except Overdraft:
            return  # the features are fitted in the next time step; so too if no solve fits the budget
        held_out = _held_out(total)
        choose = held_out > 0 and net.pay("solve", self._fit_flops(total, held_out, net.classes))
        if not choose and not net.pay("solve", self._fit_flops(total, 0, net.classes)):
            return
        targets = torch.nn.functional.one_hot(labels, net.classes).to(rows)
        penalty = None if choose else self.penalty
        found = fit(rows, targets, self.sums, penalty, held_out, torch.finfo(values.dtype).eps)
        # In the order of memory that a checkpoint restores, or products with it would have other last bits.
        self.weight = found.weight.to(values).contiguous()
        self.penalty, self.fitted = found.penalty, total
        if found.sums is not None:
            self.sums = Sums(found.sums.gram.to(values), found.sums.cross.to(values))
            self.store.clear()
            self.fitted = 0

    def predict(self, net: Net, images: Tensor) -> Tensor:
        rows = net.run(self.projection, net.features(images, "predict"), purpose="predict")
        return pad_scores(rows @ self.weight.to(rows), net.classes)

    def probabilities(self, scores: Tensor) -> Tensor:
        return score_shares(scores)

    def state(self) -> dict[str, Tensor]:
        numbers = {"exponent": torch.tensor(round(math.log10(self.penalty))), "fitted": torch.tensor(self.fitted)}
        sums = {} if self.sums is None else {"gram": self.sums.gram, "cross": self.sums.cross}
        return self.store.state() | sums | numbers | {"weight": self.weight}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.store.load_state(state)
        self.sums = Sums(state["gram"], state["cross"]) if "gram" in state else None
        self.weight, self.fitted = state["weight"], int(state["fitted"])
        self.penalty = 10.0 ** int(state["exponent"])

    def predict_modules(self) -> dict[str, nn.Module]:
        return {"projection": self.projection}  # another version of torch may draw another one from the seed

    def predict_state(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load_predict_state(self, state: dict[str, Tensor]) -> None:
        self.weight = state["weight"]

    def _fit_flops(self, rows: int, held_out: int, classes: int) -> float:
        return fit_flops(rows, self.config.random_features, self.sums is not None, held_out, classes)


def _held_out(labels: int) -> int:
    return -(-labels // HELD_OUT) if labels > 1 else 0
