"""Records of equal size, one after the other in a file that may end too early."""

import zipfile
import zlib
from typing import IO

import numpy as np
import numpy.typing as npt

from dietcl.errors import reason

_PIECE = 2**16  # bytes; few, because a piece whose checksum is wrong is lost entirely


class Records:
    """Reads complete records from an open file, compressed or not, for as long as there are any."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._size, self._rest, self._error = size, bytearray(), ""
        # A single read of the underlying file keeps what came before an error; a longer one would lose it.
        self._read = getattr(stream, "read1", stream.read)

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """Return the next records as [n, size]; n is below the count only at the end."""
        wanted = count * self._size
        try:
            while not self._error and (missing := wanted - len(self._rest)) > 0:
                piece = self._read(min(missing, _PIECE))
                if not piece:
                    break
                self._rest += piece
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            self._error = reason(error)
        end = min(len(self._rest) // self._size, count) * self._size
        found = np.frombuffer(bytes(self._rest[:end]), np.uint8).reshape(-1, self._size)
        del self._rest[:end]
        return found

    @property
    def fault(self) -> str:
        """Why the last records are missing, at the end of the file; empty if nothing is wrong."""
        if self._error:
            return f"cannot be read to its end ({self._error})"
        return f"ends inside a record ({len(self._rest)} of {self._size} bytes)" if self._rest else ""


def at_once(size: int) -> int:
    """Return how many records of a size are best read together."""
    return max(1, 2**25 // size)
