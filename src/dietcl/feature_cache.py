"""Cache of features: what an encoder makes of an image, by the image's content, shared by all runs of a machine.

A segment, <root>/<encoder>/<age>-<random>.rows, has rows sorted by key; it is never changed, only merged or removed.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dietcl.errors import UserError
from dietcl.files import locked

Features = NDArray[np.float16]
Keys = NDArray[np.uint8]  # 16 bytes each; all zero: unknown
_Words = NDArray[np.uint64]
_MAGIC = int.from_bytes(b"dietclF1", "little")
_ROWS, _SECONDS = 1024, 30.0  # unsaved rows, and how long the first of them waits
_LARGEST = 2**30  # bytes of a merged segment
_SHARE = 8  # a segment takes at most this part of the limit, since it is removed as a whole
_FAN = 4  # segments of about one size that are merged
_CHUNK = 4096  # rows that are copied at a time
_ABANDONED = 3600 * 10**9  # nanoseconds after which an unfinished file is nobody's


@dataclass(frozen=True)
class _Segment:
    """A mapped file: keys as two numbers, sorted by the first of them, a checksum and the features of each row."""

    path: Path
    age: int  # nanoseconds: the time when the newest of its rows were written
    keys_2N: _Words
    checks_N: _Words
    values_NW: Features

    def find(self, keys_2K: _Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of some keys are here, and in which rows."""
        found = np.full(keys_2K.shape[1], -1)
        position = np.minimum(np.searchsorted(self.keys_2N[0], keys_2K[0]), len(self.checks_N) - 1)
        waiting = np.flatnonzero(self.keys_2N[0, position] == keys_2K[0])
        while len(waiting):  # more than once only for keys of which another has the same first half
            same = self.keys_2N[1, position[waiting]] == keys_2K[1, waiting]
            found[waiting[same]] = position[waiting[same]]
            waiting = waiting[~same & (position[waiting] + 1 < len(self.checks_N))]
            position[waiting] += 1
            waiting = waiting[self.keys_2N[0, position[waiting]] == keys_2K[0, waiting]]
        which = np.flatnonzero(found >= 0)
        return which, found[which]


class FeatureCache:
    """Features of images by content key: float16 on disk, memory-mapped, bounded, shared by processes.

    Whatever happens to the disk or the files, rows are found exact or not at all. One thread of a process uses it.
    """

    def __init__(self, root: Path, encoder: str, width: int, limit: int) -> None:
        self.width = width
        self.is_writable = limit > 0
        self._root, self._folder, self._limit = root, root / encoder, limit
        self._segments: dict[str, _Segment | None] = {}  # by name; None: cannot be opened
        self._unsaved: dict[bytes, Features] = {}
        self._since = 0.0  # when the first unsaved row came

    def read(self, keys_N16: Keys) -> tuple[Features, NDArray[np.bool_]]:
        """Return the features of images, and which of them were found; the others are zero."""
        values = np.zeros((len(keys_N16), self.width), np.float16)
        found = np.zeros(len(keys_N16), np.bool_)
        if not self._limit:
            return values, found
        if self._unsaved:
            for i, key in enumerate(_as_bytes(keys_N16)):
                if (row := self._unsaved.get(key)) is not None:
                    values[i], found[i] = row, True
        keys = np.ascontiguousarray(keys_N16).view("<u8").T
        missing = np.flatnonzero(~found & keys.any(0))
        missing = missing[np.argsort(keys[0, missing])]  # neighbours touch the same pages
        for segment in self._list():
            which, position = segment.find(keys[:, missing])
            there, rows = missing[which], segment.values_NW[position]
            intact = _checksums(keys[:, there], rows) == segment.checks_N[position]
            values[there[intact]], found[there[intact]] = rows[intact], True
            missing = np.delete(missing, which[intact])
            if not len(missing):
                break
        return values, found

    def write(self, keys_N16: Keys, values_NW: Features) -> None:
        """Keep the features of images: in memory at first, for `read` at once, and soon on disk."""
        if not self.is_writable:
            return
        if not self._unsaved:
            self._since = time.monotonic()
        values = np.array(values_NW, np.float16).reshape(len(keys_N16), self.width)  # the caller may reuse its own
        self._unsaved.update(zip(_as_bytes(keys_N16), values, strict=True))
        self._unsaved.pop(bytes(16), None)
        if len(self._unsaved) >= _ROWS or time.monotonic() - self._since >= _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Save what is unsaved; a disk that is full or may not be written to turns writing off for this process."""
        rows, self._unsaved = self._unsaved, {}
        if not rows:
            return
        keys = np.frombuffer(b"".join(rows), "<u8").reshape(-1, 2).T
        order = np.argsort(keys[0])
        keys, values = keys[:, order], np.stack(list(rows.values()))[order]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._folder, time.time_ns(), self.width, keys, _checksums(keys, values), [values])
            # Whoever holds the lock tidies up for all. Where a file system has no locks, two at once only repeat work.
            with suppress(UserError), locked(self._root, lambda _: None):
                while self._merge():
                    pass
                _evict(self._root, self._limit)
        except FileNotFoundError:
            pass  # somebody removed the folder just now
        except OSError:
            self.is_writable = False

    def _list(self) -> list[_Segment]:
        """Return the segments, newest first; those that came are opened, and those that went are let go."""
        names = []
        with suppress(OSError):
            names = [name for name in os.listdir(self._folder) if name.endswith(".rows")]
        self._segments = {
            name: self._segments[name] if name in self._segments else _open(self._folder / name, self.width)
            for name in sorted(names, reverse=True)
        }
        return [segment for segment in self._segments.values() if segment is not None]

    def _merge(self) -> bool:
        """Merge neighbours in age, so that there are few segments to search; return whether there were any to merge."""
        segments = self._list()
        segments = segments[_neighbours([s.values_NW.nbytes for s in segments], min(_LARGEST, self._limit // _SHARE))]
        if not segments:
            return False
        intact = [np.flatnonzero(_checksums(s.keys_2N, s.values_NW) == s.checks_N) for s in segments]
        source, position = np.repeat(np.arange(len(segments)), [len(rows) for rows in intact]), np.concatenate(intact)
        keys = np.concatenate([s.keys_2N[:, rows] for s, rows in zip(segments, intact, strict=True)], 1)
        checks = np.concatenate([s.checks_N[rows] for s, rows in zip(segments, intact, strict=True)])
        order = np.lexsort((source, keys[1], keys[0]))
        is_older = (keys[:, order[1:]] == keys[:, order[:-1]]).all(0)
        order = np.delete(order, 1 + np.flatnonzero(is_older))

        def copied() -> Iterator[Features]:
            for start in range(0, len(order), _CHUNK):
                part = order[start : start + _CHUNK]
                values = np.empty((len(part), self.width), np.float16)
                for number, segment in enumerate(segments):
                    inside = source[part] == number
                    values[inside] = segment.values_NW[position[part[inside]]]
                yield values

        _write(self._folder, segments[0].age, self.width, keys[:, order], checks[order], copied())
        for segment in segments:
            segment.path.unlink(missing_ok=True)
        return True


def cache_usage(root: Path) -> tuple[int, int]:
    """Return how many bytes a cache takes on disk, and in how many files."""
    sizes = [size for _, size, _ in _files(root)]
    return sum(sizes), len(sizes)


def _as_bytes(keys_N16: Keys) -> list[bytes]:
    return np.ascontiguousarray(keys_N16).view("V16").ravel().tolist()


def _checksums(keys_2N: _Words, values_NW: Features) -> _Words:
    """Return sums of each row's words times fixed odd numbers, which no change of a single word leaves as they are."""
    seed = hashlib.shake_128(b"dietcl features").digest(8 * (2 + values_NW.shape[1]))
    weights = np.frombuffer(seed, "<u8") | np.uint64(1)
    sums: _Words = np.einsum("nw,w->n", values_NW.view(np.uint16), weights[2:], dtype=np.uint64)  # copies nothing
    sums += weights[:2] @ keys_2N
    return sums


def _write(folder: Path, age: int, width: int, keys_2N: _Words, checks_N: _Words, values: Iterable[Features]) -> None:
    """Write a segment; its age is its time, and its name begins with it."""
    name = f"{age:016x}-{os.urandom(6).hex()}.rows"
    partial = folder / f".{name}.partial"
    try:
        with partial.open("wb") as file:
            file.write(np.array([_MAGIC, width, len(checks_N)], "<u8").data)
            file.write(np.ascontiguousarray(keys_2N).data)
            file.write(checks_N.data)
            file.writelines(part.data for part in values)
            file.flush()
            os.fsync(file.fileno())
        os.utime(partial, ns=(age, age))
        partial.replace(folder / name)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _open(path: Path, width: int) -> _Segment | None:
    # To read from a mapped file that was shortened ends a process: nobody shortens any, they are renamed and removed.
    with suppress(OSError, ValueError):
        raw = np.memmap(path, np.uint8, "r").view(np.ndarray)
        magic, wide, rows = raw[:24].view("<u8").tolist()
        if (magic, wide, len(raw)) == (_MAGIC, width, 24 + rows * (24 + 2 * width)) and rows:
            words, values = raw[24 : 24 + 24 * rows].view("<u8"), raw[24 + 24 * rows :].view("<f2")
            keys, checks = words[: 2 * rows].reshape(2, rows), words[2 * rows :]
            return _Segment(path, int(path.name[:16], 16), keys, checks, values.reshape(-1, width))
    return None


def _neighbours(sizes: Sequence[int], most: int) -> slice:
    """Return which segments to merge: neighbours with `_FAN` of one tier (a power of four) and none of a higher one."""
    tiers = [size.bit_length() // 2 if size * _FAN <= most else 64 for size in sizes]  # 64: full-grown
    for tier in sorted(set(tiers) - {64}):
        for _, run in groupby(range(len(tiers)), lambda i: tiers[i] <= tier):  # noqa: B023
            members = list(run)
            if tiers[members[0] : members[-1] + 1].count(tier) >= _FAN:
                # All of them rise to a higher tier, so that no row is copied more often than there are tiers.
                fit = sum(total <= most for total in accumulate(sizes[i] for i in reversed(members)))
                return slice(members[-fit], members[-1] + 1)
    return slice(0)


def _files(root: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the time, the bytes on disk (a file with holes takes less than its length) and the path of each file."""
    with suppress(OSError):
        for path in root.glob("*/*"):
            with suppress(OSError):
                status = path.lstat()
                yield status.st_mtime_ns, getattr(status, "st_blocks", 0) * 512 or status.st_size, path


def _evict(root: Path, limit: int) -> None:
    """Remove the oldest files until the others are within the limit, and what killed processes left unfinished."""
    files = sorted(_files(root))
    total = sum(size for _, size, _ in files)
    for age, size, path in files:
        is_unfinished = path.name.startswith(".")
        if time.time_ns() - age > _ABANDONED if is_unfinished else total > limit:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                total -= size
