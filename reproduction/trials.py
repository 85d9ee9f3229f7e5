"""The search for hyperparameters: the same trials for every method, of its rates and of its own coefficient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dietcl import Training

# From, to: what a trial's place between 0 and 1 means, on a logarithmic scale.
LR = (5e-4, 1.2e-2)
HEAD_LR = (3e-3, 3e-1)
FACTOR = (0.1, 10.0)

# The option that weighs what is a method's own, and the value around which it is searched.
COEFFICIENTS: dict[str, tuple[str, float]] = {
    "dietcl": ("alpha", 5.0),
    "ewc": ("strength", 10.0),
    "mas": ("strength", 1.0),
    "lwf": ("strength", 1.0),
    "l2p": ("strength", 0.1),
    "derpp": ("alpha", 0.3),
    "cassle": ("strength", 1.0),
    "dualnet": ("soft_weight", 10.0),
    "ccic": ("strength", 0.5),
    "fixmatch": ("strength", 1.0),
}
COEFFICIENTS["dietcl_averaged"] = COEFFICIENTS["dietcl"]
# These learn nothing by gradient, so that there is nothing to search.
SOLVED = ("linear_probe", "ncm", "acm", "ranpac:frozen")


@dataclass(frozen=True)
class Trial:
    """One point of the search."""

    lr: float
    head_lr: float
    factor: float
    """On the method's own coefficient; of no effect where it has none."""

    def training(self, shared: Training) -> Training:
        """Return the shared recipe at this trial's rates."""
        return replace(shared, lr=self.lr, head_lr=self.head_lr, lr_floor=self.lr / 8)

    def options(self, method: str) -> dict[str, Any]:
        """Return the method's own coefficient at this trial."""
        if method not in COEFFICIENTS:
            return {}
        name, middle = COEFFICIENTS[method]
        return {name: _rounded(middle * self.factor)}

    def __str__(self) -> str:
        return f"lr {self.lr:g}, head {self.head_lr:g}, factor {self.factor:g}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """How many trials a method gets, and on what each is judged."""

    name: str
    """Begins the keys of its runs."""
    number: int
    seeds: tuple[int, ...]
    time_steps: int
    updates: int | None
    """Per time step; None: S, at equal FLOPs, and all held-out images tell."""
    averages_ties: bool
    """Take the geometric mean of trials that are as good as the best one, rather than one of them by luck."""

    @property
    def is_at_budget(self) -> bool:
        """Whether trials have the budget that is reported."""
        return self.updates is None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials, the same for every method."""
        return _TRIALS[: self.number]

    def choose(self, scores: Mapping[Trial, Sequence[float]]) -> "Choice":
        """Return what follows from the scores of every trial by seed."""
        means = {trial: float(np.mean(values)) for trial, values in scores.items()}
        error, best = _noise(scores), max(means, key=means.__getitem__)
        near = [trial for trial, mean in means.items() if mean >= means[best] - error]
        tied = near if self.averages_ties else [best]
        return Choice(_middle(tied), len(tied), error)


@dataclass(frozen=True)
class Choice:
    """What a search found: rates, how many trials tie with the best, and its own noise."""

    trial: Trial
    tied: int
    error: float
    """Standard error of the difference between two trials."""


def _noise(scores: Mapping[Trial, Sequence[float]]) -> float:
    """Return the standard error of the difference of two trials' means over the seeds, which all trials share."""
    table = np.array(list(scores.values()))
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    variance = (rest**2).sum() / max(1, (table.shape[0] - 1) * (table.shape[1] - 1))
    return float(np.sqrt(2 * variance / table.shape[1]))


def _middle(trials: Sequence[Trial]) -> Trial:
    """Return the geometric mean of trials."""
    logs = np.log([(trial.lr, trial.head_lr, trial.factor) for trial in trials])
    return Trial(*map(_rounded, np.exp(logs.mean(axis=0)).tolist()))


def _between(bounds: tuple[float, float], place: float) -> float:
    low, high = bounds
    return _rounded(low * (high / low) ** place)


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


# Roberts' sequence fills the cube evenly with any number of points; its ratio is the root of x^4 = x + 1.
_RATIO = 1.2207440846057596
_TRIALS = tuple(
    Trial(*(_between(bounds, (0.5 + k / _RATIO**axis) % 1) for axis, bounds in enumerate((LR, HEAD_LR, FACTOR), 1)))
    for k in range(10)
)

SHORT_SEARCH = Search(name="trial", number=10, seeds=(100, 101), time_steps=3, updates=40, averages_ties=False)
SEARCH_AT_BUDGET = Search(
    name="at-budget", number=8, seeds=(110, 111, 112), time_steps=5, updates=None, averages_ties=True
)
