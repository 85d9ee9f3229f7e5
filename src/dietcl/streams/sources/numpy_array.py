"""Arrays in NumPy's format, some rows at a time; whatever would have to be unpickled is refused."""

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from dietcl.errors import UserError, reason
from dietcl.streams.decode import MOST_PIXELS
from dietcl.streams.filesystem import Place
from dietcl.streams.sources.parsing.records import Records

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Array:
    """An array whose rows are read one after the other."""

    def __init__(self, stream: BinaryIO, path: str, name: str) -> None:
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
        self._records = Records(stream, self.size)

    def take(self, count: int) -> npt.NDArray[Any]:
        """Return the next rows; there are fewer only where the file is cut off."""
        found = self._records.take(count)
        return found.reshape(-1).view(self.dtype).reshape(len(found), *self.shape)

    @property
    def fault(self) -> str:
        """Say why rows are missing."""
        return self._records.fault or "the file ends here"

    def require_images(self) -> None:
        """Refuse what is no array of images."""
        if self.dtype != np.uint8:
            advice = "(255 * images).round(), if they go from 0 to 1," if self.dtype.kind == "f" else "them"
            raise UserError(
                f"{self.where} holds {self.dtype}; images are numbers from 0 to 255: save {advice} as uint8"
            )
        if _channels(self.shape) is None or self.size > 3 * MOST_PIXELS:
            raise UserError(f"{self.where} holds {self.shape}; images are squares, gray or RGB: reshape, pad or crop")

    def require_values(self) -> None:
        """Refuse what is not one value a row."""
        if self.dtype.kind not in "biufSUM" or self.shape not in ((), (1,)):
            raise UserError(f"{self.where} holds {self.dtype} {self.shape}; give one number, date or string an image")


@contextmanager
def open_arrays(place: Place, file: str, wanted: Mapping[str, str]) -> Iterator[dict[str, Array]]:
    """Open the array of an .npy, or those of an .npz that options name; returns them by option."""
    path = place.path(file)
    with ExitStack() as stack:
        stream = stack.enter_context(place.open(file))
        if file.endswith(".npy"):
            yield {option: Array(stream, path, name) for option, name in wanted.items()}
            return
        try:
            pack = stack.enter_context(zipfile.ZipFile(stream))
            held = sorted(member.removesuffix(".npy") for member in pack.namelist())
            for option, name in wanted.items():
                if name not in held:
                    raise UserError(f"--{option} {name}: {path} has no such array; choose from {', '.join(held)}")
            members = {option: stack.enter_context(pack.open(f"{name}.npy")) for option, name in wanted.items()}
        except (zipfile.BadZipFile, KeyError, OSError, RuntimeError, ValueError) as error:
            raise UserError(f"{path}: not a readable .npz ({reason(error)}); save it again") from None
        yield {option: Array(cast(BinaryIO, member), path, wanted[option]) for option, member in members.items()}


def squares(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return images [n, side, side] or [n, side, side, 3], also where channels come first or there is but one."""
    if _channels(images.shape[1:]) == 0:
        images = images.transpose(0, 2, 3, 1)
    return images[..., 0] if images.ndim == 4 and images.shape[3] == 1 else images


def plain(values: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Return values, one a row, in a form that Arrow takes."""
    values = values.reshape(len(values))
    kind = values.dtype.kind
    if kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if kind == "U":
        codes = values.view(f"{values.dtype.str[0]}u4")
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise UserError(f"{where} holds text that is not Unicode; save it again")
    plainer: Any = {"b": np.uint8, "f": np.float64, "M": "datetime64[us]"}.get(kind, values.dtype.newbyteorder("="))
    return np.asarray(values.astype(plainer))


def _channels(shape: tuple[int, ...]) -> int | None:
    """Return the axis of the channels (-1: there is none); None if these are no squares."""
    if len(shape) == 2 and shape[0] == shape[1]:
        return -1
    if len(shape) == 3 and shape[0] == shape[1] and shape[2] in (1, 3):
        return 2
    return 0 if len(shape) == 3 and shape[1] == shape[2] and shape[0] in (1, 3) else None
