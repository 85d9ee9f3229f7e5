"""The gallery: the images of a manifest one by one, wherever they lie, or a sentence on why one cannot be had."""

import numpy as np

from dietcl.errors import UserError, reason
from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.filesystem import Place
from dietcl.streams.index import Index


class Gallery:
    """Reads single rows of a manifest; one that cannot be read raises Unreadable. Threads may share it."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.place = Place.of(index.root)
        if self.place.is_local and not self.place.is_folder():
            raise UserError(
                f"{self.place.root}: the folder that the manifest names is not there; "
                "put it back, or prepare the data again where it is now"
            )
        self._packs: dict[int, Pixels] = {}
        self._inside: set[str] = set()  # shards that are known to lie in the place

    def file(self, row: int) -> str:
        """Return the file of a row, relative to the manifest's root."""
        return self.index.files[int(self.index.file[row])]

    def pixels(self, row: int, side: int) -> Pixels:
        """Return RGB [height, width, 3] as `decode` does; what is packed keeps its size."""
        if self.index.offset[row] >= 0 and self.index.length[row] < 0:
            return self._packed(row)
        return decode(self._data(row), side)

    def pack(self, number: int) -> Pixels:
        """Return a packed array by the number of its file."""
        if number not in self._packs:
            self._packs[number] = self._open_pack(self.index.files[number])
        return self._packs[number]

    def bounds(self, row: int) -> tuple[int | None, int | None]:
        """Return the first byte of an encoded image and the one behind its last; None if the file is the image."""
        start, length = int(self.index.offset[row]), int(self.index.length[row])
        return (None, None) if length < 0 else (start, start + length)

    def _data(self, row: int) -> bytes:
        file, (start, end) = self.file(row), self.bounds(row)
        if file not in self._inside:
            if self.place.leads_outside(file):
                raise Unreadable("a link leads outside the folder")
            if start is not None:  # a shard will be read from again
                self._inside.add(file)
        try:
            data = self.place.read(file, start, end)
        except Exception as error:  # each kind of store has errors of its own
            raise Unreadable(f"cannot be read ({reason(error)})") from None
        if start is not None and end is not None and len(data) < end - start:
            raise Unreadable(f"the file ends before the image does (byte {end:,})")
        return data

    def _packed(self, row: int) -> Pixels:
        pack, offset = self.pack(int(self.index.file[row])), int(self.index.offset[row])
        if offset >= len(pack):
            raise Unreadable(f"the pack holds fewer images ({len(pack):,})")
        image = np.array(pack[offset])
        return image if image.ndim == 3 else np.repeat(image[..., None], 3, 2)

    def _open_pack(self, file: str) -> Pixels:
        if not self.place.is_local:
            raise Unreadable("a pack is mapped into memory and must lie on this machine")
        if self.place.leads_outside(file):
            raise Unreadable("a link leads outside the folder")
        try:
            pack: Pixels = np.lib.format.open_memmap(self.place.path(file), mode="r")  # which refuses pickles
        except Exception as error:  # a broken header makes numpy raise anything
            raise Unreadable(f"not a readable .npy pack ({reason(error)})") from None
        square = pack.ndim in (3, 4) and pack.shape[1] == pack.shape[2] and pack.shape[3:] in ((), (3,))
        if pack.dtype != np.uint8 or not square:
            raise Unreadable(
                "the pack does not hold uint8 squares, [images, side, side] or [images, side, side, 3] "
                f"(it holds {pack.dtype} {pack.shape})"
            )
        return pack
