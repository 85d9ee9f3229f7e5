"""Lists in files that torch.save has written: plain ones are read in slices, others as a whole, and none runs code."""

import io
import pickle
import pickletools
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

from dietcl.errors import UserError, reason
from dietcl.streams.filesystem import Place
from dietcl.streams.sources.plain_list import Memo, NotPlain, Value, again, values

SAMPLE = 1000  # values, and up to twice as many
_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C  # of files of old torch
_HEADER = 4096  # bytes; more than stand before the list in a file of old torch
_NO_TENSORS = {pickle.dumps([], protocol) for protocol in range(2, 6)}  # what follows the list there
_SWELLS = 200  # times; text and numbers are never compressed that much
_MIXED = 1_000_000  # values; what comes this far is not read as a whole
_REMEDY = "get it again from where it was released"


class TorchList(Protocol):
    """A list or a tensor with one dimension in a file."""

    count: int
    sample: Sequence[Any]  # some values from all over the list

    def slices(self, size: int) -> Iterator[Sequence[Any]]:
        """Yield the values, `size` at a time."""


def open_list(place: Place, file: str) -> TorchList:
    """Open a list or tensor saved by torch; a file that would run code when it is opened is refused."""
    try:
        return _Streamed(place, file)
    except NotPlain:
        return _Whole(place, file)


class _Streamed:
    """A list of numbers and text alone, which is read twice: to see that it is whole, and to have its values."""

    def __init__(self, place: Place, file: str) -> None:
        self._place, self._file = place, file
        self._memo: Memo = {}
        self.count, every = 0, 1
        sample: list[Value] = []
        for found in self._read(self._memo):
            sample += found[-self.count % every :: every]
            self.count += len(found)
            while len(sample) > 2 * SAMPLE:
                sample, every = sample[::2], 2 * every
        self.sample: Sequence[Any] = sample

    def slices(self, size: int) -> Iterator[list[Value]]:
        """Yield the values, `size` at a time."""
        rest: list[Value] = []
        left = self.count
        try:
            for found in self._read(again(self._memo)):
                rest += found
                left -= len(found)
                while len(rest) >= size and left >= 0:
                    yield rest[:size]
                    del rest[:size]
        except NotPlain:
            left = -1
        if left:
            raise UserError(f"{self._place.path(self._file)}: changes while it is read; try again when it is whole")
        if rest:
            yield rest

    def _read(self, memo: Memo) -> Generator[list[Value], None, None]:
        path = self._place.path(self._file)
        done = 0
        try:
            with self._place.open(self._file) as source, _pickled(source, path) as (stream, is_old):
                parts = values(stream, memo, path)
                while True:
                    try:
                        found = next(parts)
                    except StopIteration as end:
                        if is_old and end.value + stream.read(_HEADER) not in _NO_TENSORS:
                            raise NotPlain from None
                        return
                    done += len(found)
                    yield found
        except NotPlain:
            if done > _MIXED:
                raise UserError(
                    f"{path}: refused; after {done} numbers and texts something else comes; {_REMEDY}"
                ) from None
            raise
        except UserError:
            raise
        except Exception as error:  # a broken archive can break anything, and far stores have errors of their own
            raise UserError(f"{path}: cannot be read ({reason(error)}); {_REMEDY}") from None


@contextmanager
def _pickled(source: IO[bytes], path: str) -> Iterator[tuple[IO[bytes], bool]]:
    """Open the pickle with the list, and tell whether the file is of old torch."""
    head = source.read(_HEADER)
    if not head.startswith(_ZIP):
        source.seek(_start(head))
        yield source, True
        return
    size = source.seek(0, 2)
    with zipfile.ZipFile(source) as pack:
        members = [info for info in pack.infolist() if info.filename.split("/")[1:] == ["data.pkl"]]
        if len(members) != 1:
            raise NotPlain
        if members[0].file_size > _SWELLS * size:
            raise UserError(
                f"{path}: refused; it has {size} bytes, and the list in it is said to have {members[0].file_size}; "
                + _REMEDY
            )
        with pack.open(members[0]) as stream:
            yield stream, False


def _start(head: bytes) -> int:
    """Return where the list starts in a file of old torch: after a magic number, a version and a description."""
    source = io.BytesIO(head)
    try:
        magic, *_ = [[argument for _, argument, _ in pickletools.genops(source)] for _ in range(3)]
    except ValueError:
        raise NotPlain from None
    if _MAGIC not in magic:
        raise NotPlain
    return source.tell()


class _Whole:
    """Anything that torch reads without running code, held in memory."""

    def __init__(self, place: Place, file: str) -> None:
        self._values = _load(place, file)
        self.count = len(self._values)
        self.sample = _list(self._values[:: max(1, self.count // SAMPLE)])

    def slices(self, size: int) -> Iterator[Sequence[Any]]:
        """Yield the values, `size` at a time."""
        for start in range(0, self.count, size):
            yield _list(self._values[start : start + size])


def _list(values: Any) -> Sequence[Any]:
    return values if isinstance(values, list | tuple) else values.tolist()


def _load(place: Place, file: str) -> Any:
    import torch

    path = place.path(file)
    try:
        if place.is_local and zipfile.is_zipfile(path):
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        else:
            with place.open(file) as source:
                found = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path}: refused; it is broken, or holds more than lists, tensors, numbers and text and would run code "
            f"when it is opened; {_REMEDY}"
        ) from None
    except UserError:
        raise
    except Exception as error:  # broken bytes can break anything inside
        raise UserError(f"{path}: cannot be read ({reason(error)}); {_REMEDY}") from None
    is_plain = isinstance(found, torch.Tensor) and found.layout == torch.strided and found.device.type == "cpu"
    # A tensor that is not contiguous may claim more numbers than its file has.
    if isinstance(found, list | tuple) or (is_plain and found.dim() == 1 and found.is_contiguous()):
        return found
    raise UserError(f"{path}: must hold a list or a tensor with one dimension; {_REMEDY}")
