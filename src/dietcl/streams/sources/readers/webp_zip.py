"""Image packs: a zip of WebP strips, split/class/name.webp, each a column of square images of one class."""

import json
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from dietcl.errors import UserError
from dietcl.streams.decode import Pixels, Unreadable, decode
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import ManifestBuilder, Progress
from dietcl.streams.sources.builtin.source_cache import prepare_pack
from dietcl.streams.sources.reader import Reader, prepare

_META = "meta.json"
_AT_ONCE = 2**25  # bytes of pixels
_MOST_BYTES = 2**28  # of one member of the zip
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)  # what a bad zip raises

Strip = tuple[str, str, Pixels]  # split, class, images


@dataclass(frozen=True, kw_only=True)
class Strips(Reader):
    """A zip of WebP strips with a meta.json that gives the side of the squares (`size`)."""

    name = "strips"

    path: Annotated[Path, tyro.conf.Suppress] = Path()  # for `prepare`; `read` takes the file's name
    label: Literal["class", "first-word"] = "class"
    """Label images with the full name of their class, or with its first word."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept a zip with a meta.json."""
        if not name.endswith(".zip"):
            return False
        try:
            with file_root.open(name) as stream, zipfile.ZipFile(stream) as pack:
                return _META in pack.namelist()
        except (zipfile.BadZipFile, OSError):
            return False

    def prepare(self, cache: Path, progress: Progress | None = None) -> Path:
        """Unpack into one array beside a manifest, once."""
        try:
            stamp = self.path.stat()
        except OSError:
            raise UserError(f"{self.path}: no such file; give a .zip of WebP strips") from None
        facts = {"name": self.path.name, "bytes": stamp.st_size, "time": stamp.st_mtime_ns, "label": self.label}
        fill = partial(prepare, self, str(self.path), progress=progress, allow_problems=False)
        return prepare_pack(cache, self.path.stem, facts, fill)

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add the images of every strip, timed by the day on which their class was first seen, if that is given."""
        path = rows.file_root.path(name)
        with rows.file_root.open(name) as stream:
            try:
                pack = zipfile.ZipFile(stream)
                meta = json.loads(_content(pack, _META))
                size, first_seen = int(meta["size"]), meta.get("first_seen") or {}
                if size < 1 or not isinstance(first_seen, dict):
                    raise ValueError("'size' must be positive, and 'first_seen' a date for each class")
            except (*_BROKEN, KeyError, TypeError) as error:
                raise UserError(f"{path}: not a zip of WebP strips with a {_META} ({error})") from None
            members = sorted(member for member in pack.namelist() if member.endswith(".webp"))
            if not members:
                raise UserError(f"{path}: holds no WebP strips; is it the right file?")
            if first_seen:
                rows.suggest(recipe="time", time_steps=min(self.time_steps, len(set(map(str, first_seen.values())))))
            strips: list[Strip] = []
            images = 0
            for done, member in enumerate(members, start=1):
                try:
                    strips.append(_strip(pack, member, size))
                    images += len(strips[-1][2])
                except Unreadable as error:
                    rows.problem(name, None, f"{error}: {member}")
                rows.total = images * len(members) // done  # strips are much alike
                if strips and (done == len(members) or sum(strip.nbytes for _, _, strip in strips) > _AT_ONCE):
                    self._add(strips, first_seen, name, rows)
                    strips = []

    def _add(self, strips: list[Strip], first_seen: dict[str, Any], name: str, rows: ManifestBuilder) -> None:
        classes = [found for _, found, strip in strips for _ in strip]
        split = ["train" if part == "train" else "test" for part, _, strip in strips for _ in strip]
        label = [(found.split() or [""])[0] for found in classes] if self.label == "first-word" else classes
        time = [first_seen.get(found) for found in classes] if first_seen else None
        images = np.concatenate([strip for _, _, strip in strips])
        rows.pixels(images, label=label, time=time, split=split, listed_in=name)


def _strip(pack: zipfile.ZipFile, member: str, size: int) -> Strip:
    parts = member.split("/")
    if len(parts) != 3:
        raise Unreadable("not named split/class/name.webp")
    try:
        strip = decode(_content(pack, member), 2**16)  # larger than any strip, so that none is reduced
    except _BROKEN as error:
        raise Unreadable(f"cannot be read ({error})") from None
    if strip.shape[1] != size or len(strip) % size:
        raise Unreadable(f"not a column of squares of {size} pixels")
    return parts[0], parts[1], strip.reshape(-1, size, size, 3)


def _content(pack: zipfile.ZipFile, member: str) -> bytes:
    if pack.getinfo(member).file_size > _MOST_BYTES:
        raise ValueError(f"{member} has more than {_MOST_BYTES} bytes")
    return pack.read(member)
