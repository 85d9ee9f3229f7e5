"""A place: a folder, or an address that fsspec reaches (s3://, gs://, hf://); files are named by paths inside it."""

import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from dietcl.errors import UserError, reason

MOST_BYTES = 2**29  # of one image


@dataclass(frozen=True)
class Place:
    """Where files lie; every path handed in is relative to it, with forward slashes."""

    root: str

    @classmethod
    def of(cls, root: Path | str) -> "Place":
        """Return the place of a folder or of an address; a chain of addresses, which could open archives, is none."""
        root = re.sub(r"^(file|local)://", "", str(root))
        if "::" in root and is_remote(root):
            raise UserError(f"{root}: a chain of addresses is not taken; give one address")
        if not is_remote(root):
            return cls(os.path.abspath(root))
        kind, _, address = str(root).partition("://")
        return cls(f"{kind}://{address.rstrip('/')}")

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return not is_remote(self.root)

    def path(self, file: str) -> str:
        """Return the full path or address of a file."""
        return f"{self.root}/{file}" if self.root != "/" else f"/{file}"

    def open(self, file: str) -> BinaryIO:
        """Open a file for reading."""
        if not self.is_local:
            return self._ask("open", self.path(file), mode="rb")  # type: ignore[no-any-return]
        try:
            return open(self.path(file), "rb")
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path(file)}: cannot be opened ({reason(error)}); is the path right?") from None

    def text(self, file: str) -> io.TextIOWrapper:
        """Open a file as text."""
        return io.TextIOWrapper(self.open(file), encoding="utf-8-sig", errors="replace", newline="")

    def has(self, file: str) -> bool:
        """Tell whether a file or folder is there."""
        if self.is_local:
            return os.path.exists(self.path(file))
        return bool(self._ask("exists", self.path(file)))

    def is_folder(self) -> bool:
        """Tell whether the place itself is a folder rather than a file."""
        return os.path.isdir(self.root) if self.is_local else bool(self._ask("isdir", self.root))

    def folders(self, under: str = "") -> list[str]:
        """Return the names of the folders right below a folder, links to folders included, in order."""
        if self.is_local:
            return [entry.name for entry in self._entries(under) if _is_folder(entry)]
        found = self._ask("ls", self.path(under) if under else self.root, detail=True)
        return sorted(entry["name"].rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == "directory")

    def files(self, under: str = "") -> Iterator[str]:
        """Yield every file below a folder in order of path; links to folders are not followed."""
        if self.is_local:
            yield from self._walk(under)
            return
        prefix = len(self._remote._strip_protocol(self.root)) + 1
        where = self.path(under) if under else self.root
        found = self._ask("find", where)
        if not found and not self._ask("exists", where):
            raise UserError(f"{where}: there is nothing; is the address right, and may you read it?")
        # As folders are listed on disk, one after the other: "a/b" comes before "a.b".
        for path in sorted(found, key=lambda path: path.replace("/", "\0")):
            yield path[prefix:]

    def _walk(self, under: str) -> Iterator[str]:
        for entry in self._entries(under):
            name = f"{under}/{entry.name}" if under else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(name)
            else:
                yield name

    def _entries(self, under: str) -> list["os.DirEntry[str]"]:
        path = self.path(under) if under else self.root
        try:
            with os.scandir(path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"{path}: cannot be listed ({reason(error)}); is the path right?") from None

    def leads_outside(self, file: str) -> bool:
        """Tell whether a link on the way takes a file out of the place."""
        if "\0" in file:
            return False  # no file has such a name, and asking for it is an error
        return self.is_local and not os.path.realpath(self.path(file)).startswith(self._real_root)

    def read(self, file: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those of a range; raises OSError."""
        if not self.is_local:
            return self._remote.cat_file(self.path(file), start=start, end=end)  # type: ignore[no-any-return]
        with open(self.path(file), "rb", buffering=0, opener=_without_waiting) as source:
            start, end = start or 0, os.fstat(source.fileno()).st_size if end is None else end
            if end - start > MOST_BYTES:
                raise OSError(f"{end - start:,} bytes are more than any image has")
            return os.pread(source.fileno(), end - start, start)

    def read_many(
        self, files: Sequence[str], starts: Sequence[int | None], ends: Sequence[int | None]
    ) -> list[bytes | Exception]:
        """Return many files' bytes, fetched at the same time where that is far away; what fails is an exception."""
        paths = [self.path(file) for file in files]
        found: list[bytes | Exception] = self._remote.cat_ranges(paths, list(starts), list(ends), on_error="return")
        return found

    def _ask(self, what: str, path: str, **options: Any) -> Any:
        """Call the far store, whose errors are of its own kinds, and say in one sentence what went wrong."""
        try:
            return getattr(self._remote, what)(path, **options)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{path}: cannot be reached ({reason(error)}); is the address right, and may you read it?"
            ) from None

    @cached_property
    def _real_root(self) -> str:
        return os.path.join(os.path.realpath(self.root), "")

    @cached_property
    def _remote(self) -> Any:
        import fsspec

        try:
            return fsspec.core.url_to_fs(self.root)[0]
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.root}: cannot be reached ({reason(error)}); install what it needs") from None


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """Tell whether an entry is a folder or a link to one; a link that leads in a circle is neither."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe, which may be called photo.jpg too, is not waited for until somebody writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_remote(path: Path | str) -> bool:
    """Tell whether a path is an address such as s3://bucket/photos."""
    return "://" in str(path)
