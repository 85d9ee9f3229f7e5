"""Storage: row numbers -> pixels, from packed arrays by indexing and from encoded images by decoding."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from dietcl.errors import UserError, reason
from dietcl.launch import cores
from dietcl.plural import plural
from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.image_reader import ImageReader
from dietcl.streams.index import Index
from dietcl.streams.options import BAD_SHARE, Interpolation, Resizing

GRAY = 128  # replaces an image that cannot be read
_JUDGED = 1000  # images that are read before the share of bad ones is meaningful
_AT_ONCE = 16  # images a thread takes at a time: submitting each by itself would cost a tenth of its decoding
_PAUSES = (0.5, 2.0)  # seconds before a remote store is asked again
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)  # not retried
Result = TypeVar("Result")
Rows = npt.NDArray[np.integer[Any]]  # of the index


class Storage:
    """Reads images of one manifest by row of its index; one that cannot be read turns gray and is counted."""

    def __init__(
        self,
        index: Index,
        image_size: int,
        bad_share: float = BAD_SHARE,
        threads: int | None = None,
        resizing: Resizing = Resizing(),  # noqa: B008 (it is frozen)
    ) -> None:
        self.index = index
        self.image_size, self.resizing = image_size, resizing
        self.bad: dict[int, str] = {}  # row of the index -> why it cannot be read
        self.reader = ImageReader(index)
        self.pool = ThreadPoolExecutor(threads or cores(), thread_name_prefix="decode")
        self._bad_share = bad_share
        self._tried = np.zeros(len(index), np.bool_)  # rows of encoded images that were read

    def read(self, rows: Rows) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] for rows of the index: of each image the square in the middle."""
        found = self.fetch(rows)
        return found if isinstance(found, torch.Tensor) else squares(found, self.image_size, self.resizing)

    def fetch(self, rows: Rows) -> torch.Tensor | list[Pixels]:
        """Return squares of the image size if all rows are in packed arrays, and pictures of any shape otherwise."""
        if not self._is_packed(rows).all():
            return self.pictures(rows)
        files, offsets = self.index.file[rows], self.index.offset[rows]
        out = torch.empty((len(files), 3, self.image_size, self.image_size), dtype=torch.uint8)
        for file in np.unique(files):
            inside = np.flatnonzero(files == file)
            images = torch.from_numpy(self._pack(int(file), offsets[inside])[offsets[inside]])
            images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
            out[torch.from_numpy(inside)] = middle(images, self.image_size, self.resizing).expand(-1, 3, -1, -1)
        return out

    def pictures(self, rows: Rows) -> list[Pixels]:
        """Return pictures of any shape; those of packed arrays keep their size."""
        packed = self._is_packed(rows)
        pictures: list[Pixels] = [np.empty(0, np.uint8)] * len(rows)
        for i in np.flatnonzero(packed):
            self._pack(int(self.index.file[rows[i]]), self.index.offset[rows[i : i + 1]])  # checks that it is there
            pictures[i] = self.reader.pixels(int(rows[i]), self._side)
        encoded = np.flatnonzero(~packed)
        for i, picture in zip(encoded, self._decode(rows[encoded]), strict=True):
            pictures[i] = picture
        return pictures

    @property
    def _side(self) -> int:
        """The shorter side that decoded images need."""
        return self.resizing.side(self.image_size)

    def _is_packed(self, rows: Rows) -> npt.NDArray[np.bool_]:
        return (self.index.offset[rows] >= 0) & (self.index.length[rows] < 0)

    def _pack(self, file: int, offsets: npt.NDArray[np.int64]) -> Pixels:
        """Return a packed array that holds these rows; a missing one is not a fault of single images."""
        try:
            pack = self.reader.pack(file)
            if offsets.max() >= len(pack):
                raise Unreadable(f"the manifest asks for image {offsets.max()} and the pack holds {len(pack)}")
        except Unreadable as error:
            path = self.reader.file_root.path(self.index.files[file])
            raise UserError(f"{path}: {error}; prepare the data again") from None
        return pack

    def _decode(self, rows: Rows) -> list[Pixels]:
        fetched = None if self.reader.file_root.is_local else self._fetch(rows)

        def decode_one(i: int) -> Pixels | str:
            try:
                if fetched is not None:
                    return decode(fetched[i], self._side)
                return self.reader.pixels(int(rows[i]), self._side)
            except Unreadable as error:
                return str(error)

        self._tried[rows] = True
        pictures = []
        for row, found in zip(rows.tolist(), spread(self.pool, decode_one, len(rows)), strict=True):
            if isinstance(found, str):
                self.bad[row] = found
                self._refuse_many_bad(row)
                found = np.full((self.image_size, self.image_size, 3), GRAY, np.uint8)
            pictures.append(found)
        return pictures

    def _fetch(self, rows: Rows) -> list[bytes | Exception]:
        """Fetch the bytes of many remote images concurrently, and retry those that failed for a moment."""
        root = self.reader.file_root
        files = [self.reader.file(row) for row in rows.tolist()]
        bounds = [self.reader.bounds(row) for row in rows.tolist()]
        found: list[bytes | Exception] = [OSError("not fetched")] * len(files)
        waiting = list(range(len(files)))
        for pause in (0.0, *_PAUSES):
            time.sleep(pause)
            starts, ends = zip(*(bounds[i] for i in waiting), strict=True)
            for i, data in zip(waiting, root.read_many([files[i] for i in waiting], starts, ends), strict=True):
                found[i] = data
            waiting = [i for i in waiting if isinstance(found[i], Exception) and not isinstance(found[i], _FINAL)]
            if not waiting:
                return found
        if len(waiting) == len(files) > 1:
            last = found[-1]
            assert isinstance(last, Exception)
            raise UserError(f"{root.root}: cannot be reached ({reason(last)}); give the same command again when it can")
        return found

    def describe(self, row: int) -> str:
        """Return which image cannot be read, and why."""
        return f"{self.reader.file_root.path(self.reader.file(row))}: {self.bad[row]}"

    def _refuse_many_bad(self, last: int) -> None:
        tried = int(np.count_nonzero(self._tried))
        # One image never ends a run, unless none may be bad; the first few say little about their share.
        most = max(1.0, self._bad_share * min(max(tried, _JUDGED), len(self.index))) if self._bad_share else 0.0
        if self._bad_share < 1 and len(self.bad) > most:
            raise UserError(
                f"{plural(len(self.bad), 'image')} cannot be read, more than {self._bad_share:.2%} of those tried "
                f"(--bad-images): the last one is {self.describe(last)}; `dietcl data check` lists them all"
            )


def resize(images: torch.Tensor, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> torch.Tensor:
    """Return uint8 [B, C, *size], smoothed where it shrinks."""
    if images.shape[-2:] == size:
        return images
    return F.interpolate(images, size, mode=interpolation, antialias=True)


def middle(images: torch.Tensor, size: int, resizing: Resizing = Resizing()) -> torch.Tensor:  # noqa: B008 (frozen)
    """Return uint8 [B, C, size, size]: the square in the middle of each image."""
    side = max(1, round(min(images.shape[-2:]) * resizing.crop_ratio))
    top, left = ((length - side) // 2 for length in images.shape[-2:])
    return resize(images[..., top : top + side, left : left + side], (size, size), resizing.interpolation)


def squares(pictures: Sequence[Pixels], size: int, resizing: Resizing = Resizing()) -> torch.Tensor:  # noqa: B008
    """Return uint8 [B, 3, size, size]: of each picture the square in its middle."""
    out = torch.empty((len(pictures), 3, size, size), dtype=torch.uint8)
    for i, picture in enumerate(pictures):
        out[i] = middle(torch.from_numpy(picture).permute(2, 0, 1)[None], size, resizing)[0]
    return out


def spread(pool: Executor, work: Callable[[int], Result], count: int) -> list[Result]:
    """Return work(i) for each i below `count`, computed in chunks by the threads of a pool."""

    def work_on(start: int) -> list[Result]:
        return [work(i) for i in range(start, min(start + _AT_ONCE, count))]

    return list(chain.from_iterable(pool.map(work_on, range(0, count, _AT_ONCE))))
