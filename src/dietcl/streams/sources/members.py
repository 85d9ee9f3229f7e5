"""The files in a tar file by their headers alone: nothing is unpacked, and no name or link is followed."""

import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dietcl.errors import reason
from dietcl.streams.shards import is_hostile

Problem = Callable[[int, str], None]  # takes the number of a member and what is wrong with it

_MOST_BYTES = 2**20  # of headers before a member: long names, lists of attributes, maps of sparse files


def members(stream: BinaryIO, problem: Problem) -> Iterator[tuple[int, tarfile.TarInfo]]:
    """Yield each plain file with its number among the members, which count from 0; the rest are problems."""
    for number, member in _headers(stream, problem):
        if is_hostile(member.name):
            problem(number, f"the name leads outside the folder: {member.name}")
        elif member.isfile() and not member.issparse():
            yield number, member
        elif not member.isdir():
            kind = "a link" if member.islnk() or member.issym() else "sparse" if member.issparse() else "not a file"
            problem(number, f"the member is {kind}: {member.name}")


class _Metered:
    """A stream that gives a few bytes for each member: a header may claim that gigabytes of text belong to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.left = _MOST_BYTES
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        """Read so much, or raise before anything is read."""
        self.left -= size
        if self.left < 0 or size < 0:
            raise tarfile.ReadError(f"headers of more than {_MOST_BYTES:,} bytes" if size > 0 else "a size below zero")
        return self._stream.read(size)


def _headers(stream: BinaryIO, problem: Problem) -> Iterator[tuple[int, tarfile.TarInfo]]:
    """Walk from header to header up to the end, or to where the file is cut off or broken."""
    size = stream.seek(0, 2)
    stream.seek(0)
    number = 0
    try:
        metered = _Metered(stream)
        with tarfile.open(fileobj=metered, mode="r:", encoding="utf-8", errors="replace") as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                metered.left = _MOST_BYTES
                tar.members.clear()  # type: ignore[attr-defined]  # millions of them would stay in memory
                if tar.offset <= member.offset or member.size < 0:
                    raise tarfile.ReadError("a size below zero")
                if member.isfile() and not member.issparse() and member.offset_data + member.size > size:
                    problem(number, f"the archive is cut off here: {member.name}")
                    return
                yield number, member
                number += 1
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                problem(number, "the archive is cut off or broken here, where its end or a header should be")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
        problem(number, f"the archive cannot be read from here on ({reason(error)})")
