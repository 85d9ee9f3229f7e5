"""Classes by a vote of the nearest stored features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dietcl.methods.pieces.store import Store

CHUNK = 65_536  # stored features compared at a time


def vote(features: Tensor, store: Store, neighbors: int, classes: int) -> Tensor:
    """Return the logarithm of each class's share of the votes of the nearest stored features, by cosine.

    Among equal votes the nearer neighbor decides; a uniform vote of weight one keeps the logarithm finite.
    """
    query = F.normalize(features)
    near = query.new_zeros(len(query), 0)
    labels = torch.zeros(len(query), 0, dtype=torch.int64, device=query.device)
    for start in range(0, len(store), CHUNK):
        part = slice(start, start + CHUNK)
        likeness = query @ F.normalize(store.values[part].to(query)).T
        near = torch.cat([near, likeness], dim=1)
        labels = torch.cat([labels, store.labels[part].expand(len(query), -1)], dim=1)
        near, order = near.topk(min(neighbors, near.shape[1]), dim=1)
        labels = labels.gather(1, order)
    votes = query.new_full((len(query), classes), 1 / max(1, classes))
    votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=query.dtype))
    if labels.shape[1]:
        # The first among the neighbors whose class has the most votes gets a little more: nearness decides ties.
        won = votes.gather(1, labels)
        nearest = (won >= won.amax(1, keepdim=True) - 1e-6).int().argmax(1, keepdim=True)
        votes.scatter_add_(1, labels.gather(1, nearest), votes.new_full((len(votes), 1), 1e-3))
    return (votes / votes.sum(1, keepdim=True)).log()
