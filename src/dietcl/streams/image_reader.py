"""Reads the images of a manifest one by one, or raises a sentence on why one cannot be read."""

import numpy as np

from dietcl.errors import UserError, reason
from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import Index

LEADS_OUTSIDE = "a link leads outside the folder"


class ImageReader:
    """Reads single rows of a manifest; one that cannot be read raises Unreadable. Threads may share it."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.file_root = FileRoot.of(index.root)
        if self.file_root.is_local and not self.file_root.is_folder():
            fault = "the folder that the manifest names is not there; restore it or prepare the data again"
            raise UserError(f"{self.file_root.root}: {fault}")
        self._packs: dict[int, Pixels] = {}
        self._inside: set[str] = set()  # shards that are known to be below the root

    def file(self, row: int) -> str:
        """Return the file of a row, relative to the manifest's root."""
        return self.index.files[int(self.index.file[row])]

    def pixels(self, row: int, side: int) -> Pixels:
        """Return RGB [height, width, 3] as `decode` does; what is packed keeps its size."""
        offset = int(self.index.offset[row])
        if offset < 0 or self.index.length[row] >= 0:
            return decode(self._data(row), side)
        pack = self.pack(int(self.index.file[row]))
        if offset >= len(pack):
            raise Unreadable(f"the pack holds fewer images ({len(pack):,})")
        image = np.array(pack[offset])
        return image if image.ndim == 3 else np.repeat(image[..., None], 3, 2)

    def pack(self, number: int) -> Pixels:
        """Return a packed array by the number of its file."""
        if number in self._packs:
            return self._packs[number]
        file = self.index.files[number]
        if not self.file_root.is_local:
            raise Unreadable("a pack is mapped into memory and must be on this machine")
        if self.file_root.leads_outside(file):
            raise Unreadable(LEADS_OUTSIDE)
        try:
            pack: Pixels = np.lib.format.open_memmap(self.file_root.path(file), mode="r")  # which refuses pickles
        except Exception as error:  # a broken header makes numpy raise anything
            raise Unreadable(f"not a readable .npy pack ({reason(error)})") from None
        square = pack.ndim in (3, 4) and pack.shape[1] == pack.shape[2] and pack.shape[3:] in ((), (3,))
        if pack.dtype != np.uint8 or not square:
            raise Unreadable(
                f"the pack does not hold uint8 squares, [n, side, side(, 3)], but {pack.dtype} {pack.shape}"
            )
        self._packs[number] = pack
        return pack

    def bounds(self, row: int) -> tuple[int | None, int | None]:
        """Return the first byte of an encoded image and the one behind its last; None if the file is the image."""
        start, length = int(self.index.offset[row]), int(self.index.length[row])
        return (None, None) if length < 0 else (start, start + length)

    def _data(self, row: int) -> bytes:
        file, (start, end) = self.file(row), self.bounds(row)
        if file not in self._inside:
            if self.file_root.leads_outside(file):
                raise Unreadable(LEADS_OUTSIDE)
            if start is not None:  # a shard will be read from again
                self._inside.add(file)
        try:
            data = self.file_root.read(file, start, end)
        except Exception as error:  # each kind of store has errors of its own
            raise Unreadable(f"cannot be read ({reason(error)})") from None
        if start is not None and end is not None and len(data) < end - start:
            raise Unreadable(f"the file ends before the image does (byte {end:,})")
        return data
