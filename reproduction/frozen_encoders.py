"""What a frozen encoder is worth: a solved head on `nano` and on `lite`, from few labels, in one time step.

python -m reproduction.frozen_encoders --data packs/

Counts go to results/frozen-encoders.jsonl as runs end; what is there is not run again. The table is written beside it.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from dietcl import RunConfig, build_config, open_stream, train_config, weights_identity
from dietcl.files import write_bytes
from reproduction.datasets import dataset_named, manifest_of

# Share of the labels that is revealed: five a class where classes are of one size.
LABEL_RATES = {"cifar100": 0.01, "glyphs": 0.05, "fruits360": 0.02, "yearbook": 0.01}
ENCODERS = ("nano", "lite")
SEEDS = (0, 1, 2, 3, 4)
COUNTS, TABLE = "frozen-encoders.jsonl", "frozen-encoders.md"


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.frozen_encoders", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds the packs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the counts and the table")
    parser.add_argument("--threads", type=int, help="CPU threads (all cores by default)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / COUNTS
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    done = {(line["dataset"], line["encoder"], line["seed"]) for line in lines}
    for name, encoder in product(LABEL_RATES, ENCODERS):
        for seed in [seed for seed in SEEDS if (name, encoder, seed) not in done]:
            line = _run(name, encoder, seed, options.data, options.threads)
            lines.append(line)
            write_bytes(path, "".join(json.dumps(entry) + "\n" for entry in lines).encode())
            print(f"{name}, {encoder}, seed {seed}: {line['correct'] / line['count']:.1%}", flush=True)
    write_bytes(options.out / TABLE, "\n".join(_table(lines)).encode())


def _run(name: str, encoder: str, seed: int, data: Path | None, threads: int | None) -> dict[str, Any]:
    """Solve a head on all revealed labels, and count the test images, all of them, that it classifies rightly."""
    manifest = manifest_of(name, data)
    cut: dict[str, Any] = {"recipe": "data", "time_steps": 1, "label_rate": LABEL_RATES[name], "seed": seed}
    config = build_config(manifest, "linear_probe", encoder, scale="each", **cut)
    with tempfile.TemporaryDirectory() as folder:
        run = train_config(config, Path(folder) / "run", device="cpu", threads=threads)
        correct, count = (int(run.counts[part].sum()) for part in ("correct", "count"))
    facts = {"dataset": name, "encoder": encoder, "seed": seed, "labels": open_stream(manifest, **cut).labels}
    return {**facts, "correct": correct, "count": count, "hash": _hash(config, name)}


def _hash(config: RunConfig, name: str) -> str:
    """Return an identifier of what was run, the same on every machine."""
    return replace(config, stream=name, source=None, weights=weights_identity(config)).hash()


def _table(lines: list[dict[str, Any]]) -> Iterator[str]:
    yield "# A solved head on a frozen encoder\n"
    yield "`python -m reproduction.frozen_encoders --data packs/`\n"
    yield "Accuracy in % on all test images after one time step: mean and standard deviation of five seeds, which"
    yield "choose the labels.\n"
    yield "| stream | labels | test images | " + " | ".join(ENCODERS) + " |"
    yield "|---|---:|---:|" + "---:|" * len(ENCODERS)
    for name in LABEL_RATES:
        of_name = [line for line in lines if line["dataset"] == name]
        cells = []
        for encoder in ENCODERS:
            shares = [100 * line["correct"] / line["count"] for line in of_name if line["encoder"] == encoder]
            cells.append(f"{statistics.mean(shares):.1f} ± {statistics.stdev(shares):.1f}" if len(shares) > 1 else "–")
        labels, tests = (sorted({line[part] for line in of_name}) for part in ("labels", "count"))
        title = dataset_named(name).title
        yield f"| {title} | {_span(labels)} | {_span(tests)} | {' | '.join(cells)} |"
    yield ""


def _span(values: list[int]) -> str:
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


if __name__ == "__main__":
    main()
