"""Storage: row numbers -> pixels, from packed arrays by indexing and from encoded images by decoding."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from dietcl.errors import UserError, reason
from dietcl.process_pool import cores
from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.image_reader import Gallery
from dietcl.streams.index import Index
from dietcl.streams.recipes import BAD_SHARE

GRAY = 128  # what stands in for an image that cannot be read
_JUDGED = 1000  # images that are read before a share of them says anything
_AT_ONCE = 16  # images a thread takes at a time: handing over each by itself would cost a tenth of its decoding
_PAUSES = (0.5, 2.0)  # seconds before a far store is asked again
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)  # asking again would not help
Result = TypeVar("Result")
Rows = npt.NDArray[np.integer[Any]]  # of the index


class Storage:
    """Reads images of one manifest by row of its index; one that cannot be read turns gray and is counted."""

    def __init__(self, index: Index, image_size: int, bad_share: float = BAD_SHARE, threads: int | None = None) -> None:
        self.index = index
        self.image_size = image_size
        self.bad: dict[int, str] = {}  # row of the index -> why it cannot be read
        self.gallery = Gallery(index)
        self.pool = ThreadPoolExecutor(threads or cores(), thread_name_prefix="decode")
        self._bad_share = bad_share
        self._tried = np.zeros(len(index), np.bool_)  # rows of encoded images that were read
        self._lock = threading.Lock()

    def read(self, rows: Rows) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] for rows of the index: of each image the square in the middle."""
        found = self.fetch(rows)
        return found if isinstance(found, torch.Tensor) else squares(found, self.image_size)

    def fetch(self, rows: Rows) -> torch.Tensor | list[Pixels]:
        """Return squares of the image size if all rows lie in packed arrays, and pictures of any shape otherwise."""
        if ((self.index.offset[rows] >= 0) & (self.index.length[rows] < 0)).all():
            return self._read_packs(self.index.file[rows], self.index.offset[rows])
        return self.pictures(rows)

    def pictures(self, rows: Rows) -> list[Pixels]:
        """Return pictures of any shape, those of packed arrays in the size that they have there."""
        offsets, files = self.index.offset[rows], self.index.file[rows]
        packed = (offsets >= 0) & (self.index.length[rows] < 0)
        pictures: list[Pixels] = [np.empty(0, np.uint8)] * len(rows)
        for i in np.flatnonzero(packed):
            picture = self._pack(int(files[i]), offsets[i : i + 1])[int(offsets[i])]
            pictures[i] = np.array(picture) if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2)
        encoded = np.flatnonzero(~packed)
        for i, picture in zip(encoded, self._decode(rows[encoded]), strict=True):
            pictures[i] = picture
        return pictures

    def _read_packs(self, files: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]) -> torch.Tensor:
        out = torch.empty((len(files), 3, self.image_size, self.image_size), dtype=torch.uint8)
        for file in np.unique(files):
            inside = np.flatnonzero(files == file)
            images = torch.from_numpy(self._pack(int(file), offsets[inside])[offsets[inside]])
            images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
            out[torch.from_numpy(inside)] = resize(images, (self.image_size, self.image_size)).expand(-1, 3, -1, -1)
        return out

    def _pack(self, file: int, offsets: npt.NDArray[np.int64]) -> Pixels:
        """Return a packed array that holds these rows; if there is none, that is no matter of single images."""
        path = self.gallery.place.path(self.index.files[file])
        try:
            pack = self.gallery.pack(file)
        except Unreadable as error:
            raise UserError(f"{path}: {error}; prepare the data again") from None
        if offsets.max() >= len(pack):
            raise UserError(
                f"{path}: the manifest asks for image {offsets.max()} "
                f"and the pack holds {len(pack)}; prepare the data again"
            )
        return pack

    def _decode(self, rows: Rows) -> list[Pixels]:
        fetched = None if self.gallery.place.is_local else self._fetch_far(rows)

        def one(i: int) -> Pixels | str:
            try:
                if fetched is None:
                    return self.gallery.pixels(int(rows[i]), self.image_size)
                data = fetched[i]
                if isinstance(data, Exception):
                    return f"cannot be read ({reason(data)})"
                return decode(data, self.image_size)
            except Unreadable as error:
                return str(error)

        self._tried[rows] = True
        pictures = []
        for row, found in zip(rows.tolist(), spread(self.pool, one, len(rows)), strict=True):
            if isinstance(found, str):
                self._note(row, found)
                found = np.full((self.image_size, self.image_size, 3), GRAY, np.uint8)
            pictures.append(found)
        return pictures

    def _fetch_far(self, rows: Rows) -> list[bytes | Exception]:
        """Ask for the bytes of many images at once, and again for those that a hiccup of the store kept back."""
        place = self.gallery.place
        files = [self.gallery.file(row) for row in rows.tolist()]
        bounds = [self.gallery.bounds(row) for row in rows.tolist()]
        found: list[bytes | Exception] = [OSError("not fetched")] * len(files)
        waiting = list(range(len(files)))
        for pause in (0.0, *_PAUSES):
            time.sleep(pause)
            starts, ends = zip(*(bounds[i] for i in waiting), strict=True)
            for i, data in zip(waiting, place.read_many([files[i] for i in waiting], starts, ends), strict=True):
                found[i] = data
            waiting = [i for i in waiting if isinstance(found[i], Exception) and not isinstance(found[i], _FINAL)]
            if not waiting:
                return found
        if len(waiting) == len(files) > 1:
            last = found[-1]
            assert isinstance(last, Exception)
            raise UserError(
                f"{place.root}: cannot be reached ({reason(last)}); give the same command again when it can"
            )
        return found

    def describe(self, row: int) -> str:
        """Say which image cannot be read, and why."""
        return f"{self.gallery.place.path(self.gallery.file(row))}: {self.bad[row]}"

    def _note(self, row: int, sentence: str) -> None:
        """Remember a bad row, and stop where there are too many of them."""
        with self._lock:
            self.bad[row] = sentence
        tried = int(np.count_nonzero(self._tried))
        # One image never ends a run, unless none may be bad; the first few say little about their share.
        most = max(1.0, self._bad_share * min(max(tried, _JUDGED), len(self.index))) if self._bad_share else 0.0
        if self._bad_share < 1 and len(self.bad) > most:
            raise UserError(
                f"{len(self.bad)} images cannot be read, which is more than {self._bad_share:.2%} of those tried "
                f"(--bad-images): the last one is {self.describe(row)}; `dietcl data check` lists them all"
            )


def resize(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return uint8 [B, C, *size], smoothed where it shrinks."""
    if images.shape[-2:] == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def squares(pictures: Sequence[Pixels], size: int) -> torch.Tensor:
    """Return uint8 [B, 3, size, size]: of each picture the square in its middle."""
    out = torch.empty((len(pictures), 3, size, size), dtype=torch.uint8)
    for i, picture in enumerate(pictures):
        side = min(picture.shape[:2])
        top, left = ((length - side) // 2 for length in picture.shape[:2])
        middle = torch.from_numpy(picture[top : top + side, left : left + side])
        out[i] = resize(middle.permute(2, 0, 1)[None], (size, size))[0]
    return out


def spread(pool: Executor, work: Callable[[int], Result], count: int) -> list[Result]:
    """Do something for each number below `count`, some at a time in every thread."""

    def some(start: int) -> list[Result]:
        return [work(i) for i in range(start, min(start + _AT_ONCE, count))]

    done: Iterable[list[Result]] = pool.map(some, range(0, count, _AT_ONCE))
    return list(chain.from_iterable(done))
