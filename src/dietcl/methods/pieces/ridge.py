"""Linear classifiers solved in closed form, with the penalty chosen on held-out labels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-4, 5))
WIDE_PENALTIES = tuple(10.0**exponent for exponent in range(-8, 9))
_LEAST_SHARE = 1e-3
Scale = Literal["each", "half", "none"]
"""What features are divided by: each by its own spread, half whitened, or nothing."""


@dataclass(frozen=True)
class Solution:
    """Scores are features @ weight + bias."""

    weight: Tensor  # [features, classes]
    bias: Tensor
    penalty: float


def solve(features: Tensor, labels: Tensor, classes: int, scale: Scale) -> Solution:
    """Fit one-hot targets on features and a constant, with the penalty of least leave-one-out error."""
    x = to_double(features)
    y = torch.nn.functional.one_hot(labels, classes).to(x)
    mean, divisor = x.mean(0), _DIVISORS[scale](x)
    x = torch.cat([(x - mean) / divisor, x.new_ones(len(x), 1)], dim=1)
    # Of x = u s vᵀ, the smaller of u and v; a decomposition of x itself would take several times as long.
    is_dual = len(x) < x.shape[1]
    squares, vectors = torch.linalg.eigh(x @ x.T if is_dual else x.T @ x)
    squares = squares.clamp(min=0)
    rows = vectors * squares.sqrt() if is_dual else x @ vectors  # u s
    projected = rows.T @ y
    penalty, least = PENALTIES[0], torch.inf
    for candidate in PENALTIES:
        shrunk = rows / (squares + candidate)
        leverage = (rows * shrunk).sum(1, keepdim=True)
        error = float((((y - shrunk @ projected) / (1 - leverage)) ** 2).mean())
        if error < least:
            least, penalty = error, candidate
    shrunk = vectors / (squares + penalty)
    best = x.T @ (shrunk @ (vectors.T @ y)) if is_dual else shrunk @ projected
    weight = best[:-1] / divisor[:, None]
    return Solution(weight.to(features), (best[-1] - mean @ weight).to(features), penalty)


def half_whitened(variances: Tensor) -> Tensor:
    """Return what to divide features of such variances by.

    Divided by its own spread alone, a feature that only one of few labeled images has would count as much as any other;
    not divided at all, a few features would decide alone.
    """
    return (variances + variances.mean() + 1e-12).sqrt()


_DIVISORS: dict[Scale, Callable[[Tensor], Tensor]] = {
    "each": lambda x: x.std(0, correction=0) + 1e-6,
    "half": lambda x: half_whitened(x.var(0, correction=0)),
    "none": lambda x: torch.ones_like(x[0]),
}


def solve_flops(images: int, features: int, classes: int) -> float:
    """Return about what a thin singular value decomposition and the fit of every penalty compute."""
    # `solve` takes a cheaper way to the same answer; the price stays, so that books of all versions compare.
    long, short = max(images, features + 1), min(images, features + 1)
    decomposition = 6 * long * short**2 + 20 * short**3  # Golub and Van Loan, Matrix Computations, 8.6
    return decomposition + 2 * short * classes * (images * (1 + len(PENALTIES)) + features + 1)


@dataclass(frozen=True)
class Sums:
    """HᵀH and HᵀY of all rows H of features so far and their one-hot labels Y: all that ridge regression needs."""

    gram: Tensor
    cross: Tensor

    def add(self, rows: Tensor, targets: Tensor) -> "Sums":
        """Return the sums with more rows added, whose targets may have more classes."""
        cross = rows.T @ targets
        cross[:, : self.cross.shape[1]] += self.cross.to(cross)
        return Sums(self.gram.to(rows) + rows.T @ rows, cross)


@dataclass(frozen=True)
class Fit:
    """Scores are features @ weight; the sums are set if the problem was solved from them."""

    weight: Tensor
    penalty: float
    sums: Sums | None


def fit(rows: Tensor, targets: Tensor, past: Sums | None, penalty: float | None, held_out: int, eps: float) -> Fit:
    """Fit rows and the sums of earlier ones; without a penalty, the last rows are held out to choose one."""
    rest, last = slice(0, len(rows) - held_out), slice(len(rows) - held_out, len(rows))
    sums = None
    if _is_dual(len(rows), rows.shape[1], past is not None):
        matrix, right = rows @ rows.T, targets
        problem = matrix[rest, rest], targets[rest], matrix[last, rest]
    else:
        before = (past or Sums(rows.new_zeros(()), rows.new_zeros(rows.shape[1], 0))).add(rows[rest], targets[rest])
        sums = before.add(rows[last], targets[last])
        matrix, right = sums.gram, sums.cross
        problem = before.gram, before.cross, rows[last]
    least = eps * float(matrix.trace())  # a smaller penalty is lost in rounding
    if penalty is None:
        penalty = choose(*problem, targets[last], least)
    solution = shrink(matrix, right, max(penalty, least))
    return Fit(rows.T @ solution if sums is None else solution, penalty, sums)


def fit_flops(rows: int, features: int, has_past: bool, held_out: int, classes: int) -> float:
    """Return about what `fit` computes, with a choice if any rows are held out."""
    dual = _is_dual(rows, features, has_past)
    size = rows if dual else features
    chosen = choose_flops(size - held_out * dual, held_out, classes) if held_out else 0.0
    return 2 * rows * features * (size + classes) + chosen + shrink_flops(size, classes)


def _is_dual(rows: int, features: int, has_past: bool) -> bool:
    """Return whether to solve for a weight of every row, which is cheaper with fewer rows than features."""
    return not has_past and rows < features


def choose(matrix: Tensor, targets: Tensor, held_out: Tensor, truth: Tensor, least: float = 0.0) -> float:
    """Return the penalty whose scores, held_out @ shrink(matrix, targets, penalty), are nearest to the truth."""
    values, vectors = torch.linalg.eigh(matrix)
    rotated, seen = vectors.T @ targets, held_out @ vectors
    shrunk = (seen / (values.clamp(min=0) + max(penalty, least)) for penalty in WIDE_PENALTIES)
    errors = torch.stack([(rows @ rotated - truth).square().mean() for rows in shrunk])
    return WIDE_PENALTIES[int(errors.argmin())]


def choose_flops(size: int, held_out: int, classes: int) -> float:
    """Return about what `choose` computes: the decomposition, two rotations and the scores of every penalty."""
    rotations = 2 * size**2 * (classes + held_out)
    return 9 * size**3 + rotations + 2 * held_out * size * classes * len(WIDE_PENALTIES)


def shrink(matrix: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Return the solution x of (matrix + penalty) x = targets for a symmetric matrix without negative eigenvalues."""
    shift = penalty * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return torch.cholesky_solve(targets, torch.linalg.cholesky(matrix + shift))


def shrink_flops(size: int, classes: int) -> float:
    """Return what `shrink` computes: a Cholesky factor and two triangular solves for every class."""
    return size**3 / 3 + 2 * size**2 * classes


def pad_scores(scores: Tensor, classes: int) -> Tensor:
    """Return scores of all classes; those that are missing get a score below all others."""
    if not scores.shape[1]:
        return scores.new_zeros(len(scores), classes)
    low = scores.amin(1, keepdim=True) - 10
    return torch.cat([scores, low.expand(-1, classes - scores.shape[1])], dim=1)


def score_shares(scores: Tensor) -> Tensor:
    """Return scores fitted to one-hot targets as shares of 1 in the same order; scores below 0 get next to nothing."""
    # A softmax alone would return almost equal shares, because the scores are between 0 and 1.
    shares = scores.clamp(min=0) + _LEAST_SHARE * scores.softmax(1)
    return shares / shares.sum(1, keepdim=True)


def to_double(values: Tensor) -> Tensor:
    """Return values in double precision, on the CPU if their device does not support it."""
    return values.cpu().double() if values.device.type == "mps" else values.double()
