"""Content keys of images: the same bytes have the same key, whatever the file, the manifest and the run."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dietcl.streams.decode import Pixels, Unreadable
from dietcl.streams.image_reader import ImageReader

Rows = NDArray[np.integer[Any]]  # of the index
_Words = NDArray[np.uint64]
_ENTRY = 24  # bytes a row in the memo: two halves of a key and a check
_MISSING = (0, 0, 0)  # the state of a file that is not there
# Odd numbers: a sum of products with them changes whenever a single factor does.
_WEIGHTS = np.frombuffer(hashlib.shake_128(b"dietcl content keys").digest(40), "<u8") | np.uint64(1)


def content_key(data: bytes) -> bytes:
    """Return 16 bytes that identify an encoded image."""
    digest = hashlib.sha256(b"encoded:")  # with the processor's instructions for it, 1.4 times as fast as blake2b
    digest.update(data)
    return digest.digest()[:16]


def pixels_key(pixels: Pixels) -> bytes:
    """Return 16 bytes that identify decoded pixels and their shape, and no encoded image."""
    digest = hashlib.sha256(f"pixels {pixels.shape}:".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:16]


class ContentKeys:
    """Content keys of a manifest's images; a file is hashed once and then recognized by its size and time.

    Remote images have none: a store would have to be asked for the state of each. Of files with many images the state
    is looked up once for the process, of others each time.
    """

    def __init__(self, reader: ImageReader, memo: Path) -> None:
        self._reader, self._index = reader, reader.index
        name = hashlib.sha256(f"{self._index.hash}\n{reader.file_root.root}".encode()).hexdigest()[:32]
        self._path = memo / f"{name}.keys"
        self._is_writable = True
        self._memo: _Words | None = self._open()
        with suppress(OSError):
            os.utime(self._path)  # it is in use: the cache removes the oldest files first
        self._states: dict[int, tuple[int, int, int]] = {}  # of shards and packs, by the number of the file

    def of(self, rows: Rows) -> NDArray[np.uint8]:
        """Return the keys [N, 16] of rows of the index; zeros where an image cannot be read or is remote."""
        entries = np.zeros((len(rows), 3), np.uint64)
        if self._reader.file_root.is_local and len(rows):
            states = self._states_of(rows)
            if self._memo is not None:
                entries = self._memo[rows]
            is_there = (states != _MISSING).any(1)
            is_known = is_there & (entries[:, 2] == _checks(entries[:, :2], states))
            entries[~is_known] = 0
            for i in np.flatnonzero(is_there & ~is_known):
                with suppress(Unreadable):
                    entries[i, :2] = np.frombuffer(self._key(int(rows[i])), "<u8")
            new = np.flatnonzero(~is_known & entries.any(1))
            entries[new, 2] = _checks(entries[new, :2], states[new])
            self._remember(rows[new], entries[new])
        return np.ascontiguousarray(entries[:, :2]).view(np.uint8)

    def _states_of(self, rows: Rows) -> _Words:
        """Return the size and times of each row's file; taken before it is read, so that a later change shows."""
        states = np.empty((len(rows), 3), np.uint64)
        is_shared = self._index.offset[rows] >= 0
        numbers, inverse = np.unique(self._index.file[rows[is_shared]], return_inverse=True)
        for number in numbers.tolist():
            if number not in self._states:
                self._states[number] = self._state(self._index.files[number])
        states[is_shared] = np.array([self._states[n] for n in numbers.tolist()], np.uint64).reshape(-1, 3)[inverse]
        for i in np.flatnonzero(~is_shared).tolist():
            states[i] = self._state(self._reader.file(int(rows[i])))
        return states

    def _state(self, file: str) -> tuple[int, int, int]:
        try:
            status = os.stat(self._reader.file_root.path(file))
        except (OSError, ValueError):  # a name with a null byte
            return _MISSING
        # The second time changes even if a file is replaced by one of the same size and age.
        return status.st_size, status.st_mtime_ns % 2**64, status.st_ctime_ns % 2**64  # negative before 1970

    def _key(self, row: int) -> bytes:
        offset, length = int(self._index.offset[row]), int(self._index.length[row])
        if offset < 0 or length >= 0:
            return content_key(self._reader._data(row))
        pack = self._reader.pack(int(self._index.file[row]))
        if offset >= len(pack):
            raise Unreadable(f"the pack holds fewer images ({len(pack):,})")
        return pixels_key(pack[offset])

    def _remember(self, rows: Rows, entries: _Words) -> None:
        """Write entries to the memo; processes that write at once write the same, and a torn entry fails its check."""
        if not len(rows) or not self._is_writable:
            return
        try:
            if self._open() is None:
                self._create()
            with self._path.open("r+b", 0) as file:
                # Written, not mapped: on a full disk, a hole that is written through a map ends the process.
                for row, entry in zip(rows.tolist(), entries, strict=True):
                    os.pwrite(file.fileno(), entry.tobytes(), _ENTRY * row)
            self._memo = self._open()
        except FileNotFoundError:
            pass  # somebody emptied the cache just now
        except OSError:
            self._is_writable = False

    def _open(self) -> _Words | None:
        with suppress(OSError, ValueError):
            memo = np.memmap(self._path, np.uint8, "r").view(np.ndarray)
            if len(memo) == _ENTRY * len(self._index):
                return memo.view("<u8").reshape(-1, 3)
        return None

    def _create(self) -> None:
        """Make a memo without entries: a file that is one hole."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with partial.open("wb") as file:
            file.truncate(_ENTRY * len(self._index))
        partial.replace(self._path)


def _checks(keys_N2: _Words, states_N3: _Words) -> _Words:
    """Return what tells that a key belongs to a file of this state."""
    checks: _Words = keys_N2 @ _WEIGHTS[:2] + states_N3 @ _WEIGHTS[2:]
    return checks
