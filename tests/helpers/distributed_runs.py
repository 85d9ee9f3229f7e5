"""Real processes that learn one run together, in the places that torchrun would give them."""

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

import dietcl.run
from dietcl.cli.main import main
from dietcl.config import RunConfig
from dietcl.engine import phases
from dietcl.engine.distributed import join, leave
from dietcl.errors import Stopped, UserError
from dietcl.execution import Execution
from dietcl.run import execute
from dietcl.streams.loader import Loader
from helpers.tiny import AMPLE, tiny_config

MICRO_BATCHES = 4
# Forked from a process that has imported torch and done nothing else, which saves each of them four seconds.
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dietcl.cli.run_progress"])


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@dataclass(frozen=True)
class Child:
    """A process and the file that it prints to."""

    process: BaseProcess
    log: Path

    def end(self, timeout: float) -> str:
        """Wait for its end and return what it printed."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running after {timeout} s:\n{self.log.read_text()}"
        return self.log.read_text()


def launch(size: int, work: Callable[..., None], *arguments: Any) -> list[Child]:
    """Start so many processes, each in its place among them."""
    logs = Path(tempfile.mkdtemp())
    shared = {**os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = []
    for rank in range(size):
        place = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        log = logs / str(rank)
        log.touch()
        process = _CONTEXT.Process(target=_begin, args=(place, log, work, arguments), daemon=True)
        process.start()
        children.append(Child(process, log))
    return children


def _begin(environment: Mapping[str, str], log: Path, work: Callable[..., None], arguments: Sequence[Any]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    work(*arguments)


def together(size: int, manifest: Path, tasks: Sequence[dict[str, Any]]) -> list[str]:
    """Carry out runs one after the other in so many processes; returns what each process printed."""
    children = launch(size, carry_out, manifest, tasks)
    try:
        said = [child.end(240) for child in children]
    finally:
        for child in children:
            child.process.kill()
    assert all(child.process.exitcode == 0 for child in children), "\n".join(said)
    return said


def config_of(manifest: Path, task: Mapping[str, Any]) -> RunConfig:
    """Return a task's configuration: its updates have four micro-batches of six images, or more and smaller ones."""
    method, micro = task["method"], task.get("micro", 6)
    budget = task.get("budget", AMPLE.get(method, "2"))
    config = tiny_config(manifest, method, budget=budget, **task.get("options", {}))
    return replace(
        config,
        training=replace(config.training, batch=6 * MICRO_BATCHES, micro_batch=micro),
        evaluation=replace(config.evaluation, curves=task.get("curves", 0)),
    )


def carry_out(manifest: Path, tasks: Sequence[dict[str, Any]]) -> None:
    """Carry out runs, and write down which rows this process drew and which micro-batches it read."""
    world = join("cpu")
    for task in tasks:
        folder = Path(task["folder"])
        drawn: list[Any] = []
        loaded: list[Any] = []
        watch(drawn)
        watch_loader(loaded)
        world.was_asked = world._is_agreed = False
        try:
            execute(
                config_of(manifest, task),
                folder,
                Execution(device="cpu", bad_images=1.0, stop_after=task.get("stop_after")),
                notify=print,
                world=world,
            )
        except Stopped:
            print("stopped")
        (folder.parent / f"{folder.name}.rows-{world.rank}.json").write_text(json.dumps([drawn, loaded]))
    leave(world)


def watch(drawn: list[Any]) -> None:
    """Write down the row numbers of every micro-batch that is used."""
    make_batch = getattr(phases, "unwatched", phases.make_batch)
    phases.unwatched = make_batch

    def watched(draws: Any, images: Any, classes: Any, augmentation: Any, key: Any) -> Any:
        drawn.append([list(key), [[draw.pool, draw.rows.tolist()] for draw in draws]])
        return make_batch(draws, images, classes, augmentation, key)

    phases.make_batch = watched


def watch_loader(loaded: list[Any]) -> None:
    """Write down the key of every micro-batch whose images are read."""
    load = getattr(Loader, "unwatched", Loader._load)
    Loader.unwatched = load

    def watched(self: Loader, draws: Any, ahead: Any) -> Any:
        loaded.extend(list(draw.key) for draw in draws)
        return load(self, draws, ahead)

    Loader._load = watched


def command_line(*arguments: str) -> None:
    """Carry out a command."""
    raise SystemExit(main([*arguments]))


def die_once(folder: str, mode: str, *arguments: str) -> None:
    """Carry out a command, but let one process die in its second time step, unless one has died before."""
    advance, died = dietcl.run.advance, Path(folder, "died")

    def dies(learner: Any) -> Any:
        for number, moment in enumerate(advance(learner)):
            yield moment
            if learner.world.rank == (mode != "refuse") and number == 11 and not died.exists():
                died.touch()
                if mode == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise UserError("the disk is full") if mode == "refuse" else ZeroDivisionError("of its own mind")

    dietcl.run.advance = dies
    command_line(*arguments)


if __name__ == "__main__":
    die_once(*sys.argv[1:])
