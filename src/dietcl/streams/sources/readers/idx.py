"""The MNIST family: images and labels in IDX files, train-images-idx3-ubyte and so on, plain or .gz."""

import gzip
import re
from dataclasses import dataclass
from typing import BinaryIO, cast

from dietcl.errors import UserError
from dietcl.streams.decode import MOST_PIXELS
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.records import Records, at_once
from dietcl.streams.sources.reader import Reader

_NAME = re.compile(r"(?P<prefix>.*?)(?P<part>train|t10k|test)-images[-.]idx3-ubyte(?:\.gz)?")
_PREFIXES = ("", *(f"emnist-{x}-" for x in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")))
_KNOWN = ("train-images.idx3-ubyte", *(f"{prefix}train-images-idx3-ubyte" for prefix in _PREFIXES))


@dataclass(frozen=True, kw_only=True)
class Idx(Reader):
    """Files of the MNIST family: train-images-idx3-ubyte and so on, plain or .gz, with any prefix."""

    name = "idx"
    time_steps = 5
    mirror = False

    prefix: str = ""
    """What the files' names begin with, such as emnist-letters-, where a folder holds several sets."""
    transpose: bool = False
    """Swap rows and columns, as the images of EMNIST need."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Look for the files' names."""
        return not name and any(file_root.has(known + end) for known in _KNOWN for end in ("", ".gz"))

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every complete image with its label."""
        sets = _sets(rows.file_root)
        if not sets:
            raise UserError(f"{rows.file_root.root}: no file is named like train-images-idx3-ubyte; is the path right?")
        if self.prefix not in sets and (self.prefix or len(sets) > 1):
            raise UserError(f"--prefix {self.prefix!r}: choose from {', '.join(map(repr, sorted(sets)))}")
        for part, images in (sets.get(self.prefix) or next(iter(sets.values()))).items():
            self._read_pair(images, "train" if part == "train" else "test", rows)

    def _read_pair(self, file: str, split: str, rows: ManifestBuilder) -> None:
        file_root, beside = rows.file_root, _labels_of(rows.file_root, file)
        path = file_root.path(file)
        with file_root.open(file) as images_file, file_root.open(beside) as labels_file:
            images_in, (count, height, width) = _read_header(images_file, path, 3)
            labels_in, (labels_count,) = _read_header(labels_file, file_root.path(beside), 1)
            if count != labels_count:
                raise UserError(f"{path}: images: {count}, labels in {beside}: {labels_count}; get both again")
            if height != width or not 0 < height * width <= MOST_PIXELS:
                raise UserError(f"{path}: images are {height} x {width}; they must be squares, so pad or crop")
            images, labels, done = Records(images_in, height * width), Records(labels_in, 1), 0
            while part := min(count - done, at_once(height * width)):
                block, label = images.take(part), labels.take(part)
                complete = min(len(block), len(label))
                if complete:
                    squares = block[:complete].reshape(complete, height, width)
                    squares = squares.transpose(0, 2, 1) if self.transpose else squares
                    rows.pixels(squares, label=label[:complete, 0], split=split, listed_in=file)
                done += complete
                if complete < part:
                    short, why = (beside, labels.fault) if len(label) < len(block) else (file, images.fault)
                    why = why or "unexpected end of file"
                    rows.problem(short, done, f"shorter than its header states: {done} of {count}; {why}")
                    return
            for name, records in ((file, images), (beside, labels)):
                if fault := "more data" if len(records.take(1)) else records.fault:
                    rows.problem(name, count, f"unexpected data after the last record: {fault}")


def _sets(file_root: FileRoot) -> dict[str, dict[str, str]]:
    """Return the files of images by what their names begin with and by part; a plain one goes before its .gz."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(file_root.files(), key=lambda file: (not file.endswith(".gz"), file)):
        if match := _NAME.fullmatch(file):
            found.setdefault(match["prefix"], {})[match["part"]] = file
    return {prefix: dict(sorted(parts.items(), reverse=True)) for prefix, parts in found.items() if "/" not in prefix}


def _labels_of(file_root: FileRoot, file: str) -> str:
    plain = re.sub(r"-images([-.])idx3-ubyte(\.gz)?$", r"-labels\1idx1-ubyte", file)
    for end in ("", ".gz"):
        if file_root.has(plain + end):
            return plain + end
    raise UserError(f"{file_root.path(plain)}: the labels of {file} are missing; put them beside it")


def _read_header(file: BinaryIO, path: str, dimensions: int) -> tuple[BinaryIO, list[int]]:
    """Return the file without its compression, and the sizes that its header gives."""
    stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.endswith(".gz") else file
    magic, *sizes = Records(stream, 4 * (1 + dimensions)).take(1).view(">u4").flatten().tolist() or [None]
    if magic != 0x800 + dimensions:  # unsigned bytes, and the number of dimensions
        kind = "images" if dimensions == 3 else "labels"
        raise UserError(f"{path}: not an IDX file of {kind} (it begins with {magic}); get it again")
    return stream, sizes
