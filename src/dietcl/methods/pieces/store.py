"""What methods keep between time steps: values of labeled images, which can vote, or an earlier network."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dietcl.methods.base import Net, Part, PlannedMethod, Sweep

CHUNK = 65_536  # stored features compared at a time


class Store:
    """A table of row numbers, labels and values; when values get wider, earlier ones are padded with nan."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.values = torch.zeros(0, 0)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Tensor, labels: Tensor, values: Tensor) -> None:
        """Store the values of some labeled images."""
        width = max(self.values.shape[1], values.shape[1])
        self.rows = torch.cat([self.rows, rows])
        self.labels = torch.cat([self.labels.to(labels.device), labels])
        self.values = torch.cat([_pad(self.values.to(values), width), _pad(values, width)])

    def find(self, rows: Tensor) -> Tensor:
        """Return the position of each row number in the table, -1 for those that are not in it."""
        if not len(self):
            return torch.full_like(rows, -1)
        ordered, order = self.rows.sort()
        position = torch.searchsorted(ordered, rows).clamp(max=len(self) - 1)
        return torch.where(ordered[position] == rows, order[position], -1)

    def values_of(self, rows: Tensor) -> Tensor:
        """Return the values of each row number, nan for those that are not in the table."""
        position = self.find(rows).to(self.values.device)
        found = self.values.new_full((len(rows), self.values.shape[1]), torch.nan)
        found[position >= 0] = self.values[position[position >= 0]]
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the table's columns."""
        return {"rows": self.rows, "labels": self.labels, "values": self.values}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.rows, self.labels, self.values = state["rows"].cpu(), state["labels"], state["values"]


class StoringMethod(PlannedMethod):
    """A method whose sweeps store a value of every image: its features, unless `gather` is overridden."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.store = Store()

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        return part.with_values(net.features(part.images, sweep.name))

    def absorb(self, net: Net, sweep: Sweep, gathered: dict[str, Tensor]) -> None:
        self.store.add(**gathered)

    def state(self) -> dict[str, Tensor]:
        return self.store.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.store.load_state(state)


class TaughtMethod(PlannedMethod):
    """A method with a teacher: weights of an earlier network, to be passed to `net.scores` or `net.features`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.teacher: dict[str, Tensor] = {}

    def state(self) -> dict[str, Tensor]:
        return dict(self.teacher)

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.teacher = dict(state)


def vote(features: Tensor, store: Store, neighbors: int, classes: int) -> Tensor:
    """Return the logarithm of each class's share of the votes of the nearest stored features, by cosine."""
    query = F.normalize(features)
    near = query.new_zeros(len(query), 0)
    labels = torch.zeros(len(query), 0, dtype=torch.int64, device=query.device)
    for start in range(0, len(store), CHUNK):
        part = slice(start, start + CHUNK)
        near = torch.cat([near, query @ F.normalize(store.values[part].to(query)).T], dim=1)
        labels = torch.cat([labels, store.labels[part].expand(len(query), -1)], dim=1)
        near, order = near.topk(min(neighbors, near.shape[1]), dim=1)
        labels = labels.gather(1, order)
    # A uniform vote of weight one keeps the logarithm finite.
    votes = query.new_full((len(query), classes), 1 / max(1, classes))
    votes.scatter_add_(1, labels, torch.ones_like(labels, dtype=query.dtype))
    if labels.shape[1]:
        # The nearest neighbor whose class has the most votes adds a little to it, which breaks ties.
        won = votes.gather(1, labels)
        nearest = (won >= won.amax(1, keepdim=True) - 1e-6).int().argmax(1, keepdim=True)
        votes.scatter_add_(1, labels.gather(1, nearest), votes.new_full((len(votes), 1), 1e-3))
    return (votes / votes.sum(1, keepdim=True)).log()


def _pad(values: Tensor, width: int) -> Tensor:
    return F.pad(values, (0, width - values.shape[1]), value=torch.nan)
