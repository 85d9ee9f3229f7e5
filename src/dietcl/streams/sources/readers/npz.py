"""NumPy's files: an .npz of images, labels, times and splits by the names of its arrays, or an .npy of images."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.holdout import check_share, holdout
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.numpy_array import Array, open_arrays, plain, squares
from dietcl.streams.sources.parsing.records import at_once
from dietcl.streams.sources.readers.folder import SPLITS

Values = npt.NDArray[Any]
_OPTIONS = ("images", "label", "time", "split")


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """An .npz with arrays of images, labels, times and splits, or an .npy of images alone."""

    name: ClassVar[str] = "arrays"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    images: str = "x"
    """Array of the images: uint8 squares, gray or RGB."""
    label: str = "y"
    """Array of the labels: whole numbers or strings (empty: there are none)."""
    time: str = ""
    """Array of the times: numbers or dates (empty: there are none)."""
    split: str = ""
    """Array that tells tests from the others: strings, booleans, or numbers of which 0 is train (empty: none)."""
    test: str = ""
    """The one value of the split array that stands for tests (empty: every one but 0, false or train)."""
    unknown: str = ""
    """Value that stands for an unknown label or time, such as -1."""
    test_share: float = 0.1
    """Share of the images that is kept for tests where no array says so; which ones depends on their row numbers."""

    def __post_init__(self) -> None:
        check_share(self.test_share)

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take NumPy's files by their names."""
        return name.endswith((".npz", ".npy"))

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every image, some at a time, with what the other arrays say about it."""
        wanted = {option: getattr(self, option) for option in _OPTIONS if getattr(self, option)}
        if name.endswith(".npy"):
            if self.time or self.split or self.label not in ("", "y"):
                raise UserError(f"{name}: an .npy holds images alone; give an .npz for --label, --time and --split")
            wanted = {"images": self.images}
        with open_arrays(rows.place, name, wanted) as arrays:
            count, done = _check(arrays), 0
            if self.time:
                rows.suggest(recipe="time", time_steps=self.time_steps)
            rows.total = count
            while part := min(count - done, at_once(max(array.size for array in arrays.values()))):
                found = {option: array.take(part) for option, array in arrays.items()}
                short = min(found, key=lambda option: len(found[option]))
                if whole := len(found[short]):
                    images = squares(found.pop("images")[:whole])
                    told = {option: plain(values[:whole], arrays[option].where) for option, values in found.items()}
                    rows.pixels(images, listed_in=name, **self._columns(told, done, whole, arrays))
                done += whole
                if whole < part:
                    fault = f"array {arrays[short].name!r} is cut off: {done} of {count} rows; {arrays[short].fault}"
                    rows.problem(name, done, fault)
                    return

    def _columns(self, told: dict[str, Values], first: int, count: int, arrays: dict[str, Array]) -> dict[str, Any]:
        columns: dict[str, Any] = {option: self._known(told[option]) for option in ("label", "time") if option in told}
        if self.split:
            columns["split"] = self._split(told["split"], arrays["split"].where, first)
        else:
            columns["split"] = holdout([str(row) for row in range(first, first + count)], self.test_share)
        return columns

    def _known(self, values: Values) -> pa.Array:
        try:
            return pa.array(values, mask=_equal(values, self.unknown) if self.unknown else None)
        except ValueError:
            return pa.array(values)  # numbers are never some text

    def _split(self, values: Values, where: str, first: int) -> list[str]:
        if self.test or values.dtype.kind in "iu":
            try:
                is_test = _equal(values, self.test) if self.test else values != 0
            except ValueError:
                raise UserError(f"--test {self.test}: {where} holds {values.dtype}; give one of its values") from None
            return ["test" if chosen else "train" for chosen in is_test.tolist()]
        said = values.tolist()
        for row, value in enumerate(said, start=first):
            if value not in SPLITS:
                raise UserError(f"{where} says {str(value)[:40]!r} in row {row}; use train and test, or give --test")
        return [SPLITS[value] for value in said]


def _check(arrays: dict[str, Array]) -> int:
    """Refuse arrays that do not go together; returns how many images there are."""
    images = arrays["images"]
    for option, array in arrays.items():
        if option == "images":
            array.require_images()
        else:
            array.require_values()
        if array.count != images.count:
            counts = f"has {images.count} rows, and {array.name!r} has {array.count}"
            raise UserError(f"{images.where} {counts}; give arrays of the same images")
    return images.count


def _equal(values: Values, text: str) -> npt.NDArray[np.bool_]:
    """Compare values with one that was given as text; raises ValueError if it cannot be one of them."""
    return np.asarray(values == (float(text) if values.dtype.kind in "iuf" else values.dtype.type(text)))
