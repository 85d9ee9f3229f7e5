"""Barlow Twins: two views of an image should have equal features, and features should not be correlated."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dietcl.streams.batch import Part


def two_views(parts: Sequence[Part]) -> Tensor:
    """Return the first strong views of all images of some parts, then the second."""
    return torch.cat([part.view(name, strong=True) for name in ("one", "two") for part in parts])


def barlow_twins(one_BD: Tensor, two_BD: Tensor, off_diagonal: float, scale: float) -> Tensor:
    """Return the loss of two views' projections; a single image has no correlation and no loss."""
    if len(one_BD) < 2:
        return 0 * (one_BD.sum() + two_BD.sum())
    correlation_DD = _standardize(one_BD).T @ _standardize(two_BD) / len(one_BD)
    diagonal_D = correlation_DD.diagonal()
    redundancy = correlation_DD.square().sum() - diagonal_D.square().sum()
    return scale * ((1 - diagonal_D).square().sum() + off_diagonal * redundancy)


def correlation_flops(projections_BD: Tensor, factors: int = 2) -> int:
    """Return the FLOPs of a correlation of these projections, and of the gradients of `factors` of its factors."""
    return 2 * (1 + factors) * len(projections_BD) * projections_BD.shape[1] ** 2


def projector(dim: int, width: int, layers: int = 3) -> nn.Module:
    """Return a perceptron; its norms are per image, so that there are no running statistics."""
    parts: list[nn.Module] = []
    for inputs in (dim, *(width,) * (layers - 2)):
        parts += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, width))


def _standardize(values_BD: Tensor) -> Tensor:
    variance, mean = torch.var_mean(values_BD, dim=0, correction=0)
    return (values_BD - mean) / (variance + 1e-5).sqrt()
