"""Triplet losses: embeddings of one class shall be nearer to each other than to those of any other, by a margin.

Embeddings are compared by direction, so that the margin means the same for every encoder: distances go from 0 to 2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

MARGIN = 1.0


def batch_hard(features_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean loss of the images that have another of their class and one of another class in the batch.

    Each is compared with the farthest of its class and the nearest of all others; without such images the loss is 0.
    """
    points_BD = F.normalize(features_BD)
    cosine_BB = (points_BD @ points_BD.T).detach()
    same_BB = labels_B[:, None] == labels_B
    own_BB = same_BB & ~torch.eye(len(labels_B), dtype=torch.bool, device=labels_B.device)
    farthest_B = cosine_BB.masked_fill(~own_BB, torch.inf).argmin(1)
    nearest_B = cosine_BB.masked_fill(same_BB, -torch.inf).argmax(1)
    gap_B = _distance(points_BD, points_BD, farthest_B) - _distance(points_BD, points_BD, nearest_B)
    counts_B = own_BB.any(1) & ~same_BB.all(1)
    return ((gap_B + MARGIN).relu() * counts_B).sum() / counts_B.sum().clamp(min=1)


def push_apart(features_BD: Tensor, others_MD: Tensor) -> Tensor:
    """Return the mean over images of how much the nearest of some others is nearer than the margin."""
    points_BD, others_MD = F.normalize(features_BD), F.normalize(others_MD)
    nearest_B = (points_BD @ others_MD.T).detach().argmax(1)
    return (MARGIN - _distance(points_BD, others_MD, nearest_B)).relu().mean()


def _distance(points_BD: Tensor, others_MD: Tensor, which_B: Tensor) -> Tensor:
    """Return each point's distance from one of the others; equal ones have a gradient of zero."""
    # A product chooses, because the gradient of an index is summed in no fixed order on some devices.
    chosen_BD = F.one_hot(which_B, len(others_MD)).to(others_MD) @ others_MD
    return ((points_BD - chosen_BD).square().sum(1) + 1e-16).sqrt()
