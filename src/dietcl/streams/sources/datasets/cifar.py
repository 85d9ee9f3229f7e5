"""CIFAR-10 and CIFAR-100 as their authors give them away in binary: label bytes and pixels in records."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.parsing.records import Records, at_once

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_TEN = {**{f"data_batch_{number}.bin": "train" for number in range(1, 6)}, "test_batch.bin": "test"}
_FINE, _COARSE = "fine_label_names.txt", "coarse_label_names.txt"
_HUNDRED = {"train.bin": "train", "test.bin": "test"}


@dataclass(frozen=True, kw_only=True)
class Cifar:
    """The binary version of CIFAR-10 (data_batch_1.bin, ...) or CIFAR-100 (train.bin, ...)."""

    name: ClassVar[str] = "cifar"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    coarse: bool = False
    """Take the 20 superclasses of CIFAR-100 for labels rather than its 100 classes."""

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Look for the files' names, also those of the version that cannot be read."""
        if name:
            return name in _TEN or f"{name}.bin" in _TEN or (name in _HUNDRED and place.has(_FINE))
        return place.has("data_batch_1.bin") or place.has(_FINE) or _is_pickled(place)

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every whole record of every file."""
        place, hundred = rows.place, rows.place.has(_FINE)
        files = _HUNDRED if hundred else _TEN
        if f"{name}.bin" in files or not (name or any(map(place.has, files))):
            if name or _is_pickled(place):
                raise UserError(
                    f"{place.path(name)}: the python version of CIFAR, made of pickles, which are never loaded; "
                    "get the binary version"
                )
            raise UserError(f"{place.root}: none of {', '.join(files)} is here; is the path right?")
        if self.coarse and not hundred:
            raise UserError(f"--coarse: {place.root} is not CIFAR-100, which alone has superclasses; leave it out")
        classes = _classes(place, (_COARSE if self.coarse else _FINE) if hundred else "batches.meta.txt")
        rows.suggest(recipe="class", time_steps=min(20, max(1, len(classes) // 2)))
        # A record of CIFAR-100 begins with the superclass and goes on with the class.
        head, position = (2, 0 if self.coarse else 1) if hundred else (1, 0)
        for file, split in files.items():
            if name not in ("", file):
                continue
            if place.has(file):
                _read_file(file, split, classes, head, position, rows)
            else:
                rows.problem(file, None, "the file is missing")


def _read_file(file: str, split: str, classes: list[str], head: int, position: int, rows: Preparation) -> None:
    size, first = head + _PIXELS, 0
    with rows.place.open(file) as stream:
        records = Records(stream, size)
        while len(block := records.take(at_once(size))):
            label = block[:, position]
            good = label < len(classes)
            for row in np.flatnonzero(~good).tolist():
                rows.problem(file, first + row, f"the label is none of the {len(classes)} classes: {label[row]}")
            if good.any():
                images = block[good, head:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
                rows.pixels(images, label=np.array(classes)[label[good]], split=split, listed_in=file)
            first += len(block)
        if records.fault:
            rows.problem(file, first, records.fault)


def _classes(place: Place, file: str) -> list[str]:
    with place.text(file) as lines:
        found = [line.strip() for line in lines]
    classes = [name for name in found if name]
    if not classes:
        raise UserError(f"{place.path(file)}: names no classes; get it again")
    return classes


def _is_pickled(place: Place) -> bool:
    ten = place.has("data_batch_1") and place.has("batches.meta")
    return ten or (place.has("meta") and place.has("train") and place.has("test") and "train" not in place.folders())
