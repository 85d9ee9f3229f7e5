"""The verifier: reads and decodes images while they are prepared, many at a time, and says what is wrong with which."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor

import pyarrow as pa

from dietcl.errors import reason
from dietcl.streams.column_coercion import Faults
from dietcl.streams.decode import Unreadable, decode
from dietcl.streams.filesystem import Place

_AT_ONCE = 1024  # images that are decoded between two words on progress
_FAR_AT_ONCE = 128  # images that are fetched at the same time


class Verifier:
    """Looks at images in one place, with the threads of a pool."""

    def __init__(self, place: Place, pool: Executor) -> None:
        self._place, self._pool = place, pool

    def of_bytes(self, images: Iterable[bytes | None]) -> list[str | None]:
        """Return what is wrong with each of some encoded images, or None."""
        return list(self._pool.map(fault_of, images))

    def of_rows(
        self, file: pa.Array, offset: pa.Array, length: pa.Array, known: Faults, progress: Callable[[int], None]
    ) -> Faults:
        """Return what is wrong with the images of rows that have no known fault."""
        names, starts, sizes = file.to_pylist(), offset.to_pylist(), length.to_pylist()
        ends = [None if size is None else start + size for start, size in zip(starts, sizes, strict=True)]
        starts = [None if end is None else start for start, end in zip(starts, ends, strict=True)]

        def near(i: int) -> str | None:
            if self._place.leads_outside(names[i]):
                return "a link leads outside the folder"
            try:
                return fault_of(self._place.read(names[i], starts[i], ends[i]))
            except Exception as error:  # each kind of store has errors of its own
                return fault_of(error)

        def far(part: Sequence[int]) -> Iterator[str | None]:
            data = self._place.read_many([names[i] for i in part], [starts[i] for i in part], [ends[i] for i in part])
            return self._pool.map(fault_of, data)

        rows = [i for i in range(len(names)) if i not in known]
        found: Faults = {}
        size = _AT_ONCE if self._place.is_local else _FAR_AT_ONCE
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            faults = self._pool.map(near, part) if self._place.is_local else far(part)
            found |= {i: fault for i, fault in zip(part, faults, strict=True) if fault}
            progress(part[-1] + 1)
        return found


def fault_of(data: bytes | Exception | None) -> str | None:
    """Return what is wrong with the bytes of an image, or with reading them."""
    if isinstance(data, Exception):
        return f"cannot be read ({reason(data)})"
    if data is None:
        return "there is no image"
    try:
        decode(data, 1)
    except Unreadable as error:
        return str(error)
    return None
