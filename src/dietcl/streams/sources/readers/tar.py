"""Tar files in the layout of WebDataset: 01.jpg beside 01.cls or 01.json.

Only headers and labels are read: nothing is unpacked, and no name or link is followed.
"""

import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from dietcl.errors import UserError, reason
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.image_writer import is_hostile
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.path_lists import columns, is_image
from dietcl.streams.sources.reader import GeneralReader

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
_SUFFIXES = (".tar", *_COMPRESSED)
_TESTS = re.compile(r"(^|[^a-z])(test|val|valid|validation)([^a-z]|$)")
_AT_ONCE = 2**16  # samples
_LOOKED_AT = 1000  # files
_PICKLES = frozenset([".pyd", ".pkl", ".pickle", ".pth", ".pt"])
_PACKED = re.compile(rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ|\x28\xb5\x2f\xfd")  # how gzip, bzip2, xz and zstd begin
_REFUSED = "compressed, so that single images cannot be read; decompress it first"
_MOST_BYTES = 2**20  # of a label file, or of the headers before a member: long names, attributes, sparse maps

Problem = Callable[[int, str], None]  # takes the number of a member and what is wrong with it
Member = tuple[int, tarfile.TarInfo]  # with its number in the archive, from 0
Sample = tuple[str, int, int, int, Any, Any, str]  # shard, number of the image, offset, length, label, time, id


@dataclass(frozen=True, kw_only=True)
class Tar(GeneralReader):
    """Tar shards as WebDataset writes them: 01.jpg beside 01.cls or 01.json (label, time, id); they stay as they are.

    The quarantine counts the members of a shard from 0.
    """

    name = "tar"

    test_shards: str = ""
    """Glob of the shards that are for tests, as val/*.tar (by default those with the word test or val(id(ation)))."""
    classes: str = ""
    """Text file beside the shards with the class names, one a line from number 0; without it, numbers are names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_hostile(self.classes):
            raise UserError(f"--classes {self.classes}: leads outside the folder; put it beside the shards")

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept tar files, and folders that begin with some and without images."""
        if name:
            return name.lower().endswith(_SUFFIXES)
        names = list(islice(file_root.files(), _LOOKED_AT))
        return any(file.lower().endswith(_SUFFIXES) for file in names) and not any(map(is_image, names))

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every sample that has an image."""
        shards = [name] if name else [file for file in rows.file_root.files() if file.lower().endswith(_SUFFIXES)]
        for shard in shards:
            if shard.lower().endswith(_COMPRESSED):
                raise UserError(f"{rows.file_root.path(shard)}: {_REFUSED}")
        glob = self.test_shards
        tests = {shard for shard in shards if (fnmatchcase(shard, glob) if glob else _TESTS.search(shard.lower()))}
        if glob and not tests:
            raise UserError(f"--test-shards {glob}: no shard has such a name; there are {', '.join(shards[:3])}")
        if not tests:
            rows.draw_tests(self.test_share)
        classes = self._class_names(rows.file_root)
        found = (sample for shard in shards for sample in samples(shard, classes, rows))
        for file, row, offset, length, label, time, ids in columns(found, _AT_ONCE):
            split = ["test" if shard in tests else "train" for shard in file]
            rows.refer(file, label=label, time=time, split=split, id=ids, offset=offset, length=length, row=row)

    def _class_names(self, file_root: FileRoot) -> list[str]:
        if not self.classes:
            return []
        with file_root.text(self.classes) as lines:
            names = [line.strip() for line in lines.read().rstrip().split("\n")]
        if "" in names:
            fault = f"line {names.index('') + 1} is empty; give one class name per line"
            raise UserError(f"{file_root.path(self.classes)}: {fault}")
        return names


class _BadSample(Exception):
    """The number of the member that spoils its sample, and why."""


def samples(shard: str, classes: list[str], rows: ManifestBuilder) -> Iterator[Sample]:
    """Yield the samples of a shard, without those that go to the quarantine."""
    if rows.file_root.leads_outside(shard):
        rows.problem(shard, None, "a link leads outside the folder")
        return
    problem = partial(rows.problem, shard)
    with rows.file_root.open(shard) as stream:
        if _PACKED.match(stream.read(16)):
            raise UserError(f"{rows.file_root.path(shard)}: {_REFUSED}")
        for key, entries in groupby(_members(stream, problem), key=_key):
            if key.endswith("/") or not key:
                continue  # a hidden file, as some systems add for themselves
            try:
                yield _sample(shard, key, entries, stream, classes, problem)
            except _BadSample as fault:
                problem(*fault.args)


def _key(entry: Member) -> str:
    """Return what the members of a sample share: the name up to its first dot."""
    folder, slash, file = entry[1].name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _sample(
    shard: str, key: str, entries: Iterator[Member], stream: BinaryIO, classes: list[str], problem: Problem
) -> Sample:
    image: Member | None = None
    facts: dict[str, Any] = {}
    label = None
    for number, member in entries:
        suffix = PurePosixPath(member.name).suffix.lower()
        if is_image(member.name):
            if not member.size:
                raise _BadSample(number, f"the file is empty: {member.name}")
            if image is not None:
                problem(number, f"another image has the same name before its first dot: {member.name}")
            image = image or (number, member)
        elif suffix == ".cls":
            text = _text(number, member, stream).strip()
            label = _class_name(number, int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text, classes)
        elif suffix == ".json":
            facts = _facts(number, member, stream)
            facts["label"] = _class_name(number, facts.get("label"), classes)
        elif suffix in _PICKLES:
            problem(number, f"a pickle may run code and is not opened: {member.name}")
    if image is None:
        raise _BadSample(number, f"no image has this name before its first dot: {member.name}")
    number, member = image
    name = f"{shard}/{key}" if facts.get("id") in (None, "") else str(facts["id"])
    label = facts.get("label") if label in (None, "") else label
    return shard, number, member.offset_data, member.size, label, facts.get("time"), name


def _text(number: int, member: tarfile.TarInfo, stream: BinaryIO) -> str:
    if member.size > _MOST_BYTES:
        raise _BadSample(number, f"the label has more than {_MOST_BYTES:,} bytes: {member.name}")
    stream.seek(member.offset_data)
    try:
        return stream.read(member.size).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _BadSample(number, f"the file is not UTF-8 text: {member.name}") from None


def _facts(number: int, member: tarfile.TarInfo, stream: BinaryIO) -> dict[str, Any]:
    try:
        found = json.loads(_text(number, member, stream))
        json.dumps(found, ensure_ascii=False).encode()  # fails on half a surrogate pair, which JSON can spell
    except (ValueError, RecursionError) as error:
        raise _BadSample(number, f"the file is not readable JSON ({reason(error)}): {member.name}") from None
    if not isinstance(found, dict):
        raise _BadSample(number, f"the file is not a JSON object: {member.name}")
    if isinstance(found.get("id"), bool) or not isinstance(found.get("id"), str | int | None):
        raise _BadSample(number, f"the id is neither a string nor a whole number: {member.name}")
    return found


def _class_name(number: int, label: Any, classes: list[str]) -> Any:
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not classes or isinstance(label, bool) or not isinstance(label, int):
        return label
    if not 0 <= label < len(classes):
        raise _BadSample(number, f"the label has no line in --classes ({label} of {len(classes)})")
    return classes[label]


class _Metered:
    """A stream that limits the bytes read for each header, which may claim that gigabytes of text belong to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.seek, self.tell = stream, stream.seek, stream.tell
        self.left = _MOST_BYTES

    def read(self, size: int) -> bytes:
        """Read this many bytes, or raise before anything is read."""
        self.left -= size
        if self.left < 0 or size < 0:
            raise tarfile.ReadError(f"headers of more than {_MOST_BYTES:,} bytes" if size > 0 else "a size below zero")
        return self._stream.read(size)


def _members(stream: BinaryIO, problem: Problem) -> Iterator[Member]:
    """Yield each regular file up to the end, or to where the archive is truncated or broken; the rest are problems."""
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
                is_regular = member.isfile() and not member.issparse()
                if is_regular and member.offset_data + member.size > size:
                    problem(number, f"the archive is truncated (at member {number}): {member.name}")
                    return
                if is_hostile(member.name):
                    problem(number, f"the name leads outside the folder: {member.name}")
                elif is_regular:
                    yield number, member
                elif not member.isdir():
                    kind = "a link" if member.islnk() or member.issym() else "not a file"
                    problem(number, f"the member is {'sparse' if member.issparse() else kind}: {member.name}")
                number += 1
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                problem(
                    number, f"the archive is truncated or broken (at member {number}: neither a header nor the end)"
                )
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
        problem(number, f"the archive is unreadable (at member {number}: {reason(error)})")
