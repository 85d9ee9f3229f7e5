"""Records of equal size, one after the other in a file that may end too early."""

import zipfile
import zlib
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dietcl.errors import reason

_PIECE = 2**16  # little, because a piece whose checksum is wrong is lost as a whole


class Records:
    """Takes whole records from an open file, compressed or not, for as long as there are any."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._size, self._rest = size, bytearray()
        self._error = ""
        # One read of what lies below keeps what came before a fault; a longer one would throw it away.
        self._read = getattr(stream, "read1", stream.read)

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """Return the next records as [n, size]; n is below the count only at the end."""
        wanted = count * self._size
        while len(self._rest) < wanted and (piece := self._piece(wanted - len(self._rest))):
            self._rest += piece
        whole = min(len(self._rest) // self._size, count)
        found = np.frombuffer(bytes(self._rest[: whole * self._size]), np.uint8).reshape(whole, self._size)
        del self._rest[: whole * self._size]
        return found

    @property
    def fault(self) -> str:
        """Say why the last records are missing, once the end was reached; empty if nothing is wrong."""
        if self._error:
            return f"cannot be read to its end ({self._error})"
        return f"ends inside a record ({len(self._rest)} of {self._size} bytes)" if self._rest else ""

    def _piece(self, most: int) -> bytes:
        try:
            piece: bytes = b"" if self._error else self._read(min(most, _PIECE))
            return piece
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            self._error = reason(error)
            return b""


def at_once(size: int) -> int:
    """Return how many records of a size are best taken together."""
    return max(1, 2**25 // size)
