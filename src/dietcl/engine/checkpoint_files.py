"""Checkpoints: numbered files with their checksum in the name, written atomically and read back.

NUMBER-SLOT-DIGEST.safetensors holds a state. Tensors that seldom change are in files rare-SLOT-DIGEST.safetensors
beside it: each holds the tensors that were new or changed when it was written. Checkpoints that are kept together have
different slots and so never share a file: a damaged file costs one checkpoint at most. Nothing is ever unpickled.
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
_OURS = re.compile(r"-\d+-[0-9a-f]{32}\.safetensors")  # also in the names of damaged and of incomplete ones
CHECKPOINTS = "checkpoints"  # folder of a run's checkpoints
_NAMES = {"journal": "event_log", "stretch": "segment"}  # of version 0.1, and what they are called now

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
        """Write a checkpoint; the ones before it stay until the new one was read back."""
        make_folder(self.folder)
        files = self._files()
        number = int(files[0].name[:8]) + 1 if files else 1
        used = {int(path.name.split("-")[1]) for path in files[: self._keep - 1]}
        slot = next(slot for slot in itertools.count() if slot not in used)
        kept = self._save_rare(slot, rare)
        data = save(on_cpu(tensors), {"notes": json.dumps(notes), "rare": json.dumps(kept)})
        self._write(f"{number:08d}-{slot}-{_digest(data)}.safetensors", data)
        self._prune()

    def load(self) -> tuple[Saved | None, list[str]]:
        """Return the newest intact checkpoint, and a sentence for each damaged one, which is renamed."""
        damages: dict[Path, str] = {}
        for path in self._files():
            try:
                saved = self._read(path)
            except Damaged as damage:
                damages[path] = f"{damage}; the checkpoint before it is used"
            else:
                for damaged in damages:
                    damaged.rename(damaged.with_name(f"damaged-{damaged.name}"))
                return saved, list(damages.values())
        if damages:  # left as they are, so that the run does not look like a new one
            last = [*damages.values()][-1].partition(";")[0]
            raise UserError(f"{self.folder}: none of the checkpoints is intact ({last}); start over with --fresh")
        return None, []

    def _files(self) -> list[Path]:
        """Return the checkpoints by name, the newest first."""
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
                    raise Damaged(f"{path}: names {file!r}, which is not a part of a checkpoint")
                held = load(_verified(self.folder / file))
                rare |= {name: held[name] for name in names}
            return Saved(path, load(data), rare, json.loads(notes["notes"], object_hook=_with_new_names))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            raise Damaged(f"{path}: is not a checkpoint ({reason(error)})") from None

    def _save_rare(self, slot: int, tensors: Tensors) -> dict[str, list[str]]:
        """Write the tensors that the slot does not hold yet; returns the names of the tensors in each of its files."""
        held = self._held.setdefault(slot, {})
        new = {name: value for name, value in tensors.items() if name not in held or not held[name].is_still(value)}
        if new:
            data = save(on_cpu(new))
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
        """Remove all files but those of the last checkpoints."""
        kept: dict[str, set[str]] = {}
        for path in self._files():
            if len(kept) < self._keep:
                try:
                    kept[path.name] = _rare_of(path)
                except OSError:  # its parts are unknown, so nothing is removed
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
    """A tensor that was written to a file, and its version at that time."""

    tensor: "weakref.ref[Tensor]"
    version: int
    file: str

    def is_still(self, tensor: Tensor) -> bool:
        """Tell, without reading it, whether it is the same tensor, unchanged since."""
        return self.tensor() is tensor and tensor._version == self.version


def _verified(path: Path) -> bytes:
    """Return a file's bytes if their checksum is the one in its name."""
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
    """Return the metadata in the header of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return found


def _with_new_names(notes: dict[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in notes.items()}


def _rare_of(path: Path) -> set[str]:
    """Return the names of the other files of a checkpoint."""
    with path.open("rb") as file:
        size = file.read(8)
        return set(json.loads(_notes(size + file.read(int.from_bytes(size, "little")))["rare"]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def on_cpu(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors as safetensors can save them."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def below(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
