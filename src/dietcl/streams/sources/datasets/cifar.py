"""CIFAR-10 and CIFAR-100 in the binary version that their authors distribute: label bytes and pixels in records."""

from dataclasses import dataclass

import numpy as np

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.path_lists import numbered_lines
from dietcl.streams.sources.parsing.records import Records, at_once
from dietcl.streams.sources.reader import Reader

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_TEN = {**{f"data_batch_{number}.bin": "train" for number in range(1, 6)}, "test_batch.bin": "test"}
_FINE, _COARSE = "fine_label_names.txt", "coarse_label_names.txt"
_HUNDRED = {"train.bin": "train", "test.bin": "test"}


@dataclass(frozen=True, kw_only=True)
class Cifar(Reader):
    """The binary version of CIFAR-10 (data_batch_1.bin, ...) or CIFAR-100 (train.bin, ...)."""

    name = "cifar"

    coarse: bool = False
    """Take the 20 superclasses of CIFAR-100 for labels rather than its 100 classes."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Look for the files' names, also those of the version that cannot be read."""
        if name:
            return name in _TEN or f"{name}.bin" in _TEN or (name in _HUNDRED and file_root.has(_FINE))
        return file_root.has("data_batch_1.bin") or file_root.has(_FINE) or _is_pickled(file_root)

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every complete record of every file."""
        file_root, hundred = rows.file_root, rows.file_root.has(_FINE)
        files = _HUNDRED if hundred else _TEN
        if f"{name}.bin" in files or not (name or any(map(file_root.has, files))):
            if name or _is_pickled(file_root):
                fault = "the python version of CIFAR is in pickles, which are never loaded"
                raise UserError(f"{file_root.path(name)}: {fault}; get the binary version")
            raise UserError(f"{file_root.root}: none of {', '.join(files)} exists; is the path right?")
        if self.coarse and not hundred:
            raise UserError(f"--coarse: {file_root.root} is not CIFAR-100, which alone has superclasses; leave it out")
        names = (_COARSE if self.coarse else _FINE) if hundred else "batches.meta.txt"
        classes = [line.strip() for _, line in numbered_lines(file_root, names)]
        if not classes:
            raise UserError(f"{file_root.path(names)}: names no classes; get it again")
        rows.suggest(recipe="class", time_steps=min(20, max(1, len(classes) // 2)))
        # A record of CIFAR-100 begins with the superclass and goes on with the class.
        head, position = (2, 0 if self.coarse else 1) if hundred else (1, 0)
        for file in (file for file in files if name in ("", file)):
            if file_root.has(file):
                _read_file(file, files[file], classes, head, position, rows)
            else:
                rows.problem(file, None, "the file is missing")


def _read_file(file: str, split: str, classes: list[str], head: int, position: int, rows: ManifestBuilder) -> None:
    size, first = head + _PIXELS, 0
    with rows.file_root.open(file) as stream:
        records = Records(stream, size)
        while len(block := records.take(at_once(size))):
            label = block[:, position]
            good = label < len(classes)
            for row in np.flatnonzero(~good).tolist():
                rows.problem(file, first + row, f"the label is not one of the {len(classes)} classes: {label[row]}")
            if good.any():
                images = block[good, head:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
                rows.pixels(images, label=np.array(classes)[label[good]], split=split, listed_in=file)
            first += len(block)
        if records.fault:
            rows.problem(file, first, records.fault)


def _is_pickled(file_root: FileRoot) -> bool:
    is_ten, is_hundred = (
        all(map(file_root.has, files)) for files in (("data_batch_1", "batches.meta"), ("meta", "train", "test"))
    )
    return is_ten or (is_hundred and "train" not in file_root.folders())
