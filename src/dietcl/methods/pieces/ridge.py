"""A linear classifier solved in closed form, its penalty chosen by leaving one label out at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-4, 5))


@dataclass(frozen=True)
class Solution:
    """Scores are features @ weight + bias."""

    weight: Tensor  # [features, classes]
    bias: Tensor
    penalty: float


def solve(features: Tensor, labels: Tensor, classes: int) -> Solution:
    """Fit one-hot targets by ridge regression on standardized features and a constant.

    Every penalty comes from one factorization; the one with the least leave-one-out error is taken.
    """
    x, y = features.double(), torch.nn.functional.one_hot(labels, classes).double()
    mean, spread = x.mean(0), x.std(0, correction=0) + 1e-6
    x = torch.cat([(x - mean) / spread, x.new_ones(len(x), 1)], dim=1)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    projected = u.T @ y
    best, penalty, least = x.new_zeros(x.shape[1], classes), PENALTIES[0], torch.inf
    for candidate in PENALTIES:
        shrunk = s**2 / (s**2 + candidate)
        fitted = u @ (shrunk[:, None] * projected)
        leverage = (u**2 * shrunk).sum(1, keepdim=True)
        error = float((((y - fitted) / (1 - leverage)) ** 2).mean())
        if error < least:
            least, penalty = error, candidate
            best = vh.T @ ((s / (s**2 + candidate))[:, None] * projected)
    weight = best[:-1] / spread[:, None]
    return Solution(weight.to(features), (best[-1] - mean @ weight).to(features), penalty)


def solve_flops(images: int, features: int, classes: int) -> float:
    """Return about what `solve` computes: a thin singular value decomposition and the fit of every penalty."""
    long, short = max(images, features + 1), min(images, features + 1)
    decomposition = 6 * long * short**2 + 20 * short**3  # Golub and Van Loan, Matrix Computations, 8.6
    return decomposition + 2 * short * classes * (images * (1 + len(PENALTIES)) + features + 1)
