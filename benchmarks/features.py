"""The cache of features: a second run against the first, reading against computing, and what the cache itself costs."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import dietcl
from benchmarks.figure import Figure
from benchmarks.photos import write_photos
from dietcl.config import RunConfig
from dietcl.config_builder import build_config
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.option_search import NullRecorder
from dietcl.run import stream_of
from dietcl.streams.augment import plain_images
from dietcl.streams.feature_lookup import CACHE_SIZE

PHOTOS, QUICK_PHOTOS, ROUNDS = 2000, 400, 3
BATCH = 64
FASTER, READING, ADDED = 20, 1 / 200, 0.03


def run(quick: bool) -> list[Figure]:
    """Learn the same photos twice with an empty cache at the start, and time batches with and without the cache."""
    count, rounds = (QUICK_PHOTOS, 1) if quick else (PHOTOS, ROUNDS)
    with tempfile.TemporaryDirectory() as name:
        photos = write_photos(Path(name) / "photos", count)
        manifest = dietcl.prepare(photos)
        figures = _runs(manifest, Path(name), rounds, count)
        return figures + _batches(manifest, Path(name), count)


def _runs(manifest: Path, folder: Path, rounds: int, count: int) -> list[Figure]:
    """Time whole runs; fixed costs weigh more on few photos, so the bar is for many."""
    figures = []
    for method in ("ncm", "linear_probe"):
        firsts: list[float] = []
        seconds: list[float] = []
        for number in range(rounds):
            config = build_config(manifest, method, recipe="data", time_steps=1)
            with _cache(folder / f"cache-{method}-{number}"):
                for times, name in ((firsts, "first"), (seconds, "second")):
                    started = time.perf_counter()
                    dietcl.train_config(config, folder / f"{method}-{number}-{name}", device="cpu")
                    times.append(time.perf_counter() - started)
        ratio = statistics.median(first / second for first, second in zip(firsts, seconds, strict=True))
        bar = FASTER if count == PHOTOS else None
        figures += [
            Figure(f"{method}, first run of {count} photos", statistics.median(firsts), "s"),
            Figure(f"{method}, second run", statistics.median(seconds), "s"),
            Figure(f"{method}, second run faster than the first", ratio, "x", at_least=bar),
        ]
    return figures


def _batches(manifest: Path, folder: Path, count: int) -> list[Figure]:
    """Time batches in turn: computed and kept, computed alone, and read again; in processor time of all threads."""
    config = build_config(manifest, "ncm", recipe="data", time_steps=1)
    with _cache(folder / "cache-batches"):
        keeping, alone = _learner(config, CACHE_SIZE), _learner(config, 0)
        rows = np.concatenate([step.labeled for step in keeping.stream.steps])
        parts = np.array_split(rows, max(1, len(rows) // BATCH))
        _features(alone, parts[0])  # warms up
        kept: list[float] = []
        computed: list[float] = []
        for number, part in enumerate(parts[1:]):
            works: list[tuple[list[float], Callable[[], None]]] = [
                (kept, lambda part=part: _features(keeping, part)),  # type: ignore[misc]
                (computed, lambda part=part: _features(alone, part)),  # type: ignore[misc]
            ]
            for times, work in works if number % 2 else reversed(works):
                times.append(_processor_seconds(work) / len(part))
        keeping.loader.keep_features()
        again = _learner(config, CACHE_SIZE)
        read = [_processor_seconds(lambda part=part: _features(again, part)) / len(part) for part in parts[1:]]  # type: ignore[misc]
    added = statistics.median(one / other for one, other in zip(kept, computed, strict=True)) - 1
    fast, slow = statistics.median(read), statistics.median(computed)
    return [
        Figure("lite, computing the features of a photo", 1e3 * slow, "ms"),
        Figure("reading them from the cache", 1e3 * fast, "ms"),
        Figure("reading over computing", fast / slow, "x", at_most=READING),
        Figure("what the cache adds to computing", added, "share", at_most=ADDED),
    ]


def _learner(config: RunConfig, cache_size: int) -> Learner:
    stream, index = stream_of(config)
    return assemble(config, stream, replace(Equipment(index), cache_size=cache_size), NullRecorder())


def _features(learner: Learner, rows: np.ndarray) -> None:
    with torch.no_grad(), learner.ledger.free():
        learner.net.features(plain_images(learner.loader.plain(rows)), "features")


def _processor_seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Use an empty cache folder."""
    before = os.environ.get("DIETCL_CACHE")
    os.environ["DIETCL_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["DIETCL_CACHE"]
        else:
            os.environ["DIETCL_CACHE"] = before
