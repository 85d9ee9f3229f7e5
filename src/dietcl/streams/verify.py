"""Finds images that cannot be read: while a manifest is built, and in a finished one."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dietcl.metrics import few_tests_warning
from dietcl.plural import plural
from dietcl.streams.column_coercion import Faults
from dietcl.streams.decode import Unreadable, decode
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.image_reader import LEADS_OUTSIDE, ImageReader
from dietcl.streams.index import Index
from dietcl.streams.manifest import SPLITS
from dietcl.streams.quarantine import kind_of

NO_IMAGE = "there is no image"
Progress = Callable[[int], None]  # images done
_AT_ONCE = 1024  # images that are decoded between two reports of progress
_REMOTE_AT_ONCE = 128  # images that are fetched concurrently


def faults_of_rows(root: FileRoot, pool: Executor, table: pa.Table, known: Faults, progress: Progress) -> Faults:
    """Return what is wrong with the images of a manifest's rows that have no known fault."""
    names = table["file"].to_pylist()
    pairs = zip(table["offset"].to_pylist(), table["length"].to_pylist(), strict=True)
    ranges = [(None, None) if length is None else (start, start + length) for start, length in pairs]

    def check(i: int) -> str | None:
        if root.leads_outside(names[i]):
            return LEADS_OUTSIDE
        try:
            return fault_of(root.read(names[i], *ranges[i]))
        except Exception as error:  # each kind of store has errors of its own
            return fault_of(error)

    rows = [i for i in range(len(names)) if i not in known]
    found: Faults = {}
    size = _AT_ONCE if root.is_local else _REMOTE_AT_ONCE
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        if root.is_local:
            faults = pool.map(check, part)
        else:
            starts, ends = zip(*(ranges[i] for i in part), strict=True)
            faults = pool.map(fault_of, root.read_many([names[i] for i in part], starts, ends))
        found |= {i: fault for i, fault in zip(part, faults, strict=True) if fault}
        progress(part[-1] + 1)
    return found


def fault_of(data: bytes | Exception | None) -> str | None:
    """Return what is wrong with the bytes of an image, or with reading them."""
    if data is None:
        return NO_IMAGE
    try:
        decode(data, 1)
    except Unreadable as error:
        return str(error)
    return None


class Problem(NamedTuple):
    """An image that cannot be read: its file, its row of the manifest (from 0) and why."""

    file: str
    row: int
    sentence: str

    @property
    def kind(self) -> str:
        """The sentence without its details."""
        return kind_of(self.sentence)


def find_problems(
    index: Index, rows: npt.NDArray[np.int64], jobs: int, progress: Progress = lambda done: None
) -> Iterator[Problem]:
    """Read and decode the images of these rows in parallel, and yield the problems."""
    images = ImageReader(index)

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
    """Return sentences on how many images each class has, and on what a manifest lacks."""
    sentences = []
    train = index.split == SPLITS.index("train")
    labels, test_labels = index.label[train], index.label[~train]
    if index.classes:
        count = np.bincount(labels[labels >= 0], minlength=len(index.classes))
        least, most = int(count.argmin()), int(count.argmax())
        each = f"{count[most]:,}"
        if count[least] < count[most]:
            each = f"{count[least]:,} ({index.classes[least]}) to {count[most]:,} ({index.classes[most]})"
        sentences.append(f"{plural(len(index.classes), 'class')}; training images of each: {each}")
    else:
        sentences.append("no image has a label; none can be revealed, and no accuracy will be measured")
    if not train.any():
        sentences.append("the train split is empty; there is nothing to learn")
    if not len(test_labels):
        sentences.append("the test split is empty; no accuracy will be measured")
    elif index.classes and not (test_labels >= 0).any():
        sentences.append("no test image has a label; no accuracy will be measured")
    else:
        if warning := few_tests_warning(int((test_labels >= 0).sum())):
            sentences.append(warning)
        if untested := len(np.setdiff1d(labels[labels >= 0], test_labels)):
            sentences.append(f"classes without a test image: {untested:,} of {len(index.classes):,}")
    if np.isnan(index.time).all():
        sentences.append("no image has a time; recipe time cannot be used")
    return sentences
