"""Weights held near where they were, each as firmly as it is important."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dietcl.models.network import Weights


def penalty(weights: Weights, anchor: Weights, importance: Weights) -> Tensor:
    """Return the sum over weights of importance times squared distance; rows of the head that came later are free."""
    terms = []
    for name, weight in weights.items():
        known = slice(0, len(anchor[name]))
        terms.append((importance[name] * (weight[known] - anchor[name]).square()).sum())
    return torch.stack(terms).sum()


def add(one: Mapping[str, Tensor], other: Mapping[str, Tensor], keep: float = 1.0) -> dict[str, Tensor]:
    """Return keep · one + other, where one may lack rows that the head has by now."""
    sums = {}
    for name, value in other.items():
        total = value.clone()
        if name in one:
            total[: len(one[name])] += keep * one[name]
        sums[name] = total
    return sums
