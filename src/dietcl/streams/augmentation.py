"""Options of the augmentation; free of torch."""

import math
from dataclasses import dataclass

from dietcl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random crops and flips of every training image; mixup, cutmix and smoothing of labeled ones."""

    crop: float = 0.08
    """Smallest share of the image's area that a random crop keeps (1: no crops)."""
    flip: bool = True
    """Mirror half of the images (turned off by streams whose classes a mirror would change)."""
    mixup: float = 0.8
    """Beta parameter of mixup (0: off)."""
    cutmix: float = 1.0
    """Beta parameter of cutmix (0: off); with both on, each micro-batch takes one of them."""
    smoothing: float = 0.1
    """Label smoothing."""

    def __post_init__(self) -> None:
        if not 0 < self.crop <= 1:
            raise UserError(f"--crop {self.crop}: give a share above 0 and up to 1 (1: no crops)")
        for option in ("mixup", "cutmix"):
            if not 0 <= getattr(self, option) < math.inf:
                raise UserError(f"--{option} {getattr(self, option)}: give a number from 0 (0: off)")
        if not 0 <= self.smoothing < 1:
            raise UserError(f"--smoothing {self.smoothing}: give a share from 0 and below 1")
