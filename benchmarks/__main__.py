"""Run a benchmark: one line per figure with its bar, a JSON file, exit code 1 when a bar is missed."""

import argparse
import importlib
import json
import os
import platform
from pathlib import Path

from benchmarks.figure import Figure

NAMES = (
    *(
        "adapters",
        "features",
        "formats",
        "growth",
        "index",
        "ledger",
        "loader",
        "predict",
        "processes",
        "resume",
        "saving",
        "startup",
        "walk",
    ),
)


def main() -> int:
    """Run the named benchmark and judge its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="a smaller run that takes under two minutes")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the JSON file")
    options = parser.parse_args()
    figures: list[Figure] = importlib.import_module(f"benchmarks.{options.name}").run(options.quick)
    for figure in figures:
        print(figure)
    options.out.mkdir(parents=True, exist_ok=True)
    command = f"python -m benchmarks {options.name}{' --quick' if options.quick else ''}"
    facts = {"command": command, "machine": platform.machine(), "cores": os.cpu_count()}
    entries = [{**vars(figure), "met": figure.met} for figure in figures]
    path = options.out / f"{options.name}{'-quick' if options.quick else ''}.json"
    path.write_text(json.dumps({**facts, "figures": entries}, indent=1) + "\n")
    print(f"written to {path}")
    return 0 if all(figure.met for figure in figures) else 1


raise SystemExit(main())
