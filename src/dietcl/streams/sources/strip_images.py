"""The images of a zip of WebP strips, as `Strips` hands them over."""

import json
import zipfile
import zlib
from typing import Any

import numpy as np

from dietcl.errors import UserError
from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.manifest_builder import Preparation

_META = "meta.json"
_AT_ONCE = 2**25  # bytes of pixels
_MOST_BYTES = 2**28  # of one member of the zip
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)  # what a bad zip raises


def hand_over(name: str, rows: Preparation, most_time_steps: int, first_word: bool) -> None:
    """Hand over every strip that can be read, some at a time."""
    path = rows.place.path(name)
    with rows.place.open(name) as stream:
        try:
            pack = zipfile.ZipFile(stream)
            meta = json.loads(_content(pack, _META))
            size, seen = int(meta["size"]), meta.get("first_seen") or {}
            if size < 1 or not isinstance(seen, dict):
                raise ValueError("'size' must be positive, and 'first_seen' a date for each class")
        except (*_BROKEN, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a zip of WebP strips with a {_META} ({error})") from None
        members = sorted(member for member in pack.namelist() if member.endswith(".webp"))
        if not members:
            raise UserError(f"{path}: holds no WebP strips; is it the right file?")
        if seen:
            rows.suggest(recipe="time", time_steps=min(most_time_steps, len(set(map(str, seen.values())))))
        batch = _Batch(name, rows, seen, first_word)
        for done, member in enumerate(members, start=1):
            try:
                batch.add(*_strip(pack, member, size))
            except Unreadable as error:
                rows.problem(name, None, f"{error}: {member}")
            rows.total = batch.count * len(members) // done  # strips are much alike
            if done == len(members) or batch.bytes > _AT_ONCE:
                batch.flush()


class _Batch:
    """Strips that are handed over together."""

    def __init__(self, name: str, rows: Preparation, seen: dict[str, Any], first_word: bool) -> None:
        self._name, self._rows, self._seen, self._first_word = name, rows, seen, first_word
        self.count = self.bytes = 0
        self._strips: list[Pixels] = []
        self._class: list[str] = []
        self._split: list[str] = []

    def add(self, split: str, kind: str, strip: Pixels) -> None:
        self._strips.append(strip)
        self._class += [kind] * len(strip)
        self._split += ["train" if split == "train" else "test"] * len(strip)
        self.count += len(strip)
        self.bytes += strip.nbytes

    def flush(self) -> None:
        if self._strips:
            label = [(kind.split() or [""])[0] for kind in self._class] if self._first_word else self._class
            time = [self._seen.get(kind) for kind in self._class] if self._seen else None
            images = np.concatenate(self._strips)
            self._rows.pixels(images, label=label, time=time, split=self._split, listed_in=self._name)
        self._strips, self._class, self._split, self.bytes = [], [], [], 0


def _strip(pack: zipfile.ZipFile, member: str, size: int) -> tuple[str, str, Pixels]:
    """Return the split, the class and the squares of a strip."""
    parts = member.split("/")
    if len(parts) != 3:
        raise Unreadable("not named split/class/name.webp")
    try:
        strip = decode(_content(pack, member), 2**16)  # larger than any, which keeps it from being reduced
    except _BROKEN as error:
        raise Unreadable(f"cannot be read ({error})") from None
    if strip.shape[1] != size or len(strip) % size:
        raise Unreadable(f"not a column of squares of {size} pixels")
    return parts[0], parts[1], strip.reshape(-1, size, size, 3)


def _content(pack: zipfile.ZipFile, member: str) -> bytes:
    if pack.getinfo(member).file_size > _MOST_BYTES:
        raise ValueError(f"{member} has more than {_MOST_BYTES} bytes")
    return pack.read(member)
