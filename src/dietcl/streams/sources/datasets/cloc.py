"""CLOC of Cai et al. (2021): 39 million photographs in the order in which they were taken, classified by region."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest import BATCH
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.path_lists import columns, find_images, inside, is_text, numbered_lines
from dietcl.streams.sources.parsing.torch_list import load_list
from dietcl.streams.sources.reader import Reader

LOCATIONS, LABELS, TIMES = "train_store_loc.torchSave", "train_labels.torchSave", "train_time.torchSave"
VALIDATION = "yfcc100m_metadata_with_labels_usedDataRatio0.05_t110000_t250_valid_files_2004To2014_compact_val.csv"
_LONGEST = 4096  # characters of a path
_SAMPLE = 1000  # locations whose images are looked for
_COLUMNS = 5  # of the validation table: label, date, time, user or cell, path

Floats = npt.NDArray[np.float64]
_Columns = tuple[Sequence[int], Floats, Floats, Sequence[str | None]]  # row, label, time and location of each image


@dataclass(frozen=True, kw_only=True)
class Cloc(Reader):
    """CLOC as released: train_store_loc, train_labels, train_time (.torchSave), the validation table and the images."""

    name = "cloc"
    recipe = "time"
    label_rate = 0.005

    images: str = "dataset/images"
    """Folder of the images, relative to the path that is prepared or to the folder of the lists."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept a folder with the list of locations, in it or in its folder release/."""
        return not name and _lists(file_root) is not None

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add the lists in their order, then the validation table as test images."""
        rows.keep_cut()
        file_root = rows.file_root
        below = None if name else _lists(file_root)
        if below is None:
            path = file_root.path(name).rstrip("/")
            raise UserError(f"{path}: not a folder with {LOCATIONS}; give CLOC's folder release/")
        train, *lists, test = files = [inside(below, file) for file in (LOCATIONS, LABELS, TIMES, VALIDATION)]
        for file in files:
            if not file_root.has(file):
                raise UserError(f"{file_root.path(file)}: missing; take it from the release of CLOC")
        label, time = (_numbers(load_list(file_root, file)) for file in lists)
        locations = load_list(file_root, train)
        if not len(locations) == len(label) == len(time):
            path = file_root.path(below).rstrip("/")
            lengths = f"{LOCATIONS} {len(locations)}, {LABELS} {len(label)}, {TIMES} {len(time)}"
            raise UserError(f"{path}: the lists differ in length ({lengths}); take all three from one release of CLOC")
        sample = [path for path in map(_location, locations[:: max(1, len(locations) // _SAMPLE)]) if path]
        folders = [inside(below, self.images.strip("/")), self.images.strip("/")]
        images = find_images(file_root, folders, sample, "give their folder as --images")
        for start in range(0, len(locations), BATCH):
            part = slice(start, start + BATCH)
            paths = [_location(value) for value in locations[part]]
            row = range(start, start + len(paths))
            _add(rows, images, train, "train", (row, label[part], time[part], paths))
        for number, labels, times, paths in columns(_validation(test, rows), BATCH):
            _add(rows, images, test, "test", (number, np.array(labels), np.array(times), paths))


def _validation(file: str, rows: ManifestBuilder) -> Iterator[tuple[int, float, float, str | None]]:
    """Yield the number, label, time and location of each line."""
    for number, line in numbered_lines(rows.file_root, file):
        fields = line.strip().split(",")
        if len(fields) >= _COLUMNS:
            yield number, _number(fields[0]), _number(fields[2]), _location(fields[-1])
        else:
            rows.problem(file, number, f"the line has fewer than {_COLUMNS} columns")


def _add(rows: ManifestBuilder, images: str, listed_in: str, split: str, columns: _Columns) -> None:
    """Add complete rows of one file to the manifest, and the others to the quarantine."""
    row, label, time, locations = columns
    faults = {
        "the time is not a number": ~np.isfinite(time),
        "the label is not a whole number from 0": ~((label >= 0) & (label == np.floor(label)) & np.isfinite(label)),
        "the location is not a path": np.array([path is None for path in locations], np.bool_),
    }
    good = np.ones(len(row), np.bool_)
    for sentence, found in faults.items():
        for i in np.flatnonzero(found & good).tolist():
            rows.problem(listed_in, row[i], sentence)
        good &= ~found
    if good.any():
        files = [inside(images, str(path)) for path in compress(locations, good)]
        codes, row = label[good].astype(np.int64), list(compress(row, good))
        rows.refer(files, label=codes, time=time[good], split=split, row=row, listed_in=listed_in)


def _lists(file_root: FileRoot) -> str | None:
    """Return the folder of the lists; empty for the root itself."""
    return next((folder for folder in ("", "release") if file_root.has(inside(folder, LOCATIONS))), None)


def _numbers(values: Sequence[Any]) -> Floats:
    """Return numbers; NaN for any other value."""
    with suppress(ValueError):  # on nested lists
        array = np.array(values)
        if array.dtype.kind in "iuf" and array.ndim == 1:
            return array.astype(np.float64)
    return np.array([_number(value) if isinstance(value, int | float) else np.nan for value in values])


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, OverflowError):
        return np.nan


def _location(value: Any) -> str | None:
    """Return a path without the line end that the release adds; None for any other value."""
    if not isinstance(value, str) or len(value) > _LONGEST or not is_text(value):
        return None
    return value.strip() or None
