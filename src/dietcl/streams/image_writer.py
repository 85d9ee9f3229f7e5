"""Writes extracted images: equal squares into one array, encoded ones into tar shards."""

import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dietcl.files import IMAGES

MOST_BYTES = 2**30
_BLOCK = tarfile.BLOCKSIZE


class ShardWriter:
    """Appends images to tar files that any tool can read; offset and length give random access to them."""

    def __init__(self, folder: Path, prefix: str = "images", most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._prefix, self._most_bytes = folder, prefix, most_bytes
        self._number = 0
        self._file = self._open()

    def add(self, name: str, data: bytes) -> tuple[str, int, int]:
        """Write one image and return its file, first byte and length."""
        if self._file.tell() and self._file.tell() + len(data) > self._most_bytes:
            self.close()
            self._number += 1
            self._file = self._open()
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._file.write(member.tobuf(tarfile.PAX_FORMAT))
        offset = self._file.tell()
        self._file.write(data + bytes(-len(data) % _BLOCK))
        return self.path.name, offset, len(data)

    def close(self) -> None:
        """End the current tar file."""
        self._file.write(bytes(2 * _BLOCK))
        self._file.close()

    def _open(self) -> BinaryIO:
        self.path = self._folder / f"{self._prefix}-{self._number:05d}.tar"
        return self.path.open("wb")


def member_name(number: int, data: bytes) -> str:
    """Return a member's name: its number, and the image format that its first bytes show."""
    kinds = {b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp", b"GIF8": "gif"}
    kind = next((kind for start, kind in kinds.items() if data.startswith(start)), "img")
    return f"{number:09d}.{kind}"


def is_hostile(name: str) -> bool:
    """Return whether a member's name leads out of the folder that it is unpacked to, or to a device."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or bool(re.match(r"[A-Za-z]:", name)) or "\0" in name


class ImageWriter:
    """Writes images into a folder and returns where each went."""

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
        """Finish the files."""
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
