"""What checkpoints cost beside learning: in complete runs at `micro` size, and composed of parts at `small` size."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import dietcl.run
from benchmarks.figure import Figure
from dietcl import build_config
from dietcl.engine.checkpoint_files import CHECKPOINTS, Checkpoints
from dietcl.engine.event_log import EventLog
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.optimizer import build_optimizer
from dietcl.engine.option_search import NullRecorder
from dietcl.engine.phases import backward
from dietcl.engine.state import save_state
from dietcl.execution import Execution
from dietcl.methods.base import Phase
from dietcl.run import execute, stream_of
from dietcl.streams.augment import make_batch
from dietcl.streams.loader import Images
from dietcl.streams.manifest import write_manifest
from dietcl.streams.sampler import pools_of, sample

# The last three keep more than the others.
METHODS: dict[str, dict[str, Any]] = {
    "dietcl": {},
    "er": {},
    "ewc": {},
    "ewc --online": {"online": True},
    "dualnet": {},
}
MOST = 2.0  # percent of a run
IMAGES = 12  # timed together at `small` size, where an update has 1,024


def run(quick: bool) -> list[Figure]:
    """Measure both sizes."""
    torch.set_num_threads(1)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for method in list(METHODS)[: 1 if quick else None]:
            figures += _micro(method, Path(folder), *((1, 3) if quick else (3, 10)))
        figures += _small(Path(folder), rounds=2 if quick else 7)
    return figures


def _micro(method: str, folder: Path, rounds: int, time_steps: int) -> list[Figure]:
    """Learn `glyphs` with all options as they are, and measure how much of the run is spent on saving."""
    config = build_config("glyphs", method.split()[0], first_time_steps=time_steps, **METHODS[method])
    shares, saves, size = [], [], 0.0
    for number in range(rounds):
        place = folder / method / str(number)
        with _timing(dietcl.run, "save_state") as saving, _timing(EventLog, "sync") as syncing:
            started = time.perf_counter()
            execute(config, place, Execution(device="cpu"))
            seconds = time.perf_counter() - started
        shares.append(100 * (sum(saving) + sum(syncing)) / seconds)
        saves += saving
        size = max(size, _newest(place / CHECKPOINTS))
    return [
        Figure(f"micro, {method}: saving, of a run on glyphs", statistics.median(shares), "%", at_most=MOST),
        Figure(f"micro, {method}: one checkpoint", 1000 * statistics.median(saves), "ms"),
        Figure(f"micro, {method}: last checkpoint", size, "MB"),
    ]


def _small(folder: Path, rounds: int) -> list[Figure]:
    """Time images that are learned and checkpoints in turn, and put a time step of the preset's budget together."""
    manifest = _write(folder / "noise")
    config = build_config(manifest, preset="small", weights="random", time_steps=1, label_rate=0.5)
    stream, index = stream_of(config)
    learner = assemble(config, stream, Equipment(index), NullRecorder())
    learn = _learning(learner)
    learn()  # the first time warms up
    optimizer = build_optimizer(learner.network, {}, config.training)
    optimizer.step()
    images, amid, end = [], [], []
    for _ in range(rounds):
        images.append(_seconds(learn) / IMAGES)
        learner.optimizers = {"": optimizer}
        amid.append(
            _seconds(lambda: save_state(learner, Checkpoints(folder / "amid", Execution.keep_checkpoints), event_log=0))
        )
        learner.optimizers = {}  # as at the end of a time step, when no phase is under way
        end.append(
            _seconds(lambda: save_state(learner, Checkpoints(folder / "end", Execution.keep_checkpoints), event_log=0))
        )
    updates, batch = int(config.budget), config.training.batch
    update = batch * statistics.median(images)
    # In updates; a checkpoint is due after a number of updates or of minutes, whichever comes first.
    between = min(Execution.checkpoint_every, math.ceil(60 * Execution.checkpoint_minutes / update))
    saving = updates // between * statistics.median(amid) + statistics.median(end)
    time_step = f"a time step of {updates} updates of {batch:,} images, composed of the parts below"
    return [
        Figure(f"small, dietcl: saving, of {time_step}", 100 * saving / (updates * update + saving), "%", at_most=MOST),
        Figure("small, dietcl: updates between checkpoints", between, "updates"),
        Figure("small, dietcl: one image learned", 1000 * statistics.median(images), "ms"),
        Figure("small, dietcl: one checkpoint with moments", 1000 * statistics.median(amid), "ms"),
        Figure("small, dietcl: one checkpoint with moments", _newest(folder / "amid"), "MB"),
        Figure("small, dietcl: one checkpoint without moments", 1000 * statistics.median(end), "ms"),
        Figure("small, dietcl: one checkpoint without moments", _newest(folder / "end"), "MB"),
    ]


def _learning(learner: Learner) -> Callable[[], Any]:
    """Return what learns a few images: forward and backward, without the update, which comes once in 1,024 images."""
    step = learner.stream.steps[0]
    learner.network.head.grow(step.seen_classes, torch.Generator())
    learner.ledger.open(step.t, step.seen_classes)
    phase = learner.method.next_phase(step, (), 1e9)
    assert isinstance(phase, Phase)
    pools = pools_of(learner.stream, step.t, phase.mix)
    draws = sample(pools, phase.mix.counts(IMAGES, pools), (0,))
    images: list[Images] = [learner.loader.read(draw.rows) for draw in draws]
    batch = make_batch(draws, images, torch.from_numpy(step.classes), learner.config.augmentation, (0,))
    return lambda: backward(learner, phase, batch, 1)


def _write(folder: Path) -> Path:
    """Write noise of 224 px."""
    folder.mkdir()
    count = 8 * IMAGES
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), dtype=np.uint8))
    columns = {
        "id": [str(row) for row in range(count)],
        "file": ["images.npy"] * count,
        "offset": np.arange(count),
        "label": [str(row % 4) for row in range(count)],
        "time": np.arange(count, dtype=float),
        "split": np.where(np.arange(count) % 8 < 7, "train", "test"),
    }
    return write_manifest(folder / "manifest.parquet", columns)


@contextmanager
def _timing(owner: Any, name: str) -> Iterator[list[float]]:
    """Collect the seconds of every call of a function."""
    work, seconds = getattr(owner, name), []

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = work(*arguments)
        seconds.append(time.perf_counter() - started)
        return result

    with patch.object(owner, name, timed):
        yield seconds


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _newest(folder: Path) -> float:
    """Return the megabytes of the newest checkpoint of a folder, with what seldom changes."""
    saved, _ = Checkpoints(folder, keep=1).load()
    assert saved is not None
    return sum(value.nbytes for value in (*saved.tensors.values(), *saved.rare.values())) / 1e6
