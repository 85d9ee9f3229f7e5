"""Values of labeled images that a method computed once and keeps, such as features or logits."""

import torch
from torch import Tensor


class Store:
    """A table of row numbers, labels and values; wider values make the earlier ones end in nan."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.values = torch.zeros(0, 0)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Tensor, labels: Tensor, values: Tensor) -> None:
        """Keep the values of some labeled images."""
        width = max(self.values.shape[1], values.shape[1])
        self.rows = torch.cat([self.rows, rows])
        self.labels = torch.cat([self.labels.to(labels.device), labels])
        self.values = torch.cat([_widen(self.values.to(values), width), _widen(values, width)])

    def find(self, rows: Tensor) -> Tensor:
        """Return where each row number stands in the table, -1 for those that are not in it."""
        if not len(self):
            return torch.full_like(rows, -1)
        ordered, order = self.rows.sort()
        place = torch.searchsorted(ordered, rows).clamp(max=len(self) - 1)
        return torch.where(ordered[place] == rows, order[place], -1)

    def values_of(self, rows: Tensor) -> Tensor:
        """Return the values of each row number, nan for those that are not in the table."""
        place = self.find(rows).to(self.values.device)
        found = self.values.new_full((len(rows), self.values.shape[1]), torch.nan)
        found[place >= 0] = self.values[place[place >= 0]]
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the table's columns."""
        return {"rows": self.rows, "labels": self.labels, "values": self.values}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self.rows, self.labels, self.values = state["rows"].cpu(), state["labels"], state["values"]


def _widen(values: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=torch.nan)
