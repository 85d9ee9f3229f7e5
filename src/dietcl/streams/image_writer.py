"""Copies of images that had to be taken out of something: equal squares in one array, encoded ones in shards."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.files import IMAGES
from dietcl.streams.shards import ShardWriter, member_name


class Copies:
    """Writes images into a folder and says where each went."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.count = 0
        self._array: Any = None
        self._shape: tuple[int, ...] = ()
        self._shards: ShardWriter | None = None

    def pixels(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Append square uint8 images [n, side, side] or [n, side, side, 3]; returns their rows in the array."""
        if self._array is None:
            self._array, self._shape = (self._folder / IMAGES).open("wb"), images.shape[1:]
            self._write_header()
        square = len(self._shape) in (2, 3) and self._shape[0] == self._shape[1] and self._shape[2:] in ((), (3,))
        if images.dtype != np.uint8 or images.shape[1:] != self._shape or not square:
            raise ValueError(f"images are {images.dtype} {images.shape[1:]}; they must be uint8 squares, all alike")
        self._array.write(np.ascontiguousarray(images).data)
        self.count += len(images)
        return np.arange(self.count - len(images), self.count)

    def encoded(self, data: bytes) -> tuple[str, int, int]:
        """Append one image that is bytes of some format; returns its file, first byte and length."""
        self._shards = self._shards or ShardWriter(self._folder)
        self.count += 1
        return self._shards.add(member_name(self.count - 1, data), data)

    def close(self) -> None:
        """Make the files whole."""
        if self._array is not None:
            self._write_header()
            self._array.close()
        if self._shards is not None:
            self._shards.close()

    def _write_header(self) -> None:
        # numpy leaves room in the header for the count to grow.
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self._shape)}
        self._array.seek(0)
        np.lib.format.write_array_header_1_0(self._array, header)
