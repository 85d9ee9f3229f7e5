"""Checkpoints: numbered files with their checksum in the name, written aside, synced, renamed and read back.

NUMBER-SLOT-DIGEST.safetensors holds a state. What seldom changes lies beside it in rare-SLOT-DIGEST.safetensors and is
written only when it did change; checkpoints that are kept together have different slots and so never share it: no
damaged file costs more than one of them. Nothing here is ever unpickled.
"""

import hashlib
import json
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dietcl.errors import UserError, reason
from dietcl.files import make_folder, write_bytes

_NAME = re.compile(r"(\d{8})-(\d+)-([0-9a-f]{32})\.safetensors")
_RARE = re.compile(r"rare-\d+-([0-9a-f]{32})\.safetensors")
_OURS = re.compile(r"-\d+-[0-9a-f]{32}\.safetensors")  # also in the names of damaged ones, and of ones cut short
_DAMAGED = "damaged-"
CHECKPOINTS = "checkpoints"  # folder of a run's checkpoints

Tensors = Mapping[str, Tensor]


class Damaged(Exception):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Saved:
    """A state as it was saved."""

    tensors: dict[str, Tensor]
    rare: dict[str, Tensor]
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, of which the last few are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        self._rare: tuple[_Fingerprint, str] | None = None  # what was last saved there, and its digest
        self._whole: set[str] = set()  # files that were read and found whole

    def __bool__(self) -> bool:
        return bool(self._files())

    def save(self, tensors: Tensors, rare: Tensors, notes: dict[str, Any]) -> None:
        """Write a checkpoint; the ones before it stay until the new one was read back whole."""
        make_folder(self.folder)
        files = self._files()
        number = max((_number(path) for path in files), default=0) + 1
        used = {_slot(path) for path in files[: self._keep - 1]}
        slot = min(set(range(self._keep)) - used)
        kept = self._save_rare(slot, rare) if rare else ""
        data = save(_plain(tensors), {"notes": json.dumps(notes), "rare": kept})
        self._write(f"{number:08d}-{slot}-{_digest(data)}.safetensors", data)
        self._prune()

    def load(self) -> tuple[Saved | None, list[str]]:
        """Return the newest whole checkpoint, and a sentence for each damaged one that was put aside."""
        sentences: list[str] = []
        files = self._files()
        for path in files:
            try:
                return self._read(path), sentences
            except Damaged as damage:
                sentences.append(f"{damage}; the checkpoint before it is used")
                path.rename(path.with_name(_DAMAGED + path.name))  # it must not count as one that is kept
        if files:
            raise UserError(
                f"{self.folder}: none of the checkpoints is whole ({sentences[-1].partition(';')[0]}); "
                "start over with --fresh"
            )
        return None, sentences

    def _files(self) -> list[Path]:
        """Return what looks like a checkpoint, the newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)

    def _read(self, path: Path) -> Saved:
        data = _verified(path)
        try:
            notes = _notes(data)
            rare = notes["rare"]
            if rare and not _RARE.fullmatch(rare):
                raise Damaged(f"{path}: names {rare!r}, which is no part of a checkpoint")
            others = load(_verified(self.folder / rare)) if rare else {}
            self._whole.add(rare)
            return Saved(load(data), others, json.loads(notes["notes"]))
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise Damaged(f"{path}: is no checkpoint ({reason(error)})") from None

    def _save_rare(self, slot: int, tensors: Tensors) -> str:
        """Return the name of the file that holds these tensors, written if it is not there."""
        fingerprint = _Fingerprint(tensors)
        data = None
        if self._rare is None or self._rare[0] != fingerprint:
            data = save(_plain(tensors))
            self._rare = (fingerprint, _digest(data))
        name = f"rare-{slot}-{self._rare[1]}.safetensors"
        if name not in self._whole:
            self._write(name, save(_plain(tensors)) if data is None else data)
        return name

    def _write(self, name: str, data: bytes) -> None:
        write_bytes(self.folder / name, data)
        try:
            _verified(self.folder / name)
        except Damaged as damage:
            raise UserError(f"{damage} right after it was written; the disk does not keep what it is given") from None
        self._whole.add(name)

    def _prune(self) -> None:
        """Remove what is neither one of the last checkpoints nor a part of one."""
        kept = self._files()[: self._keep]
        names = {path.name for path in kept} | {_rare_of(path) for path in kept}
        for path in self.folder.iterdir():
            if path.name not in names and _OURS.search(path.name):
                path.unlink()
                self._whole.discard(path.name)


class _Fingerprint:
    """Tells without reading them whether tensors are the same objects as before and were not written to."""

    def __init__(self, tensors: Tensors) -> None:
        self._known = {name: (weakref.ref(value), value._version) for name, value in tensors.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Fingerprint) or self._known.keys() != other._known.keys():
            return False
        return all(
            reference() is not None and reference() is theirs() and version == version_then
            for (reference, version), (theirs, version_then) in (
                (entry, other._known[name]) for name, entry in self._known.items()
            )
        )

    __hash__ = None  # type: ignore[assignment]


def _verified(path: Path) -> bytes:
    """Return a file's bytes if they are those that its name promises."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path}: is not there") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None
    if _digest(data) != path.stem.rpartition("-")[2]:
        raise Damaged(f"{path}: is damaged (its checksum is another)")
    return data


def _notes(data: bytes) -> dict[str, str]:
    """Return the free text in the header of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return found


def _rare_of(path: Path) -> str:
    """Return the name of the other part of a checkpoint from its header alone."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return str(json.loads(file.read(size))["__metadata__"]["rare"])


def _plain(tensors: Tensors) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _number(path: Path) -> int:
    return int(path.name[:8])


def _slot(path: Path) -> int:
    return int(path.name.split("-")[1])
