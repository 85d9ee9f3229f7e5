"""CLOC of Cai et al. (2021): 39 million photographs in the order in which they were taken, classified by region."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.manifest import BATCH
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.parsing.path_lists import find_images, inside
from dietcl.streams.sources.parsing.torch_list import open_list

LOCATIONS, LABELS, TIMES = "train_store_loc.torchSave", "train_labels.torchSave", "train_time.torchSave"
VALIDATION = "yfcc100m_metadata_with_labels_usedDataRatio0.05_t110000_t250_valid_files_2004To2014_compact_val.csv"
LONGEST = 4096  # characters of a path
COLUMNS = 5  # of the validation table: label, date, time, user or cell, path


@dataclass(frozen=True, kw_only=True)
class Cloc:
    """CLOC as released: train_store_loc, train_labels, train_time (.torchSave), the validation table and the images."""

    name: ClassVar[str] = "cloc"
    recipe: ClassVar[Literal["class", "time", "data"]] = "time"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.005
    mirror: ClassVar[bool] = True

    images: str = "dataset/images"
    """Folder of the images, relative to the path that is prepared or to the folder of the lists."""

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take a folder with the list of locations in it or in its folder release/."""
        return not name and _lists(place) is not None

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over the lists in slices, in their order, and then the validation table as test images."""
        rows.keep_cut()
        place = rows.place
        below = None if name else _lists(place)
        if below is None:
            raise UserError(
                f"{place.path(name).rstrip('/')}: not a folder with {LOCATIONS}; give CLOC's folder release/"
            )
        for file in (LABELS, TIMES, VALIDATION):
            if not place.has(inside(below, file)):
                raise UserError(f"{place.path(inside(below, file))}: missing; take it from the release of CLOC")
        label, time, location = (open_list(place, inside(below, file)) for file in (LABELS, TIMES, LOCATIONS))
        if not location.count == label.count == time.count:
            raise UserError(
                f"{place.path(below).rstrip('/')}: the lists differ in length ({LOCATIONS} {location.count}, {LABELS} "
                f"{label.count}, {TIMES} {time.count}); take all three from one release of CLOC"
            )
        hand = _Hand(rows, self._folder(place, below, location.sample))
        start = 0
        for labels, times, found in zip(*(column.slices(BATCH) for column in (label, time, location)), strict=True):
            row = range(start, start + len(found))
            locations = [_location(value) for value in found]
            hand.over(inside(below, LOCATIONS), "train", row, locations, _numbers(labels), _numbers(times))
            start = row.stop
        self._validation(inside(below, VALIDATION), hand)

    def _folder(self, place: Place, below: str, locations: Sequence[Any]) -> str:
        sample = [path for path in map(_location, locations) if path]
        images = self.images.strip("/")
        return find_images(place, [inside(below, images), images], sample, "say where they lie with --images")

    def _validation(self, file: str, hand: "_Hand") -> None:
        with hand.rows.place.text(file) as lines:
            numbered = enumerate(lines, start=1)
            while part := list(islice(numbered, BATCH)):
                row: list[int] = []
                table: list[list[str]] = []
                for number, line in part:
                    fields = line.strip().split(",")
                    if len(fields) >= COLUMNS:
                        row.append(number)
                        table.append(fields)
                    elif fields != [""]:
                        hand.rows.problem(file, number, f"the line has fewer than {COLUMNS} columns")
                label, time = (np.array([_number(fields[column]) for fields in table]) for column in (0, 2))
                hand.over(file, "test", row, [_location(fields[-1]) for fields in table], label, time)


@dataclass(frozen=True)
class _Hand:
    """Hands over the rows that are whole, and puts the others into the quarantine."""

    rows: Preparation
    images: str

    def over(
        self,
        listed_in: str,
        split: str,
        row: Sequence[int],
        locations: Sequence[str | None],
        label: npt.NDArray[np.float64],
        time: npt.NDArray[np.float64],
    ) -> None:
        faults = {
            "the time is not a number": ~np.isfinite(time),
            "the label is not a whole number from 0": ~((label >= 0) & (label == np.floor(label)) & np.isfinite(label)),
            "the location is not a path": np.array([path is None for path in locations], np.bool_),
        }
        good = np.ones(len(row), np.bool_)
        for sentence, found in faults.items():
            for i in np.flatnonzero(found & good).tolist():
                self.rows.problem(listed_in, row[i], sentence)
            good &= ~found
        kept = np.flatnonzero(good).tolist()
        if kept:
            self.rows.refer(
                [inside(self.images, str(locations[i])) for i in kept],
                label=label[good].astype(np.int64),
                time=time[good],
                split=split,
                row=[row[i] for i in kept],
                listed_in=listed_in,
            )


def _lists(place: Place) -> str | None:
    """Return the folder of the lists, empty for the place itself."""
    return next((folder for folder in ("", "release") if place.has(inside(folder, LOCATIONS))), None)


def _numbers(values: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Return numbers, and nan for what is none."""
    try:
        array = np.array(values)
    except ValueError:  # lists in the list
        return np.array(_each(values))
    return array.astype(np.float64) if array.dtype.kind in "iuf" and array.ndim == 1 else np.array(_each(values))


def _each(values: Sequence[Any]) -> list[float]:
    return [_number(value) if isinstance(value, int | float) else np.nan for value in values]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, OverflowError):
        return np.nan


def _location(value: Any) -> str | None:
    """Return a path without the line end that comes with it in the release, or None for what is none."""
    if not isinstance(value, str) or len(value) > LONGEST:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value.strip() or None
