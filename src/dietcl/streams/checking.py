"""Checking: the pixels of single rows of a manifest, wherever they lie, or a sentence on why there are none."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.index import Index
from dietcl.streams.place import Place, reason

_AT_ONCE = 1024  # images that are decoded between two words on progress


class Problem(NamedTuple):
    """An image that cannot be had: its file, its row of the manifest (from 0) and why."""

    file: str
    row: int
    sentence: str

    @property
    def kind(self) -> str:
        """The sentence without its particulars."""
        return self.sentence.partition(":")[0].partition("(")[0].strip()


class Images:
    """The images of a manifest one by one; unlike in training, one that cannot be read is an exception."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.place = Place.of(index.root)
        self._packs: dict[int, Pixels | str] = {}

    def file(self, row: int) -> str:
        """Return the file of a row, relative to the manifest's root."""
        return self.index.files[int(self.index.file[row])]

    def pixels(self, row: int, side: int) -> Pixels:
        """Return RGB [height, width, 3] as `decode` does; raises Unreadable."""
        offset, length = int(self.index.offset[row]), int(self.index.length[row])
        if offset >= 0 and length < 0:
            return self._packed(row, offset)
        file = self.file(row)
        if self.place.leads_outside(file):
            raise Unreadable("a link leads outside the folder")
        try:
            data = self.place.read(file, *((offset, offset + length) if offset >= 0 else (None, None)))
        except Exception as error:  # each kind of store has errors of its own
            raise Unreadable(f"cannot be read ({reason(error)})") from None
        if offset >= 0 and len(data) < length:
            raise Unreadable(f"the file ends before the image does (byte {offset + length:,})")
        return decode(data, side)

    def _packed(self, row: int, offset: int) -> Pixels:
        number = int(self.index.file[row])
        if number not in self._packs:
            self._packs[number] = self._open_pack(self.file(row))
        pack = self._packs[number]
        if isinstance(pack, str):
            raise Unreadable(pack)
        if offset >= len(pack):
            raise Unreadable(f"the pack holds fewer images ({len(pack):,})")
        image = np.array(pack[offset])
        return image if image.ndim == 3 else np.repeat(image[..., None], 3, 2)

    def _open_pack(self, file: str) -> Pixels | str:
        if not self.place.is_local:
            return "a pack must lie on this machine"
        if self.place.leads_outside(file):
            return "a link leads outside the folder"
        try:
            pack: Pixels = np.lib.format.open_memmap(self.place.path(file), mode="r")  # which refuses pickles
        except Exception as error:  # a broken header makes numpy raise anything
            return f"not a readable .npy pack ({reason(error)})"
        square = pack.ndim in (3, 4) and pack.shape[1] == pack.shape[2] and pack.shape[3:] in ((), (3,))
        if pack.dtype != np.uint8 or not square:
            return f"the pack does not hold uint8 squares (it holds {pack.dtype} {pack.shape})"
        return pack


def find_problems(
    index: Index,
    rows: npt.NDArray[np.int64],
    jobs: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Problem]:
    """Read and decode the images of these rows, several at a time, and yield those that cannot be."""
    images = Images(index)

    def problem(row: int) -> Problem | None:
        try:
            images.pixels(row, 1)
        except Unreadable as error:
            return Problem(images.file(row), row, str(error))
        return None

    with ThreadPoolExecutor(jobs, thread_name_prefix="check") as pool:
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE].tolist()
            yield from filter(None, pool.map(problem, part))
            progress(start + len(part))
