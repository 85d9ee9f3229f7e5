"""A linear classifier that grows with the revealed classes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GrowingHead(nn.Module):
    """A linear layer that starts without classes; with a cosine scale, logits are scaled cosines without a bias."""

    def __init__(self, dim: int, cosine_scale: float | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.cosine_scale = cosine_scale
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        """The number of classes so far."""
        return len(self.bias)

    def grow(self, classes: int, generator: torch.Generator) -> None:
        """Grow to this many classes; new parameters replace the old ones, whose rows are kept bit for bit."""
        if classes == self.classes:
            return
        if classes < self.classes:
            raise ValueError(f"a head of {self.classes} classes cannot shrink to {classes}")
        rows = torch.rand(classes - self.classes, self.dim + 1, generator=generator, device=generator.device)
        rows = ((2 * rows - 1) / self.dim**0.5).to(self.weight)
        with torch.no_grad():
            self.weight = nn.Parameter(torch.cat([self.weight, rows[:, :-1]]))
            self.bias = nn.Parameter(torch.cat([self.bias, rows[:, -1]]))

    def forget(self) -> None:
        """Remove all classes."""
        self.weight = nn.Parameter(self.weight.detach()[:0])
        self.bias = nn.Parameter(self.bias.detach()[:0])

    def forward(self, features_BD: Tensor) -> Tensor:
        """Return the logits of all classes."""
        if self.cosine_scale is None:
            return F.linear(features_BD, self.weight, self.bias)
        return self.cosine_scale * F.linear(F.normalize(features_BD), F.normalize(self.weight))
