"""Real processes that learn one run together, started as torchrun starts them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dietcl.config import RunConfig
from dietcl.streams.loader import Loader
from tiny import AMPLE, tiny_config

MICRO_BATCHES = 4


def config_of(manifest: Path, task: Mapping[str, Any]) -> RunConfig:
    """Return a task's configuration: its updates have four micro-batches of six images, or so many smaller ones."""
    method, micro = task["method"], task.get("micro", 6)
    budget = task.get("budget", AMPLE.get(method, "2"))
    config = tiny_config(manifest, method, budget=budget, **task.get("options", {}))
    return replace(
        config,
        training=replace(config.training, batch=6 * MICRO_BATCHES, micro_batch=micro),
        evaluation=replace(config.evaluation, curves=task.get("curves", 0)),
    )


def launch(size: int, command: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Start so many processes of a command, each in its place."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {
        "WORLD_SIZE": f"{size}",
        "LOCAL_WORLD_SIZE": f"{size}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **places, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def together(size: int, manifest: Path, tasks: Sequence[dict[str, Any]]) -> list[str]:
    """Carry out runs one after the other in so many processes; returns what each process printed."""
    children = launch(size, [sys.executable, __file__, str(manifest), json.dumps(list(tasks))])
    said = []
    try:
        for child in children:
            said.append(child.communicate(timeout=240)[0])
    finally:
        for child in children:
            child.kill()
    assert all(child.returncode == 0 for child in children), "\n".join(said)
    return said


def _main(manifest: Path, tasks: list[dict[str, Any]]) -> None:
    import torch

    from dietcl.engine import stretches
    from dietcl.engine.world import join, leave
    from dietcl.errors import Stopped
    from dietcl.run import execute
    from dietcl.stopping import Saving

    torch.set_num_threads(1)
    world = join("cpu")
    for task in tasks:
        folder = Path(task["folder"])
        drawn: list[Any] = []
        loaded: list[Any] = []
        watch(stretches, drawn)
        watch_loader(loaded)
        config = config_of(manifest, task)
        saving = Saving(stop_after=task.get("stop_after"), every=task.get("every", 100))
        world.was_asked = world._is_agreed = False
        try:
            execute(
                config,
                folder,
                device="cpu",
                progress=lambda t, share: None,
                say=print,
                bad_share=1.0,
                saving=saving,
                world=world,
            )
        except Stopped:
            print("stopped")
        (folder.parent / f"{folder.name}.rows-{world.rank}.json").write_text(json.dumps([drawn, loaded]))
    leave(world)


def watch(stretches: Any, drawn: list[Any]) -> None:
    """Write down the row numbers of every micro-batch that is used."""
    make_batch = getattr(stretches, "unwatched", stretches.make_batch)
    stretches.unwatched = make_batch

    def watched(draws: Any, images: Any, classes: Any, augmentation: Any, key: Any) -> Any:
        drawn.append([list(key), [[draw.pool, draw.rows.tolist()] for draw in draws]])
        return make_batch(draws, images, classes, augmentation, key)

    stretches.make_batch = watched


def watch_loader(loaded: list[Any]) -> None:
    """Write down the key of every micro-batch whose images are read."""
    load = getattr(Loader, "unwatched", Loader._load)
    Loader.unwatched = load

    def watched(self: Loader, draws: Any, ahead: Any) -> Any:
        loaded.extend(list(draw.key) for draw in draws)
        return load(self, draws, ahead)

    Loader._load = watched


if __name__ == "__main__":
    _main(Path(sys.argv[1]), json.loads(sys.argv[2]))
