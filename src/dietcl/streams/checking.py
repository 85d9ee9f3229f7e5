"""Checking: which images of a manifest cannot be read."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dietcl.streams.decode import Unreadable
from dietcl.streams.gallery import Gallery
from dietcl.streams.index import Index

_AT_ONCE = 1024  # images that are decoded between two words on progress


class Problem(NamedTuple):
    """An image that cannot be had: its file, its row of the manifest (from 0) and why."""

    file: str
    row: int
    sentence: str

    @property
    def kind(self) -> str:
        """The sentence without its particulars."""
        return self.sentence.partition(":")[0].partition("(")[0].strip()


def find_problems(
    index: Index,
    rows: npt.NDArray[np.int64],
    jobs: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Problem]:
    """Read and decode the images of these rows, several at a time, and yield those that cannot be."""
    images = Gallery(index)

    def problem(row: int) -> Problem | None:
        try:
            images.pixels(row, 1)
        except Unreadable as error:
            return Problem(images.file(row), row, str(error))
        return None

    with ThreadPoolExecutor(jobs, thread_name_prefix="check") as pool:
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE].tolist()
            yield from filter(None, pool.map(problem, part))
            progress(start + len(part))
