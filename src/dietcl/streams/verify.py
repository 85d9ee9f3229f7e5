"""Checking: which images of a manifest cannot be read, and what it lacks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dietcl.streams.decode import Unreadable
from dietcl.streams.image_reader import Gallery
from dietcl.streams.index import Index
from dietcl.streams.manifest import SPLITS
from dietcl.streams.quarantine import kind_of

_AT_ONCE = 1024  # images that are decoded between two words on progress


class Problem(NamedTuple):
    """An image that cannot be had: its file, its row of the manifest (from 0) and why."""

    file: str
    row: int
    sentence: str

    @property
    def kind(self) -> str:
        """The sentence without its particulars."""
        return kind_of(self.sentence)


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


def remarks(index: Index) -> list[str]:
    """Say how many images each class has, and what a manifest lacks."""
    said = []
    train = index.split == SPLITS.index("train")
    labels, test_labels = index.label[train], index.label[~train]
    if index.classes:
        count = np.bincount(labels[labels >= 0], minlength=len(index.classes))
        least, most = int(count.argmin()), int(count.argmax())
        each = f"{count[most]:,}"
        if count[least] < count[most]:
            each = f"{count[least]:,} ({index.classes[least]}) to {count[most]:,} ({index.classes[most]})"
        said.append(f"{len(index.classes):,} classes with {each} training images each")
    else:
        said.append("no image has a label; none can be revealed, and no accuracy will be measured")
    if not train.any():
        said.append("the train split is empty; there is nothing to learn")
    if not len(test_labels):
        said.append("the test split is empty; no accuracy will be measured")
    elif index.classes and not (test_labels >= 0).any():
        said.append("no test image has a label; no accuracy will be measured")
    elif untested := len(np.setdiff1d(labels[labels >= 0], test_labels)):
        said.append(f"{untested:,} of {len(index.classes):,} classes have no test image")
    if np.isnan(index.time).all():
        said.append("no image has a time; --recipe time cannot be used")
    return said
