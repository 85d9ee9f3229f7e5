"""A root of files: a local folder, or a URL that fsspec opens (s3://, gs://, hf://)."""

import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from fsspec.core import url_to_fs

from dietcl.errors import UserError, reason

MOST_BYTES = 2**29  # of one image
Bounds = Sequence[int | None]


@dataclass(frozen=True)
class FileRoot:
    """A folder or URL; every path is relative to it, with forward slashes."""

    root: str

    @classmethod
    def of(cls, root: Path | str) -> "FileRoot":
        """Return the root for a folder or a URL; chained URLs, which could open archives, are refused."""
        root = re.sub(r"^(file|local)://", "", str(root))
        if "::" in root and is_remote(root):
            raise UserError(f"{root}: chained URLs are not supported; give one URL")
        if not is_remote(root):
            return cls(os.path.abspath(root))
        kind, _, address = str(root).partition("://")
        return cls(f"{kind}://{address.rstrip('/')}")

    @property
    def is_local(self) -> bool:
        """Whether this is a folder of this machine."""
        return not is_remote(self.root)

    def path(self, file: str) -> str:
        """Return the full path or URL of a file."""
        return f"{self.root}/{file}" if self.root != "/" else f"/{file}"

    def open(self, file: str) -> BinaryIO:
        """Open a file for reading."""
        if not self.is_local:
            return self._ask("open", self.path(file), mode="rb")  # type: ignore[no-any-return]
        try:
            return open(self.path(file), "rb")
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path(file)}: cannot be opened ({reason(error)}); check the path") from None

    def text(self, file: str) -> io.TextIOWrapper:
        """Open a file as text."""
        return io.TextIOWrapper(self.open(file), encoding="utf-8-sig", errors="replace", newline="")

    def has(self, file: str) -> bool:
        """Return whether a file or folder exists."""
        return os.path.exists(self.path(file)) if self.is_local else bool(self._ask("exists", self.path(file)))

    def is_folder(self) -> bool:
        """Return whether the root is a folder rather than a file."""
        return os.path.isdir(self.root) if self.is_local else bool(self._ask("isdir", self.root))

    def folders(self, under: str = "") -> list[str]:
        """Return the sorted names of the folders in a folder, including every symlink to a folder."""
        if self.is_local:
            # DirEntry.is_dir fails on a symlink to itself.
            entries = self._scan(under)
            return [e.name for e in entries if (os.path.isdir(e.path) if e.is_symlink() else e.is_dir())]
        return [name for name, is_folder in self.entries(under) if is_folder]

    def entries(self, under: str = "") -> list[tuple[str, bool]]:
        """Return the sorted names in a folder, and whether each is a folder that `files` descends into."""
        if self.is_local:
            return [(entry.name, self._descends(entry, under)) for entry in self._scan(under)]
        path = self.path(under) if under else self.root
        found = {entry["name"].strip("/"): entry["type"] for entry in self._ask("ls", path, detail=True)}
        found.pop(path.partition("://")[2].strip("/"), None)  # some stores list an empty object for the folder itself
        return sorted((name.rpartition("/")[2], kind == "directory") for name, kind in found.items())

    def files(self, under: str = "") -> Iterator[str]:
        """Yield every file below a folder in order of path; symlinks to folders are followed inside the root only."""
        if self.is_local:
            yield from self._walk(under)
            return
        prefix = len(self._remote._strip_protocol(self.root)) + 1
        where = self.path(under) if under else self.root
        found = self._ask("find", where)
        if not found and not self._ask("exists", where):
            raise UserError(f"{where}: nothing found; check the URL and your access rights")
        # The order of a local walk: "a/b" comes before "a.b".
        for path in sorted(found, key=lambda path: path.replace("/", "\0")):
            yield path[prefix:]

    def _walk(self, under: str) -> Iterator[str]:
        for entry in self._scan(under):
            name = f"{under}/{entry.name}" if under else entry.name
            if self._descends(entry, under):
                yield from self._walk(name)
            else:
                yield name

    def _scan(self, under: str) -> list["os.DirEntry[str]"]:
        path = self.path(under) if under else self.root
        try:
            with os.scandir(path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"{path}: cannot be listed ({reason(error)}); check the path") from None

    def _descends(self, entry: "os.DirEntry[str]", under: str) -> bool:
        """Return whether an entry is a folder, or a symlink to one that neither leaves the root nor forms a cycle."""
        if not entry.is_symlink():
            return entry.is_dir()
        name = f"{under}/{entry.name}" if under else entry.name
        if not os.path.isdir(entry.path) or self.leads_outside(name):
            return False
        parents = (os.path.realpath(self.path(str(parent))) for parent in PurePosixPath(name).parents)
        return os.path.realpath(entry.path) not in parents

    def leads_outside(self, file: str) -> bool:
        """Return whether a symlink in the path leads out of the root."""
        if "\0" in file:
            return False  # no file has such a name
        return self.is_local and not os.path.realpath(self.path(file)).startswith(self._real_root)

    def read(self, file: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file or of a range of it; raises OSError."""
        if not self.is_local:
            return self._remote.cat_file(self.path(file), start=start, end=end)  # type: ignore[no-any-return]
        nonblocking = getattr(os, "O_NONBLOCK", 0)  # a named pipe, even one called photo.jpg, must not block the reader
        with open(self.path(file), "rb", 0, opener=lambda path, flags: os.open(path, flags | nonblocking)) as source:
            start, end = start or 0, os.fstat(source.fileno()).st_size if end is None else end
            if end - start > MOST_BYTES:
                raise OSError(f"{end - start:,} bytes are too many for one image")
            return os.pread(source.fileno(), end - start, start)

    def read_many(self, files: Sequence[str], starts: Bounds, ends: Bounds) -> list[bytes | Exception]:
        """Return the bytes of many remote files, fetched concurrently; a failed one is returned as its exception."""
        paths = [self.path(file) for file in files]
        return self._remote.cat_ranges(paths, list(starts), list(ends), on_error="return")  # type: ignore[no-any-return]

    def _ask(self, what: str, path: str, **options: Any) -> Any:
        """Call the remote file system; its errors, of whatever class, become a UserError."""
        try:
            return getattr(self._remote, what)(path, **options)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path}: cannot be read ({reason(error)}); check the URL and your access rights") from None

    @cached_property
    def _real_root(self) -> str:
        return os.path.join(os.path.realpath(self.root), "")

    @cached_property
    def _remote(self) -> Any:
        try:
            return url_to_fs(self.root)[0]
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.root}: cannot be opened ({reason(error)}); install the package it needs") from None


def is_remote(path: Path | str) -> bool:
    """Return whether a path is a URL such as s3://bucket/photos."""
    return "://" in str(path)
