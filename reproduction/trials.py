"""The search for hyperparameters: the same trials for every method, of its rates and of its own coefficient."""

from dataclasses import dataclass, replace
from typing import Any

from dietcl import Training

NUMBER = 10
SEEDS = (100, 101)
TIME_STEPS = 3
UPDATES = 40

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


def _between(bounds: tuple[float, float], place: float) -> float:
    low, high = bounds
    return _rounded(low * (high / low) ** place)


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


# Roberts' sequence fills the cube evenly with any number of points; its ratio is the root of x^4 = x + 1.
_RATIO = 1.2207440846057596
TRIALS = tuple(
    Trial(*(_between(bounds, (0.5 + k / _RATIO**axis) % 1) for axis, bounds in enumerate((LR, HEAD_LR, FACTOR), 1)))
    for k in range(NUMBER)
)
