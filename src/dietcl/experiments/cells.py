"""Cells: runs of an experiment, carried out in parallel, skipped when done, kept as integer counts in JSON."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dietcl.config import RunConfig
from dietcl.errors import UserError
from dietcl.metrics import Summary, summarize
from dietcl.parallel import in_processes


@dataclass(frozen=True)
class Cell:
    """One run of an experiment under a key of its own, such as `peak/ER uniform/40 updates/seed 100`."""

    key: str
    config: RunConfig


@dataclass(frozen=True)
class Result:
    """What a cell measured."""

    key: str
    summary: Summary
    facts: dict[str, Any]


class Store:
    """A JSONL file of finished cells, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, dict[str, Any]] = {}
        if path.is_file():
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # otherwise it was torn, and its cell is run again
                    entry = json.loads(line)
                    self._lines[entry["key"]] = entry

    def __contains__(self, cell: Cell) -> bool:
        return self._lines.get(cell.key, {}).get("hash") == cell.config.hash()

    def add(self, entry: dict[str, Any]) -> None:
        """Keep a finished cell, in the place of one of the same key and another configuration."""
        self._lines[entry["key"]] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in self._lines.values()))
        partial.replace(self.path)

    def result(self, cell: Cell) -> Result:
        """Return what a finished cell measured."""
        entry = self._lines[cell.key]
        counts = [np.array(entry[name]) for name in ("correct", "count", "loss_sum")]
        return Result(cell.key, summarize(*counts), entry["facts"])


def run_cells(cells: Sequence[Cell], store: Store, scratch: Path, jobs: int) -> Iterator[tuple[int, int]]:
    """Run what is not done yet, several at a time with one thread each; yields (done, all) as they finish."""
    waiting = [cell for cell in cells if cell not in store]
    yield len(cells) - len(waiting), len(cells)
    outcomes = in_processes(partial(_run, scratch), waiting, jobs)
    for number, outcome in enumerate(outcomes, start=1):
        if outcome.value is None:
            raise UserError(f"{waiting[outcome.number].key}: {outcome.failure}")
        store.add(outcome.value)
        yield len(cells) - len(waiting) + number, len(cells)


def _run(scratch: Path, cell: Cell, report: Callable[[float], None]) -> dict[str, Any]:
    from dietcl.experiments.ridge import ridge_accuracy
    from dietcl.run import execute, open_stream

    folder = scratch / re.sub(r"[^\w.]+", "-", cell.key)
    execute(cell.config, folder, device="cpu", progress=lambda t, fraction: None)
    stream, _ = open_stream(cell.config)
    labels = [len(step.labeled) for step in stream.steps]
    receipts = json.loads((folder / "receipts.json").read_text())
    with np.load(folder / "counts.npz") as counts:
        matrices = {name: counts[name].round(3).tolist() for name in ("correct", "count", "loss_sum")}
    facts = {
        "stream": stream.identity,
        "labels_per_step": sum(labels) / len(labels),
        "labels": sum(labels),
        "arriving_per_step": sum(labels) / len(labels) / max(stream.realized_rate, 1e-9),
        "ridge": ridge_accuracy(replace(cell.config, weights=str(folder / "weights.safetensors"))),
        "flops": sum(item["flops"] for step in receipts["steps"] for item in step["items"]),
    }
    return {"key": cell.key, "hash": cell.config.hash(), **matrices, "facts": facts}
