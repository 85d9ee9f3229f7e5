"""What readers of lists of paths share."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot

_LOOKED_FOR = 100  # paths, spread over a table: of a large dataset, some images are always missing


def columns(entries: Iterable[tuple[Any, ...]], at_once: int = 100_000) -> Iterator[list[list[Any]]]:
    """Yield the columns of many entries at a time."""
    entries = iter(entries)
    while part := list(islice(entries, at_once)):
        yield [list(column) for column in zip(*part, strict=True)]


def find_images(file_root: FileRoot, folders: Sequence[str], paths: Sequence[str], remedy: str = "is it whole?") -> str:
    """Return the first folder in which any of a sample of paths exists."""
    sample = paths[:: max(1, len(paths) // _LOOKED_FOR)]
    for folder in folders:
        if not sample or any(file_root.has(inside(folder, path)) for path in sample):
            return folder
    first = file_root.path(inside(folders[0], sample[0]))
    raise UserError(f"{first}: no such image, nor any other of {len(sample)} in a sample; {remedy}")


def inside(folder: str, path: str) -> str:
    """Return a path inside a folder; an empty folder is the root itself."""
    return f"{folder}/{path}" if folder else path
