"""The one way in which pixels become numbers around zero."""

import numpy as np
import torch

from dietcl.streams.options import MEAN, STD


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images as floats around zero."""
    if images.device.type == "cpu":
        # numpy asks for huge pages where torch does not, and fresh small ones would cost more than the arithmetic.
        last = images.is_contiguous(memory_format=torch.channels_last)
        out = torch.from_numpy(np.empty(images.permute(0, 2, 3, 1).shape if last else images.shape, np.float32))
        floats = (out.permute(0, 3, 1, 2) if last else out).copy_(images)
    else:
        floats = images.float()
    return floats.div_(255).sub_(MEAN).div_(STD)


def denormalize(images: torch.Tensor) -> torch.Tensor:
    """Undo `normalize`."""
    return images.mul(STD).add_(MEAN).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
