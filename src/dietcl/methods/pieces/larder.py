"""The larder: images without a label that are remembered with the label that was guessed for them."""

import numpy as np
import torch
from torch import Tensor

from dietcl.methods.base import Pool
from dietcl.streams.sampler import NOTHING


class Larder:
    """Row numbers, guessed labels, and how far each guess is trusted, by the square of which it is drawn."""

    def __init__(self) -> None:
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.trust = torch.zeros(0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Tensor, labels: Tensor, trust: Tensor) -> None:
        """Remember guesses for good."""
        self.rows = torch.cat([self.rows, rows.cpu()])
        self.labels = torch.cat([self.labels, labels.cpu()])
        self.trust = torch.cat([self.trust, trust.cpu().double()])

    @property
    def weights(self) -> Tensor:
        """How often each guess is drawn, where a label has 1."""
        return self.trust**2  # of two guesses the safer one is worth more than its odds

    def pool(self) -> Pool:
        """Return what batches are drawn from."""
        if not len(self):
            return NOTHING
        return Pool(self.rows.numpy(), self.labels.numpy(), cumulative=np.cumsum(self.weights.numpy()))

    def state(self) -> dict[str, Tensor]:
        """Return the columns."""
        return {"larder_rows": self.rows, "larder_labels": self.labels, "larder_trust": self.trust}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.rows, self.labels, self.trust = (state[f"larder_{name}"].cpu() for name in ("rows", "labels", "trust"))
