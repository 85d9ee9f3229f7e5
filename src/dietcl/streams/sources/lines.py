"""Lines of a large text as an Arrow array, some at a time, and which of them hold a whole row in spite of quotes."""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_BLOCK = 2**22  # bytes that are looked at together
_LONGEST = 2**24  # bytes that a line may have


def lines(source: BinaryIO) -> Iterator[Any]:
    """Yield some lines at a time as they are, each with an end: one byte, whichever of the three kinds it was."""
    rest = b""
    while read := source.read(_BLOCK):
        data = rest + read
        held = b"\r" if data.endswith(b"\r") else b""  # half a line end, perhaps
        data = data[: len(data) - len(held)]
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole = data.rfind(b"\n") + 1
        if whole:
            yield _parted(data[:whole])
        rest = data[whole:] + held
        if len(rest) > _LONGEST:
            raise ValueError(f"a line of more than {_LONGEST:,} bytes")
    if rest:
        yield _parted(rest.removesuffix(b"\r") + b"\n")


def _parted(block: bytes) -> Any:
    """Part a block at its line ends without a copy."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    bounds = np.concatenate([[0], ends]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(bounds), pa.py_buffer(block)])


def joined(some: Any) -> pa.Buffer:
    """Return the bytes of lines that follow each other."""
    _, bounds, data = some.buffers()
    edges = np.frombuffer(bounds, np.int32, len(some) + 1, some.offset * 4)
    return data.slice(int(edges[0]), int(edges[-1] - edges[0]))


class Quotes:
    """Tells which lines are rows: to a parser, a quote that is not closed takes in all that follows."""

    def __init__(self, delimiter: str) -> None:
        plain = rf'[^"\n{re.escape(delimiter)}]'
        quoted = r'"(?:[^"]|"")*"'
        # Inside a field that does not begin with one, a quote is a sign like any other, as in: 5" nails.
        loose, strict = (f"(?:{quoted}|{plain}{more}*)?" for more in (rf"[^\n{re.escape(delimiter)}]", plain))
        self._whole, self._strict = (rf"^{field}(?:{delimiter}{field})*\n$" for field in (loose, strict))
        self._is_open = False

    def match(self, some: Any) -> npt.NDArray[np.bool_]:
        """Tell of the next lines which are rows; those without quotes always are."""
        good = np.ones(len(some), np.bool_)
        place = np.flatnonzero(pc.match_substring(some, '"').to_numpy(zero_copy_only=False))
        if not len(place):
            return good
        quoted = some.take(pa.array(place))
        whole, strict = (
            pc.match_substring_regex(quoted, pattern).to_numpy(zero_copy_only=False)
            for pattern in (self._whole, self._strict)
        )
        # The first quote after an open one may close it, and its line be the end of a row rather than a row.
        is_open = np.concatenate([[self._is_open], ~whole])
        good[place] = whole & (strict | ~is_open[:-1])
        self._is_open = bool(is_open[-1])
        return good
