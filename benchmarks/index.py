"""A manifest of 39 million rows (CLOC's size): becoming a stream, opening again, and drawing from it."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figure import Figure

ROWS, QUICK_ROWS = 39_000_000, 2_000_000
CLASSES = 713
T = 20
BATCH = 2**20

# Each measurement has a process of its own, so that the peak of one does not hide that of another.
_CHILD = "import sys; from benchmarks import index; index.measure(sys.argv[1], sys.argv[2])"


def run(quick: bool) -> list[Figure]:
    """Generate the manifest, then measure in fresh processes."""
    rows = QUICK_ROWS if quick else ROWS
    with tempfile.TemporaryDirectory() as folder:
        path = generate(Path(folder) / "manifest.parquet", rows)
        first, again = (_child("first", path), _child("again", path))
    share = rows / ROWS
    return [
        Figure(f"{rows:,} rows become a stream of {T} time steps", first["seconds"], "s", at_most=60 * share),
        Figure("peak memory of that", first["peak"], "MB", at_most=2000),
        Figure("opening the stream again", again["seconds"], "s", at_most=1),
        Figure("drawing 1,024 row numbers from three pools at the last time step", again["draw"], "ms", at_most=5),
        Figure(
            f"the same over torch's shuffle of 1,000 ({again['memory']:,} remembered, {again['new']:,} new)",
            again["draw"] / again["shuffle"],
            "x",
            at_most=1,
        ),
    ]


def generate(path: Path, rows: int) -> Path:
    """Write a manifest with times that grow, about a hundredth of it for tests."""
    from dietcl.streams.manifest import Facts, Writer

    generator = np.random.default_rng(0)
    names = pa.array([f"{code:03d}" for code in range(CLASSES)])
    with Writer(path, Facts(recipe="time", time_steps=T, label_rate=0.005)) as writer:
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            numbers = pa.array(np.arange(start, start + count)).cast(pa.string())
            folders = pa.array([f"{i % 4096:03x}" for i in range(count)])
            writer.write(
                {
                    "id": numbers,
                    "file": pa.compute.binary_join_element_wise(folders, numbers, ".jpg", "/"),
                    "offset": np.full(count, -1),
                    "label": names.take(pa.array((CLASSES * generator.random(count) ** 2).astype(np.int64))),
                    "time": 1.1e9 + np.arange(start, start + count) // 3 * 7.0,
                    "split": np.where(generator.random(count) < 0.01, "test", "train"),
                }
            )
    return path


def measure(what: str, path: str) -> None:
    """Build or open the stream, and print what it took as JSON."""
    started = time.perf_counter()
    from dietcl.streams.index import open_manifest
    from dietcl.streams.manifest import read_facts
    from dietcl.streams.options import Recipe
    from dietcl.streams.stream_cache import cached_stream

    facts = read_facts(Path(path))
    recipe = Recipe(recipe="time", time_steps=facts.time_steps, label_rate=facts.label_rate)
    stream = cached_stream("cloc", open_manifest(Path(path)), recipe, 0)
    found: dict[str, float] = {"seconds": time.perf_counter() - started}
    if what == "again":
        found |= _draws(stream)
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def _draws(stream) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Return the milliseconds of a mixed draw, and of torch's own shuffle of 1,000."""
    from torch.utils.data import BatchSampler, RandomSampler

    from dietcl.streams.options import Mix
    from dietcl.streams.sampler import pools_of, sample

    mix = Mix(labeled=1 / 3, unlabeled=1 / 3, memory=1 / 3)
    pools = pools_of(stream, T, mix)
    counts = mix.counts(1024, pools)
    shuffle = BatchSampler(RandomSampler(range(1000)), 1000, drop_last=False)
    draws, shuffles = [], []
    for number in range(200):
        started = time.perf_counter()
        sample(pools, counts, (0, T, 0, number, 0))
        drawn = time.perf_counter()
        list(shuffle)
        draws.append(drawn - started)
        shuffles.append(time.perf_counter() - drawn)
    facts = {"memory": len(pools["memory"].rows), "new": len(pools["unlabeled"].rows)}
    return facts | {"draw": 1e3 * float(np.median(draws)), "shuffle": 1e3 * float(np.median(shuffles))}


def _child(what: str, path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _CHILD, what, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
