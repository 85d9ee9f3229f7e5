"""A linear classifier that grows with the revealed classes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GrowingHead(nn.Module):
    """A linear layer that starts without classes; growing keeps the rows it has bit for bit."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        """The number of classes so far."""
        return len(self.bias)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Make room for this many classes in all; new parameters take the place of the old ones."""
        new = classes - self.classes
        if new < 0:
            raise ValueError(f"a head of {self.classes} classes cannot shrink to {classes}")
        if new == 0:
            return
        rows = torch.rand(new, self.dim + 1, generator=generator, device=generator.device)
        rows = ((2 * rows - 1) / self.dim**0.5).to(self.weight)
        with torch.no_grad():
            self.weight = nn.Parameter(torch.cat([self.weight, rows[:, :-1]]))
            self.bias = nn.Parameter(torch.cat([self.bias, rows[:, -1]]))

    def forward(self, features_BD: Tensor) -> Tensor:
        """Return the logits of all classes."""
        return F.linear(features_BD, self.weight, self.bias)
