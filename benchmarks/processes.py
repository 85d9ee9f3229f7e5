"""Two processes with a thread each against one process with two threads: the same run, learned together.

The two take turns, and the median of the ratios counts. Time spent on starting and on evaluation is left out.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from benchmarks.figure import Figure

SIZES = {
    "micro": ["--batch", "64", "--micro-batch", "16", "--budget", "20", "--first-time-steps", "3"],
    "small": [
        *("--preset", "small", "--weights", "random", "--batch", "32", "--micro-batch", "8", "--budget", "3"),
        *("--first-time-steps", "1"),
    ],
}
METHODS = {"micro": ("dietcl", "er"), "small": ("dietcl",)}
TOLERANCE = 1e-3  # of the test loss: threads round otherwise, and AdamW makes steps of what is only rounding


def run(quick: bool) -> list[Figure]:
    """Measure throughput and what comes out, at both sizes."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for size, options in list(SIZES.items())[: 1 if quick else None]:
            for method in METHODS[size][: 1 if quick else None]:
                figures += _compare(size, method, options, Path(folder), rounds=1 if quick else 5)
    return figures


def _compare(size: str, method: str, options: list[str], folder: Path, rounds: int) -> list[Figure]:
    ratios = []
    for number in range(rounds):
        place = folder / f"{size}-{method}-{number}"
        one = _images_per_second(1, 2, method, options, place / "threads")
        two = _images_per_second(2, 1, method, options, place / "processes")
        ratios.append(two / one)
    _images_per_second(1, 1, method, options, place / "alone")
    title = f"{size}, {method}"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {rounds} rounds"
    single, processes = (load_file(place / name / "model.safetensors") for name in ("alone", "processes"))
    weights = max(float(np.abs(single[name] - processes[name]).max(initial=0)) for name in single)
    losses = [np.load(place / name / "counts.npz")["loss_sum"].sum() for name in ("threads", "processes")]
    return [
        Figure(
            f"{title}: 2 processes / 1 process with 2 threads ({spread})", statistics.median(ratios), "x", at_least=0.9
        ),
        Figure(f"{title}: largest difference of a weight from 1 process with 1 thread", weights, "", at_most=0.0),
        Figure(
            f"{title}: difference of the test loss from 1 process with 2 threads",
            float(abs(losses[1] - losses[0]) / losses[0]),
            "of it",
            at_most=TOLERANCE,
        ),
    ]


def _images_per_second(processes: int, threads: int, method: str, options: list[str], out: Path) -> float:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    arguments = ["train", "--stream", "glyphs", "--method", method, *options, "--test-images", "50"]
    where = ["--threads", str(threads), "--device", "cpu", "--out", str(out), "--json"]
    command = [sys.executable, *launcher, "-m", "dietcl", *arguments, *where]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    ends = [event for event in events if event["event"] == "step_end"]
    batch = json.loads((out / "config.json").read_text())["training"]["batch"]
    return float(batch * sum(end["updates"] for end in ends) / sum(end["seconds"] for end in ends))
