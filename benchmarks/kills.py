"""A run in a process of its own that kills itself at a chosen moment, and what a run leaves behind."""

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file

from dietcl.config import RunConfig
from dietcl.engine.checkpoint_files import CHECKPOINTS, Checkpoints
from dietcl.engine.event_log import EventLog
from dietcl.execution import Execution
from dietcl.methods import method_class
from dietcl.run import execute

HALF_A_CHECKPOINT = "with half of a checkpoint written"
BEFORE_RENAME = "before a checkpoint's rename"
AFTER_RENAME = "after a checkpoint's rename"
REMOVING = "amid the removal of old checkpoints"
HALF_A_RESULT = "with half of a result file written"
HALF_AN_EVENT = "with half of an event written"
# What the engine calls of a method, and amid what; after_update comes when the weights have moved and nothing knows it.
HOOKS = {
    "after_update": "amid an update",
    "absorb": "amid a sweep",
    "predict": "amid an evaluation",
    "begin_step": "between time steps",
}
MOMENTS = (
    *(HALF_A_CHECKPOINT, BEFORE_RENAME, AFTER_RENAME, REMOVING),
    *HOOKS.values(),
    *(HALF_AN_EVENT, HALF_A_RESULT),
)
CLOCK = {"seconds", "data_wait"}  # fields of events that no two runs have in common
_HANGS = 120.0  # seconds that no miniature run takes
# multiprocessing reads a process's exit code from a pipe, once, and whoever starts one also looks after all others.
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Shot:
    """When a run is killed: by another process after some seconds, by itself at a moment, or not at all."""

    every: int
    """Updates between the run's checkpoints."""
    after: float | None = None
    aim: tuple[str, int] | None = None
    """A moment, and which occurrence of it, counted from 1."""


@dataclass(frozen=True)
class Facts:
    """What a finished run recorded about itself."""

    start: float
    """Seconds until it began to learn."""
    work: float
    """Seconds from then to its end."""
    moments: dict[str, int]
    """How often each came."""


def start(config: RunConfig, folder: Path, shot: Shot) -> BaseProcess:
    """Start or continue a run in a new process, which kills itself if it is aimed at a moment."""
    context = multiprocessing.get_context("forkserver")
    # Forked from a process that has imported everything and computed nothing, a run starts in a tenth of a second.
    context.set_forkserver_preload([__name__, "dietcl.cli.train"])
    process = context.Process(target=_carry_out, args=(config, folder, shot))
    with _LOCK:
        process.start()
    return process


def wait(process: BaseProcess, kill_after: float | None = None) -> int:
    """Wait for a process's end and return its exit code; it is killed if it is not over after `kill_after` seconds."""
    begun = time.monotonic()
    is_killed = False
    while True:
        with _LOCK:
            if not process.is_alive():
                assert process.exitcode is not None
                return process.exitcode
            passed = time.monotonic() - begun
            if not is_killed and kill_after is not None and passed >= kill_after:
                process.kill()
                is_killed = True
            if passed > _HANGS:
                process.kill()
                raise TimeoutError(f"a run of a few seconds hangs for {_HANGS:.0f} s")
        time.sleep(0.005)


def facts_of(folder: Path) -> Facts:
    """Return the facts that a finished run recorded."""
    return Facts(**json.loads(_facts_file(folder).read_text()))


def outcome(folder: Path) -> dict[str, str]:
    """Return digests of all that a finished run leaves behind, by name: tensors, arrays and events, clocks apart."""
    found: dict[str, Any] = {
        f"weights: {name}": value for name, value in load_file(folder / "model.safetensors").items()
    }
    for file in ("counts.npz", "confusion.npz", "samples.npz"):
        with np.load(folder / file) as arrays:
            found |= {f"{file}: {name}": arrays[name] for name in arrays}
    for file in ("receipts.json", "config.json"):
        found[file] = json.loads((folder / file).read_text())
    for number, line in enumerate((folder / "events.jsonl").read_text().splitlines()):
        found[f"event {number}"] = {key: value for key, value in json.loads(line).items() if key not in CLOCK}
    saved, damages = Checkpoints(folder / CHECKPOINTS, keep=2).load()
    assert saved is not None
    found |= {f"checkpoint: {name}": value.numpy() for name, value in {**saved.tensors, **saved.rare}.items()}
    found["damages"], found["files"] = damages, sorted(path.name for path in folder.iterdir())
    return {name: _digest(value) for name, value in found.items()}


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Name all in which two outcomes are not the same."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _carry_out(config: RunConfig, folder: Path, shot: Shot) -> None:
    """Be the process: learn, and die if the moment comes."""
    torch.set_num_threads(1)
    moments: Counter[str] = Counter()

    def come(moment: str, file: Path | None = None, size_before: int = 0) -> None:
        moments[moment] += 1
        if shot.aim == (moment, moments[moment]):
            if file is not None:  # take back half of what was written last
                os.truncate(file, (size_before + file.stat().st_size) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    _arm(config.method, folder, come)
    begun, learning = time.monotonic(), []
    execute(
        config,
        folder,
        Execution(device="cpu", bad_images=1.0, checkpoint_every=shot.every),
        progress=lambda t, fraction: learning.append(time.monotonic()),
    )
    first = (learning or [begun])[0]  # nothing may be left to learn
    facts = Facts(start=first - begun, work=time.monotonic() - first, moments=moments)
    _facts_file(folder).write_text(json.dumps(vars(facts)))


def _arm(method: str, folder: Path, come: Callable[..., None]) -> None:
    """Say whenever a moment comes; nothing is put back, because the process serves one run."""
    replace, unlink, write = Path.replace, Path.unlink, EventLog.write

    def watched_replace(partial: Path, target: Path) -> Path:
        if target.parent.name != CHECKPOINTS:
            come(HALF_A_RESULT, partial)
            return replace(partial, target)
        come(HALF_A_CHECKPOINT, partial)
        come(BEFORE_RENAME)
        renamed = replace(partial, target)
        come(AFTER_RENAME)
        return renamed

    def watched_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == CHECKPOINTS:
            come(REMOVING)
        unlink(path, missing_ok)

    def watched_write(log: EventLog, event: str, **fields: object) -> None:
        file = folder / "events.jsonl"
        before = file.stat().st_size
        write(log, event, **fields)
        come(HALF_AN_EVENT, file, before)

    def watched_hook(name: str, moment: str) -> Callable[..., Any]:
        hook = getattr(method_class(method), name)

        def watched(*arguments: Any) -> Any:
            come(moment)
            return hook(*arguments)

        return watched

    patch.object(Path, "replace", watched_replace).start()
    patch.object(Path, "unlink", watched_unlink).start()
    patch.object(EventLog, "write", watched_write).start()
    for name, moment in HOOKS.items():
        patch.object(method_class(method), name, watched_hook(name, moment)).start()


def _facts_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _digest(value: Any) -> str:
    if isinstance(value, np.ndarray):
        head, data = f"{value.dtype} {value.shape}", value.tobytes()
    else:
        head, data = "", json.dumps(value).encode()
    return hashlib.sha256(head.encode() + data).hexdigest()
