"""Images of which features may be known already, so that they are read only when something computes with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map_only

Positions = npt.NDArray[np.int64]
View = Literal["features", "query"]
"""What of an image a cache keeps: its pooled features, or the query that selects its prompts."""


@dataclass(frozen=True)
class Known:
    """Content keys of some images, and what a cache knows of them."""

    view: View
    keys: npt.NDArray[np.uint8]  # [B, 16]; zeros: this image is not to be kept
    values: npt.NDArray[np.float16]  # [B, width]
    is_known: npt.NDArray[np.bool_]

    @property
    def is_skippable(self) -> npt.NDArray[np.bool_]:
        """Which images need not be read ahead; a query is asked for beside the pixels."""
        return self.is_known & (self.view == "features")

    @property
    def needs_pixels(self) -> bool:
        """Whether some images will be read for sure."""
        return not self.is_skippable.all()

    @staticmethod
    def join(parts: "Sequence[Known]") -> "Known | None":
        """Return all images of several parts; None if there are no parts."""
        if not parts:
            return None
        columns = ([getattr(part, name) for part in parts] for name in ("keys", "values", "is_known"))
        return Known(parts[0].view, *(np.concatenate(column) for column in columns))

    def take(self, where: slice | Positions) -> "Known":
        """Return some of the images."""
        return Known(self.view, self.keys[where], self.values[where], self.is_known[where])


class LazyImages(torch.Tensor):
    """Normalized images [B, 3, size, size]: a tensor like others, whose pixels are read at their first use."""

    known: Known
    _read: Callable[[Positions], torch.Tensor]
    _pixels: torch.Tensor | None

    @staticmethod
    def __new__(
        cls, known: Known, read: Callable[[Positions], torch.Tensor], size: int, device: torch.device
    ) -> "LazyImages":
        """`read` returns the images at some positions, on the device."""
        shape = (len(known.keys), 3, size, size)
        images: LazyImages = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=device)
        images.known, images._read, images._pixels = known, read, None
        return images

    def pixels(self) -> torch.Tensor:
        """Return the images as a plain tensor."""
        if self._pixels is None:
            self._pixels = self._read(np.arange(len(self.known.keys)))
        return self._pixels

    def some(self, positions: Positions) -> torch.Tensor:
        """Return the images at some positions as a plain tensor; others are not read for it."""
        return self._read(positions) if self._pixels is None else self._pixels[positions]

    def __getitem__(self, where: Any) -> torch.Tensor:
        if not isinstance(where, slice):
            return self.pixels()[where]
        positions = np.arange(len(self.known.keys))[where]
        return LazyImages(self.known.take(where), lambda some: self.some(positions[some]), self.shape[-1], self.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map_only(LazyImages, LazyImages.pixels, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyImages({len(self.known.keys)} images, {int(self.known.is_known.sum())} of them known)"
