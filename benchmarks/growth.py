"""Whether a stream that goes on and on costs more and more: memory and time per update after 5 and 200 time steps."""

import gc
import os
import statistics
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from benchmarks.figure import Figure
from dietcl import build_config
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.loop import learn
from dietcl.engine.option_search import NullRecorder
from dietcl.engine.resume_position import Position
from dietcl.run import stream_of
from dietcl.streams.manifest import write_manifest
from dietcl.streams.options import Packing
from dietcl.streams.packer import pack

EARLY, LATE, QUICK_LATE = 5, 200, 40
# What learns, and how its images are packed.
CASES: tuple[tuple[str, Literal["raw", "jpeg"]], ...] = (("dietcl", "raw"), ("er", "jpeg"))
IMAGES = 60  # a time step
CLASSES = 10
UPDATES = 4  # a time step


def run(quick: bool) -> list[Figure]:
    """Learn a long stream with each method; then time updates early and late in it, in turn."""
    torch.set_num_threads(1)
    late = QUICK_LATE if quick else LATE
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        manifest = _write(Path(folder) / "source", late)
        for method, form in CASES:
            packed = pack(manifest, Path(folder) / form, Packing(side=32, format=form)).manifest
            memory, times = _learn(packed, method, late, rounds=4 if quick else 30)
            name = f"{method}, {form}"
            figures += [
                Figure(f"{name}: memory after {EARLY} time steps", memory[EARLY], "MB"),
                Figure(f"{name}: growth until {late}", memory[late] - memory[EARLY], "MB", at_most=50),
                Figure(f"{name}: time per update at {late} over {EARLY}", times, "x", at_most=1.05),
            ]
    return figures


def _write(folder: Path, time_steps: int) -> Path:
    """Write noise with a class's own brightness."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    count = IMAGES * time_steps
    label = generator.integers(CLASSES, size=count)
    images = (
        generator.integers(0, 120, (count, 32, 32, 3), dtype=np.uint8)
        + (12 * label).astype(np.uint8)[:, None, None, None]
    )
    np.save(folder / "images.npy", images)
    columns = {
        "id": [str(row) for row in range(count)],
        "file": ["images.npy"] * count,
        "offset": np.arange(count),
        "label": [str(code) for code in label],
        "time": np.arange(count, dtype=float),
        "split": np.where(np.arange(count) % 20 == 0, "test", "train"),
    }
    return write_manifest(folder / "manifest.parquet", columns)


def _learn(manifest: Path, method: str, late: int, rounds: int) -> tuple[dict[int, float], float]:
    """Return the megabytes after some time steps, and the ratio of the time per update late and early."""
    learners: dict[int, Learner] = {}
    memory = {}
    for until in (EARLY, late):
        learners[until] = _assemble(manifest, method, late)
        for t in learn(learners[until]):
            if t in (EARLY, until) and until == late:
                gc.collect()
                memory[t] = _megabytes()
            if t == until:
                break
    seconds: dict[int, list[float]] = {EARLY: [], late: []}
    for _ in range(rounds):
        for t, learner in learners.items():
            learner.position = Position(finished=t - 1)
            next(learn(learner))
            assert isinstance(learner.recorder, _Watch)
            seconds[t].append(learner.recorder.seconds)
    return memory, statistics.median(seconds[late]) / statistics.median(seconds[EARLY])


def _assemble(manifest: Path, method: str, late: int) -> Learner:
    config = build_config(manifest, method, budget=UPDATES, recipe="time", time_steps=late, label_rate=0.2)
    stream, index = stream_of(config)
    return assemble(config, stream, Equipment(index), _Watch())


class _Watch(NullRecorder):
    """Keeps what a time step says of itself at its end, evaluation left out."""

    seconds = 0.0

    def event(self, event: str, **fields: object) -> None:
        """Take note of the seconds per update."""
        if event == "step_end":
            self.seconds = float(str(fields["seconds"])) / int(str(fields["updates"]))


def _megabytes() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
