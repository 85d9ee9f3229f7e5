"""A light convolutional branch that looks at the image itself and modulates an encoder's maps of features."""

from torch import Tensor, nn

STAGES = 4
NARROWING = 8


class FastBranch(nn.Module):
    """Multiplies the maps of a slow encoder stage by stage; at the start it passes the last one through."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, patch, stride=patch)
        self.stages = nn.ModuleList(_stage(dim) for _ in range(STAGES))

    def forward(self, images_BCHW: Tensor, *slow_BDGG: Tensor) -> Tensor:
        """Return features [B, dim]: the mean over positions of the last modulated map."""
        fast_BDGG: Tensor = self.stem(images_BCHW)
        for stage, slow in zip(self.stages, slow_BDGG, strict=True):
            fast_BDGG = slow * (1 + stage(fast_BDGG.relu()))
        return fast_BDGG.mean(dim=(2, 3))


def forward_flops(dim: int, grid: int, patch: int) -> int:
    """Return the FLOPs of the branch for one image without gradient."""
    stem, narrow = 3 * patch**2 * dim, max(1, dim // NARROWING)
    return 2 * grid**2 * (stem + STAGES * (9 + 1) * dim * narrow)


def _stage(dim: int) -> nn.Module:
    """Return a convolution to few channels and one back to all, which starts at zero."""
    narrow = max(1, dim // NARROWING)
    back = nn.Conv2d(narrow, dim, 1)
    for parameter in back.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Conv2d(dim, narrow, 3, padding=1), back)
