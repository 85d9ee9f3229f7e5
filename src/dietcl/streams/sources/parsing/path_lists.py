"""What readers of folders and of lists of paths share."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.options import IMAGE_SUFFIXES

_SAMPLE = 100  # paths, spread over a table: in a large dataset, some images are always missing


def columns(entries: Iterable[tuple[Any, ...]], at_once: int = 100_000) -> Iterator[list[list[Any]]]:
    """Yield the columns of many entries at a time."""
    entries = iter(entries)
    while part := list(islice(entries, at_once)):
        yield [list(column) for column in zip(*part, strict=True)]


def numbered_lines(file_root: FileRoot, file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file that are not blank, with their numbers from 1."""
    with file_root.text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def find_images(file_root: FileRoot, folders: Sequence[str], paths: Sequence[str], remedy: str) -> str:
    """Return the first folder in which any of a sample of paths exists."""
    sample = paths[:: max(1, len(paths) // _SAMPLE)]
    for folder in folders:
        if not sample or any(file_root.has(inside(folder, path)) for path in sample):
            return folder
    first = file_root.path(inside(folders[0], sample[0]))
    raise UserError(f"{first}: no such image, nor any other of {len(sample)} in a sample; {remedy}")


def inside(folder: str, path: str) -> str:
    """Return a path inside a folder; an empty folder is the root itself."""
    return f"{folder}/{path}" if folder else path


def is_text(name: str) -> bool:
    """Return whether a name can be encoded as UTF-8: file names may be any bytes."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def is_image(path: str) -> bool:
    """Return whether a file is an image by its name."""
    return PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES
