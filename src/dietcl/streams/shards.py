"""Shards: encoded images in plain tar files, found again by the first byte and the length of each."""

import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

MOST_BYTES = 2**30
_BLOCK = tarfile.BLOCKSIZE


class ShardWriter:
    """Appends images to tar files that any tool can read; who keeps offset and length reads them at random."""

    def __init__(self, folder: Path, prefix: str = "images", most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._prefix, self._most_bytes = folder, prefix, most_bytes
        self._number = self._size = 0
        self._file = self._open()

    def add(self, name: str, data: bytes) -> tuple[str, int, int]:
        """Write one image and return its file, first byte and length."""
        if self._size and self._size + len(data) > self._most_bytes:
            self.close()
            self._number += 1
            self._file = self._open()
        member = tarfile.TarInfo(name)
        member.size = len(data)
        header = member.tobuf(tarfile.PAX_FORMAT)
        self._file.write(header + data + bytes(-len(data) % _BLOCK))
        offset = self._size + len(header)
        self._size = offset + len(data) + -len(data) % _BLOCK
        return self.path.name, offset, len(data)

    def close(self) -> None:
        """End the current tar file."""
        self._file.write(bytes(2 * _BLOCK))
        self._file.close()
        self._size = 0

    def _open(self) -> BinaryIO:
        self.path = self._folder / f"{self._prefix}-{self._number:05d}.tar"
        return self.path.open("wb")


def member_name(number: int, data: bytes) -> str:
    """Name a member after its number and what its first bytes say that it is."""
    kinds = {b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp", b"GIF8": "gif"}
    kind = next((kind for start, kind in kinds.items() if data.startswith(start)), "img")
    return f"{number:09d}.{kind}"


def is_hostile(name: str) -> bool:
    """Tell whether a member's name would lead out of the folder that it is unpacked to, or to a device."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or bool(re.match(r"[A-Za-z]:", name)) or "\0" in name
