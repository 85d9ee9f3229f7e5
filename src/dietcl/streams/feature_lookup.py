"""Finds the features of images in the cache, and keeps new ones there."""

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dietcl.feature_cache import FeatureCache, Keys
from dietcl.streams.content_keys import ContentKeys, Rows
from dietcl.streams.image_reader import ImageReader
from dietcl.streams.lazy_images import Known, View

CACHE_SIZE = 10 * 10**9  # bytes
MOST = float(np.finfo(np.float16).max)


class FeatureLookup:
    """What a frozen encoder makes of images: read from the cache by their content, or computed once and kept."""

    def __init__(self, root: Path, encoder: str, width: int, limit: int, view: View = "features") -> None:
        """`encoder` identifies the encoder and all that its features depend on; without a limit nothing is kept."""
        self.view, self._root, self._is_on = view, root, limit > 0
        self._cache = FeatureCache(root, encoder, width, limit)
        self._images: ContentKeys | None = None
        self._lock = threading.Lock()  # images are looked up in the loader's thread, features kept in another

    def open(self, reader: ImageReader) -> None:
        """Look up images of this manifest by row."""
        self._images = ContentKeys(reader, self._root / "images") if self._is_on else None

    def rows(self, rows: Rows) -> Known:
        """Return what is known of the images in rows of the index."""
        return self.keys(np.zeros((len(rows), 16), np.uint8) if self._images is None else self._images.of(rows))

    def keys(self, keys_N16: Keys) -> Known:
        """Return what is known of images by their content keys."""
        with self._lock:
            return Known(self.view, keys_N16, *self._cache.read(keys_N16))

    def keep(self, keys_N16: npt.NDArray[np.uint8], values_NW: torch.Tensor) -> None:
        """Keep features in half precision."""
        with self._lock:
            self._cache.write(keys_N16, values_NW.cpu().numpy())

    def flush(self) -> None:
        """Save what was kept."""
        with self._lock:
            self._cache.flush()


def to_half(values: torch.Tensor) -> torch.Tensor:
    """Return features in the precision of the cache, so that it changes no result."""
    return values.clamp(-MOST, MOST).half()
