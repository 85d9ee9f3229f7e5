"""Checkpoints: numbered files with their checksum in the name, written aside, synced, renamed and read back.

NUMBER-SLOT-DIGEST.safetensors holds a state. What seldom changes lies beside it in files rare-SLOT-DIGEST.safetensors:
each holds the tensors that were new or changed when it was written. Checkpoints that are kept together have different
slots and so never share a file: no damaged one costs more than one of them. Nothing here is ever unpickled.
"""

import errno
import hashlib
import itertools
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
    """A state as it was saved, and where."""

    path: Path
    tensors: dict[str, Tensor]
    rare: dict[str, Tensor]
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, of which the last few are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        self._held: dict[int, dict[str, _Held]] = {}  # by slot and name, what this process has written of it

    def save(self, tensors: Tensors, rare: Tensors, notes: dict[str, Any]) -> None:
        """Write a checkpoint; the ones before it stay until the new one was read back whole."""
        make_folder(self.folder)
        files = self._files()
        number = max((_number(path) for path in files), default=0) + 1
        used = {_slot(path) for path in files[: self._keep - 1]}
        slot = next(slot for slot in itertools.count() if slot not in used)
        kept = self._save_rare(slot, rare)
        data = save(_plain(tensors), {"notes": json.dumps(notes), "rare": json.dumps(kept)})
        self._write(f"{number:08d}-{slot}-{_digest(data)}.safetensors", data)
        self._prune()

    def load(self) -> tuple[Saved | None, list[str]]:
        """Return the newest whole checkpoint, and a sentence for each damaged one that was put aside."""
        damages: dict[Path, str] = {}
        for path in self._files():
            try:
                saved = self._read(path)
            except Damaged as damage:
                damages[path] = f"{damage}; the checkpoint before it is used"
            else:
                for damaged in damages:
                    _put_aside(damaged)
                return saved, list(damages.values())
        if damages:  # which are left as they are: nothing may take the run for one that has just begun
            *_, last = damages.values()
            raise UserError(
                f"{self.folder}: none of the checkpoints is whole ({last.partition(';')[0]}); start over with --fresh"
            )
        return None, []

    def _files(self) -> list[Path]:
        """Return what looks like a checkpoint, the newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)

    def _read(self, path: Path) -> Saved:
        data = _verified(path)
        try:
            notes = _notes(data)
            rare: dict[str, Tensor] = {}
            for file, names in json.loads(notes["rare"]).items():
                if not _RARE.fullmatch(file):
                    raise Damaged(f"{path}: names {file!r}, which is no part of a checkpoint")
                held = load(_verified(self.folder / file))
                rare |= {name: held[name] for name in names}
            return Saved(path, load(data), rare, json.loads(notes["notes"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            raise Damaged(f"{path}: is no checkpoint ({reason(error)})") from None

    def _save_rare(self, slot: int, tensors: Tensors) -> dict[str, list[str]]:
        """Write the tensors that the slot does not hold yet; returns the files that hold them all, and their names."""
        held = self._held.setdefault(slot, {})
        new = {name: value for name, value in tensors.items() if name not in held or not held[name].is_still(value)}
        if new:
            data = save(_plain(new))
            file = f"rare-{slot}-{_digest(data)}.safetensors"
            self._write(file, data)
            held |= {name: _Held(weakref.ref(value), value._version, file) for name, value in new.items()}
        files: dict[str, list[str]] = {}
        for name in tensors:
            files.setdefault(held[name].file, []).append(name)
        return files

    def _write(self, name: str, data: bytes) -> None:
        write_bytes(self.folder / name, data)
        try:
            _verified(self.folder / name)
        except Damaged as damage:
            raise UserError(f"{damage} right after it was written; the disk does not keep what it is given") from None

    def _prune(self) -> None:
        """Remove what is neither one of the last checkpoints nor a part of one."""
        kept: dict[str, set[str]] = {}
        for path in self._files():
            if len(kept) < self._keep:
                try:
                    kept[path.name] = _rare_of(path)
                except OSError:  # nobody knows what it holds, so nothing is removed
                    return
                except (ValueError, KeyError, TypeError, OverflowError, MemoryError, RecursionError):
                    continue  # damaged
        names = {*kept, *itertools.chain.from_iterable(kept.values())}
        for path in self.folder.iterdir():
            if path.name not in names and _OURS.search(path.name):
                path.unlink()
        for slot, held in self._held.items():
            self._held[slot] = {name: part for name, part in held.items() if part.file in names}


@dataclass(frozen=True)
class _Held:
    """A tensor as it was when a file was written that holds it."""

    tensor: "weakref.ref[Tensor]"
    version: int
    file: str

    def is_still(self, tensor: Tensor) -> bool:
        """Tell, without reading it, whether it is the same tensor and was not written to since."""
        return self.tensor() is tensor and tensor._version == self.version


def _verified(path: Path) -> bytes:
    """Return a file's bytes if they are those that its name promises."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path}: is not there") from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise Damaged(f"{path}: is damaged ({reason(error)})") from None
        raise UserError(f"{path}: cannot be read ({reason(error)}); make it readable") from None
    if _digest(data) != path.stem.rpartition("-")[2]:
        raise Damaged(f"{path}: is damaged (its checksum is another)")
    return data


def _notes(data: bytes) -> dict[str, str]:
    """Return the free text in the header of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return found


def _rare_of(path: Path) -> set[str]:
    """Return the names of the other files of a checkpoint from its header alone."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return set(json.loads(json.loads(file.read(size))["__metadata__"]["rare"]))


def _put_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it does not count as one that is kept."""
    path.rename(path.with_name(_DAMAGED + path.name))


def _plain(tensors: Tensors) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _number(path: Path) -> int:
    return int(path.name[:8])


def _slot(path: Path) -> int:
    return int(path.name.split("-")[1])
