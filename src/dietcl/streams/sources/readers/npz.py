"""NumPy's files: an .npz of images, labels, times and splits by the names of its arrays, or an .npy of images."""

import math
import warnings
import zipfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dietcl.errors import UserError, reason
from dietcl.streams.decode import MOST_PIXELS
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.records import Records, at_once
from dietcl.streams.sources.reader import GeneralReader
from dietcl.streams.sources.readers.folder import SPLITS

Values = npt.NDArray[Any]
_OPTIONS = ("images", "label", "time", "split")  # that name an array
_LISTED = 20  # arrays in a message
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class _Array:
    """An array whose rows are read one after the other."""

    def __init__(self, stream: IO[bytes], path: str, name: str) -> None:
        self.name, self.where = name, f"{path}: array {name!r}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on headers that Python 2 wrote
                shape, by_columns, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
        except (ValueError, KeyError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise UserError(f"{self.where} is not in NumPy's format ({reason(error)}); save it again") from None
        if dtype.hasobject:
            raise UserError(f"{self.where} holds Python objects, which are never unpickled; save plain numbers or text")
        if not shape or min(shape) < 1 or not dtype.itemsize:
            raise UserError(f"{self.where} is {dtype} {shape}, which is empty; give one row an image")
        if by_columns and len(shape) > 1:
            raise UserError(f"{self.where} is stored by columns; save numpy.ascontiguousarray of it")
        self.count, self.shape, self.dtype = int(shape[0]), tuple(shape[1:]), dtype
        self.size = dtype.itemsize * math.prod(self.shape)
        self.records = Records(stream, self.size)

    def take(self, count: int) -> Values:
        """Return the next rows; there are fewer only where the file is truncated."""
        found = self.records.take(count)
        return found.reshape(-1).view(self.dtype).reshape(len(found), *self.shape)


@dataclass(frozen=True, kw_only=True)
class Arrays(GeneralReader):
    """An .npz with arrays of images, labels, times and splits, or an .npy of images alone."""

    name = "arrays"

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

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept .npz and .npy files."""
        return name.endswith((".npz", ".npy"))

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every image with its values in the other arrays, a batch at a time."""
        wanted = {option: getattr(self, option) for option in _OPTIONS if getattr(self, option)}
        if name.endswith(".npy"):
            if self.time or self.split or self.label not in ("", "y"):
                raise UserError(f"{name}: an .npy holds images alone; give an .npz for --label, --time and --split")
            wanted = {"images": self.images}
        with ExitStack() as stack:
            arrays = _open_arrays(stack, rows.file_root, name, wanted)
            rows.total, done = _check(arrays), 0
            if not self.split:
                rows.draw_tests(self.test_share)
            while part := min(rows.total - done, at_once(max(array.size for array in arrays.values()))):
                found = {option: array.take(part) for option, array in arrays.items()}
                short = min(found, key=lambda option: len(found[option]))
                if count := len(found[short]):
                    images = _squares(found.pop("images")[:count])
                    values = {option: _arrow_values(v[:count], arrays[option].where) for option, v in found.items()}
                    known = {role: self._known(values[role]) for role in ("label", "time") if role in values}
                    split = self._split(values["split"], arrays["split"].where, done) if self.split else "train"
                    rows.pixels(images, **known, split=split, listed_in=name)
                done += count
                if count < part:
                    cut_off = f"array {arrays[short].name!r} is truncated (rows: {done} of {rows.total})"
                    rows.problem(name, done, f"{cut_off}; {arrays[short].records.fault or 'unexpected end of file'}")
                    return

    def _known(self, values: Values) -> pa.Array:
        try:
            return pa.array(values, mask=_equal(values, self.unknown) if self.unknown else None)
        except ValueError:
            return pa.array(values)  # no number equals this text

    def _split(self, values: Values, where: str, first: int) -> list[str]:
        if self.test or values.dtype.kind in "iu":
            try:
                is_test = _equal(values, self.test) if self.test else values != 0
            except ValueError:
                raise UserError(f"--test {self.test}: {where} holds {values.dtype}; give one of its values") from None
            return ["test" if chosen else "train" for chosen in is_test.tolist()]
        words = values.tolist()
        for row, word in enumerate(words, start=first):
            if word not in SPLITS:
                raise UserError(f"{where} has {str(word)[:40]!r} in row {row}; use train and test, or give --test")
        return [SPLITS[word] for word in words]


def _check(arrays: dict[str, _Array]) -> int:
    """Return the number of images, or refuse arrays that do not fit together."""
    images = arrays["images"]
    where, dtype, shape = images.where, images.dtype, images.shape
    if dtype != np.uint8:
        those = "(255 * images).round(), if they go from 0 to 1," if dtype.kind == "f" else "them"
        raise UserError(f"{where} holds {dtype}; images are numbers from 0 to 255: save {those} as uint8")
    if _channels(shape) is None or images.size > 3 * MOST_PIXELS:
        raise UserError(f"{where} holds {shape}; images are squares, gray or RGB: reshape, pad or crop")
    for array in arrays.values():
        if array is not images and (array.dtype.kind not in "biufSUM" or array.shape not in ((), (1,))):
            raise UserError(f"{array.where} holds {array.dtype} {array.shape}; give one value for each image")
        if array.count != images.count:
            rows = f"differ in their rows ({images.count} and {array.count})"
            raise UserError(f"{where} and {array.name!r} {rows}; give arrays of the same images")
    return images.count


def _equal(values: Values, text: str) -> npt.NDArray[np.bool_]:
    """Compare values with one that was given as text; raises ValueError if it cannot be one of them."""
    return np.asarray(values == (float(text) if values.dtype.kind in "iuf" else values.dtype.type(text)))


def _open_arrays(stack: ExitStack, file_root: FileRoot, file: str, wanted: dict[str, str]) -> dict[str, _Array]:
    """Open the array of an .npy, or those of an .npz that options name; returns them by option."""
    path, stream = file_root.path(file), stack.enter_context(file_root.open(file))
    if file.endswith(".npy"):
        return {option: _Array(stream, path, name) for option, name in wanted.items()}
    try:
        pack = stack.enter_context(zipfile.ZipFile(stream))
        held = sorted(member.removesuffix(".npy") for member in pack.namelist())
        for option, name in wanted.items():
            if name not in held:
                described = ", ".join(_described(pack, path, name) for name in held[:_LISTED]) or "none"
                choose = f"choose with {', '.join(f'--{role}' for role in _OPTIONS)} from {described}"
                raise UserError(f"--{option} {name}: no such array in {path}; {choose}")
        members = {option: stack.enter_context(pack.open(f"{name}.npy")) for option, name in wanted.items()}
    except (zipfile.BadZipFile, KeyError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: not a readable .npz ({reason(error)}); save it again") from None
    return {option: _Array(member, path, wanted[option]) for option, member in members.items()}


def _described(pack: zipfile.ZipFile, path: str, name: str) -> str:
    try:
        with pack.open(f"{name}.npy") as member:
            array = _Array(member, path, name)
        return f"{name} ({array.dtype} {' x '.join(map(str, (array.count, *array.shape)))})"
    except (UserError, KeyError, OSError, RuntimeError, ValueError, zipfile.BadZipFile):
        return name


def _squares(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return images [n, side, side] or [n, side, side, 3], also where channels come first or there is only one."""
    if _channels(images.shape[1:]) == 0:
        images = images.transpose(0, 2, 3, 1)
    return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images


def _arrow_values(values: Values, where: str) -> Values:
    """Return values, one a row, in a type that Arrow accepts."""
    values = values.reshape(len(values))
    kind = values.dtype.kind
    if kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if kind == "U":
        codes = values.view(f"{values.dtype.str[0]}u4")
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise UserError(f"{where} holds text that is not Unicode; save it again")
    accepted: Any = {"b": np.uint8, "f": np.float64, "M": "datetime64[us]"}.get(kind, values.dtype.newbyteorder("="))
    return np.asarray(values.astype(accepted))


def _channels(shape: tuple[int, ...]) -> int | None:
    """Return the axis of the channels (-1: there is none); None if the images are not square."""
    if len(shape) in (2, 3) and shape[0] == shape[1] and shape[2:] in ((), (1,), (3,)):
        return 2 if len(shape) == 3 else -1
    return 0 if len(shape) == 3 and shape[1] == shape[2] and shape[0] in (1, 3) else None
