"""Pictures: decoded images of any shape on the host, cropped one by one before they go to the device."""

from concurrent.futures import Executor
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt
import torch

from dietcl.rng import Part as KeyPart
from dietcl.rng import numpy_generator
from dietcl.streams.augmentation import Augmentation
from dietcl.streams.decode import Pixels
from dietcl.streams.storage import spread, squares

cv2.setNumThreads(1)  # images are spread over threads already
Key = tuple[KeyPart, ...]
_WIDEST = 4 / 3  # of a crop, and its inverse the narrowest


@dataclass(frozen=True)
class Pictures:
    """Some pictures, and crops of them that were made ahead."""

    pixels: list[Pixels]
    size: int
    device: torch.device
    pool: Executor
    _ahead: dict[Key, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pixels)

    def squares(self) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device: of each picture the square in its middle."""
        return squares(self.pixels, self.size).to(self.device, non_blocking=True)

    def crops(self, config: Augmentation, key: Key) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device: random resized crops, mirrored at random."""
        found = self._ahead.get(key)
        return (self._cropped(config, key) if found is None else found).to(self.device, non_blocking=True)

    def crop_ahead(self, config: Augmentation, key: Key) -> None:
        """Make the crops that will be asked for, so that they need not be waited for."""
        self._ahead[key] = self._cropped(config, key)

    def _cropped(self, config: Augmentation, key: Key) -> torch.Tensor:
        random = numpy_generator(*key, "crop").random((5, len(self)))
        shapes = np.array([picture.shape[:2] for picture in self.pixels])
        boxes = crop_boxes(shapes, config.crop, random).tolist()
        mirrored = (config.flip & (random[4] < 0.5)).tolist()
        out = np.empty((len(self), self.size, self.size, 3), np.uint8)

        def crop(i: int) -> None:
            top, left, height, width = boxes[i]
            part = self.pixels[i][top : top + height, left : left + width]
            if part.shape[:2] == out.shape[1:3]:
                out[i] = part
            else:
                smooth = min(part.shape[:2]) >= 2 * self.size  # linear interpolation would skip pixels
                method = cv2.INTER_AREA if smooth else cv2.INTER_LINEAR
                cv2.resize(part, (self.size, self.size), dst=out[i], interpolation=method)
            if mirrored[i]:
                out[i] = cv2.flip(out[i], 1)

        spread(self.pool, crop, len(self))
        return torch.from_numpy(out).permute(0, 3, 1, 2)


def crop_boxes(shapes: npt.NDArray[np.int64], least: float, random: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return top, left, height and width of a random crop of each shape (height, width).

    A crop has at least this share of the area and a shape from 3:4 to 4:3, so a long picture's largest crop is not all
    of it; without crops (1) it is the square in the middle.
    """
    height, width = shapes.T.astype(np.float64)
    if least >= 1:
        side = np.minimum(height, width)
        return np.stack([(height - side) // 2, (width - side) // 2, side, side], 1).astype(np.int64)
    shape = width / height
    most = np.minimum(1, _WIDEST / np.maximum(shape, 1 / shape))
    area = np.minimum(least, most) + np.maximum(most - least, 0) * random[0]
    aspect = np.clip(_WIDEST ** (2 * random[1] - 1), area * shape, shape / area)
    pixels = area * width * height
    w = np.clip(np.round(np.sqrt(pixels * aspect)), 1, width)
    h = np.clip(np.round(np.sqrt(pixels / aspect)), 1, height)
    top, left = np.floor((height - h + 1) * random[3]), np.floor((width - w + 1) * random[2])
    return np.stack([top, left, h, w], 1).astype(np.int64)
