"""The state of a run after a time step: written aside, then renamed, so that one good state is always there."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dietcl.engine.learner import Learner
from dietcl.errors import UserError

_PARTS = ("network", "method", "modules")


@dataclass(frozen=True)
class Progress:
    """Where a saved run stood."""

    finished: int
    journal: int  # length of events.jsonl in bytes


def save(learner: Learner, folder: Path, progress: Progress) -> None:
    """Write a checkpoint; the one before it stays until the new one is whole."""
    partial = begin(folder)
    for part, tensors in _tensors(learner).items():
        save_file(
            {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, partial / f"{part}.safetensors"
        )
    np.savez(partial / "counts.npz", **vars(learner.counts))
    state = {"finished": progress.finished, "journal": progress.journal, "ledger": learner.ledger.state()}
    (partial / "progress.json").write_text(json.dumps(state))
    publish(folder)


def load(learner: Learner, folder: Path) -> Progress | None:
    """Bring a learner to the last checkpoint; None if there is none."""
    if (found := newest(folder)) is None:
        return None
    try:
        saved: dict[str, Any] = json.loads((found / "progress.json").read_text())
        progress = Progress(saved["finished"], saved["journal"])
        tensors = {part: load_file(found / f"{part}.safetensors", device=str(learner.device)) for part in _PARTS}
        classes = len(tensors["network"]["head.bias"])
        with np.load(found / "counts.npz") as file:
            counts = {name: file[name] for name in vars(learner.counts)}
        learner.ledger.load_state(saved["ledger"])
    except (OSError, ValueError, TypeError, KeyError, BadZipFile, SafetensorError) as error:
        raise UserError(f"{found}: the checkpoint is damaged ({error}); start over with --fresh") from None
    learner.network.head.grow(classes, torch.Generator())
    learner.network.load_state_dict(tensors["network"])
    learner.method.load_state(tensors["method"])  # first, because a method may need it to make its modules
    for name, module in learner.method.modules().items():
        prefix = f"{name}."
        module.load_state_dict(
            {key.removeprefix(prefix): value for key, value in tensors["modules"].items() if key.startswith(prefix)}
        )
    for name, values in counts.items():
        setattr(learner.counts, name, values)
    return progress


def begin(folder: Path) -> Path:
    """Return an empty folder to write the next checkpoint in, beside the one that it is to replace."""
    partial = _beside(folder, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def publish(folder: Path) -> None:
    """Put what was written after `begin` in the place of the checkpoint before it."""
    old = _beside(folder, "old")
    if folder.exists():  # otherwise a crash left only the old one, which stays until the new one has its name
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    _beside(folder, "partial").rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def newest(folder: Path) -> Path | None:
    """Return where the last whole checkpoint lies, if there is one."""
    return next((place for place in (folder, _beside(folder, "old")) if place.is_dir()), None)


def _beside(folder: Path, state: str) -> Path:
    return folder.with_name(f"{folder.name}.{state}")


def _tensors(learner: Learner) -> dict[str, dict[str, torch.Tensor]]:
    modules = {
        f"{name}.{key}": value
        for name, module in learner.method.modules().items()
        for key, value in module.state_dict().items()
    }
    return dict(zip(_PARTS, (learner.network.state_dict(), learner.method.state(), modules), strict=True))
