"""Samples of WebDataset: members of a tar file that share a name up to its first dot."""

import json
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from dietcl.errors import UserError, reason
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.members import Problem, members
from dietcl.streams.sources.readers.folder import SUFFIXES

_PICKLES = frozenset([".pyd", ".pkl", ".pickle", ".pth", ".pt"])
_PACKED = re.compile(rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ|\x28\xb5\x2f\xfd")  # how gzip, bzip2, xz and zstd begin
COMPRESSED = "compressed, so that no image in it can be read by itself; decompress it first"
_MOST_BYTES = 2**20  # of a file that says what an image shows


class Unsound(Exception):
    """The number of the member that spoils its sample, and why."""


class Sample(NamedTuple):
    """One image and what is known about it."""

    shard: str
    number: int  # of the image among the members
    offset: int
    length: int
    label: Any
    time: Any
    id: str


def samples(shard: str, classes: list[str], rows: Preparation) -> Iterator[Sample]:
    """Yield the samples of a shard; what is wrong with one is in the quarantine, and it is left out."""
    if rows.place.leads_outside(shard):
        rows.problem(shard, None, "a link leads outside the folder")
        return

    def problem(number: int, sentence: str) -> None:
        rows.problem(shard, number, sentence)

    with rows.place.open(shard) as stream:
        if _PACKED.match(stream.read(16)):
            raise UserError(f"{rows.place.path(shard)}: {COMPRESSED}")
        for key, entries in groupby(members(stream, problem), key=lambda entry: _key(entry[1].name)):
            if key.endswith("/") or not key:
                continue  # a hidden file, as some systems add for themselves
            try:
                if sample := _sample(shard, key, entries, stream, classes, problem):
                    yield sample
            except Unsound as fault:
                problem(*fault.args)


def _key(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _sample(
    shard: str,
    key: str,
    entries: Iterator[tuple[int, tarfile.TarInfo]],
    stream: BinaryIO,
    classes: list[str],
    problem: Problem,
) -> Sample | None:
    image: tuple[int, tarfile.TarInfo] | None = None
    facts: dict[str, Any] = {}
    label = None
    for number, member in entries:
        suffix = PurePosixPath(member.name).suffix.lower()
        if suffix in SUFFIXES and not member.size:
            raise Unsound(number, f"the file is empty: {member.name}")
        if suffix in SUFFIXES and image is None:
            image = number, member
        elif suffix in SUFFIXES:
            problem(number, f"another image has the same name up to its first dot: {member.name}")
        elif suffix == ".cls":
            text = _text(number, member, stream).strip()
            label = _class_name(number, int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text, classes)
        elif suffix == ".json":
            facts = _facts(number, member, stream)
            facts["label"] = _class_name(number, facts.get("label"), classes)
        elif suffix in _PICKLES:
            problem(number, f"a pickle may run code and is not opened: {member.name}")
    if image is None:
        problem(number, f"no image has this name up to its first dot: {member.name}")
        return None
    number, member = image
    name = f"{shard}/{key}" if facts.get("id") in (None, "") else str(facts["id"])
    label = facts.get("label") if label in (None, "") else label
    return Sample(shard, number, member.offset_data, member.size, label, facts.get("time"), name)


def _text(number: int, member: tarfile.TarInfo, stream: BinaryIO) -> str:
    if member.size > _MOST_BYTES:
        raise Unsound(number, f"more than {_MOST_BYTES:,} bytes are no label: {member.name}")
    stream.seek(member.offset_data)
    try:
        return stream.read(member.size).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unsound(number, f"the file is not UTF-8 text: {member.name}") from None


def _facts(number: int, member: tarfile.TarInfo, stream: BinaryIO) -> dict[str, Any]:
    try:
        found = json.loads(_text(number, member, stream))
        json.dumps(found, ensure_ascii=False).encode()  # half a character, which JSON can spell, is none
    except (ValueError, RecursionError) as error:
        raise Unsound(number, f"the file is not readable JSON ({reason(error)}): {member.name}") from None
    if not isinstance(found, dict):
        raise Unsound(number, f"the file is not a JSON object: {member.name}")
    if isinstance(found.get("id"), bool) or not isinstance(found.get("id"), str | int | None):
        raise Unsound(number, f"the id is neither a string nor a whole number: {member.name}")
    return found


def _class_name(number: int, label: Any, classes: list[str]) -> Any:
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not classes or isinstance(label, bool) or not isinstance(label, int):
        return label
    if not 0 <= label < len(classes):
        raise Unsound(number, f"the label has no line in --classes ({label} of {len(classes)})")
    return classes[label]
