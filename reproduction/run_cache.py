"""Cells: runs of an experiment, carried out in parallel, skipped when done, kept as integer counts in JSON."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.clusters import Carrier
from dietcl.config import RunConfig
from dietcl.errors import NotFinite, UserError, reason
from dietcl.files import write_bytes
from dietcl.metrics import Summary, summarize
from dietcl.models.presets import OWN_PATCHES

_MATRICES = {"correct": 0, "count": 0, "loss_sum": 1}  # and the decimals that are kept


@dataclass(frozen=True)
class Cell:
    """One run of an experiment under a key of its own, such as `er as er/S 100/B 80/rate 0.01/T 20/seed 0`."""

    key: str
    config: RunConfig
    hash: str
    """Of what decides the result, wherever its files lie."""


@dataclass(frozen=True)
class Result:
    """What a cell measured; a run that diverged has a failure in the place of a summary that means anything."""

    key: str
    seed: int
    summary: Summary
    facts: dict[str, Any]
    failure: str | None = None
    is_pooled: bool = False
    """Whether A weighs test images alike, as the paper's does where time orders the stream, or time steps alike."""

    @property
    def final(self) -> float:
        """A(T): accuracy after the last time step."""
        return self.summary.final_pooled if self.is_pooled else self.summary.final_mean

    @property
    def average(self) -> float:
        """A: the mean of accuracy along the stream."""
        return self.summary.average_pooled if self.is_pooled else self.summary.average_mean

    @property
    def along(self) -> npt.NDArray[np.float64]:
        """A(t) for every time step."""
        return self.summary.accuracy_pooled if self.is_pooled else self.summary.accuracy_mean


class Store:
    """A JSONL file of finished cells, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stale: set[str] = set()
        """Keys that were asked for and are there under another configuration only."""
        self._lines: dict[str, dict[str, Any]] = {}
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({reason(error)}); make it readable") from None
        self.is_whole = not content or content.endswith(b"\n")
        """Otherwise its last line was torn, and that cell is run again."""
        for number, line in enumerate(content.splitlines()[: None if self.is_whole else -1], 1):
            try:
                entry = json.loads(line)
                self._lines[entry["key"]] = entry
            except (ValueError, TypeError, KeyError):
                raise self._damaged(f"line {number}") from None

    def __contains__(self, cell: Cell) -> bool:
        entry = self._lines.get(cell.key)
        is_same = entry is not None and entry.get("hash") == cell.hash
        if entry is not None and not is_same:
            self.stale.add(cell.key)
        return is_same

    def _damaged(self, line: str) -> UserError:
        return UserError(f"{self.path}: {line} is damaged; delete it, and run the suites that need it again")

    def add(self, entry: dict[str, Any]) -> None:
        """Keep a finished cell, in the place of one of the same key and another configuration."""
        is_new = self.is_whole and entry["key"] not in self._lines
        self._lines[entry["key"]] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if is_new:
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        else:
            write_bytes(self.path, "".join(json.dumps(line) + "\n" for line in self._lines.values()).encode())
            self.is_whole = True

    def result(self, cell: Cell) -> Result:
        """Return what a finished cell measured."""
        entry = self._lines[cell.key]
        is_pooled = cell.config.recipe.recipe == "time"
        try:
            summary, facts = summarize(*_matrices(entry)), dict(entry["facts"])
        except (ValueError, TypeError, KeyError):
            raise self._damaged(f"the line of {cell.key}") from None
        return Result(cell.key, cell.config.seed, summary, facts, entry.get("failure"), is_pooled)


def run_cells(
    cells: Sequence[Cell], store: Store, scratch: Path, carry: Carrier, report: Callable[[float, int], None]
) -> None:
    """Run what is not done yet, and report how many are, also in part; one that fails does not stop the others."""
    waiting = [cell for cell in cells if cell not in store]
    shares = [0.0] * len(waiting)
    failures = []

    def advance(number: int, share: float) -> None:
        shares[number] = share
        report(len(cells) - len(waiting) + sum(shares), len(cells))

    report(len(cells) - len(waiting), len(cells))
    work = partial(_run, scratch)
    for outcome in carry(work, waiting, progress=lambda number, t: advance(number, t / _length(waiting[number]))):
        if outcome.value is None:
            failures.append(_log(waiting[outcome.number], outcome.failure or "", scratch))
        else:
            store.add(outcome.value)
            advance(outcome.number, 1.0)
    if failures:
        raise UserError(f"{len(failures)} of {len(cells)} runs failed, the others are done; the first: {failures[0]}")


def folder_of(cell: Cell, scratch: Path) -> Path:
    """Return where a cell is run."""
    slug = re.sub(r"[^\w.]+", "-", cell.key)
    return scratch / f"{slug}-{cell.hash}"


def _length(cell: Cell) -> int:
    return cell.config.first_time_steps or cell.config.recipe.time_steps


def _log(cell: Cell, failure: str, scratch: Path) -> str:
    """Write down why a cell failed; returns that in a sentence."""
    log = folder_of(cell, scratch).with_suffix(".failed.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(failure, encoding="utf-8")
    return f"{cell.key}: {failure.strip().splitlines()[-1]} (log: {log})"


def _run(scratch: Path, cell: Cell, report: Callable[[float], None]) -> dict[str, Any]:
    """Carry out a run in a folder of its own, which is removed once its counts are known."""
    from dietcl.run import execute

    folder, failure = folder_of(cell, scratch), None
    device = _device(cell.config)
    try:
        execute(cell.config, folder, device=device, progress=lambda t, share: report(max(0, t - 1) + share))
    except NotFinite as stop:
        failure = str(stop)
    entry = {"key": cell.key, "hash": cell.hash, **_measured(cell.config, folder, failure)}
    shutil.rmtree(folder)
    return entry


def _device(config: RunConfig) -> str:
    """Return the CPU for sizes of our own, which are made for it."""
    return "cpu" if config.model.encoder in OWN_PATCHES else "auto"


def _measured(config: RunConfig, folder: Path, failure: str | None) -> dict[str, Any]:
    """Return counts and facts of a finished run; of one that diverged, that alone."""
    from dietcl.run import open_stream
    from dietcl.solved_head import ridge_accuracy

    if failure is not None:
        return {**{name: [[0]] for name in _MATRICES}, "facts": {}, "failure": failure}
    stream, _ = open_stream(config)
    labels = [len(step.labeled) for step in stream.steps]
    receipts = json.loads((folder / "receipts.json").read_text())
    flops: dict[str, float] = {}
    for step in receipts["steps"]:
        for item in step["items"]:
            if item["flops"]:  # evaluation is free
                flops[item["purpose"]] = flops.get(item["purpose"], 0) + item["flops"]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    curve = [{**event, "event": None} for event in events if event["event"] == "curve"]
    facts = {
        "stream": stream.identity,
        "labels_per_step": sum(labels) / len(labels),
        "labels": sum(labels),
        "arriving_per_step": sum(labels) / len(labels) / max(stream.realized_rate, 1e-9),
        "ridge": ridge_accuracy(replace(config, weights=str(folder / "weights.safetensors")), device=_device(config)),
        "flops": flops,
        "updates": sum(event["updates"] for event in events if event["event"] == "step_end"),
    }
    if curve:
        facts["curve"] = [{name: event[name] for name in ("t", "update", "loss", "accuracy")} for event in curve]
    with np.load(folder / "counts.npz") as counts:
        return {**{name: _rows(counts[name], decimals) for name, decimals in _MATRICES.items()}, "facts": facts}


def _rows(matrix: npt.NDArray[Any], decimals: int) -> list[list[float]]:
    """Return the rows of a matrix without what lies beyond the time step after their own, which nobody measures."""
    return [row[: t + 2].round(decimals).tolist() for t, row in enumerate(matrix)]


def _matrices(entry: dict[str, Any]) -> list[npt.NDArray[Any]]:
    """Return the matrices that `_rows` shortened."""
    found = []
    for name, decimals in _MATRICES.items():
        rows = entry[name]
        matrix = np.zeros((len(rows), len(rows)), np.float64 if decimals else np.int64)
        for t, row in enumerate(rows):
            matrix[t, : len(row)] = row
        found.append(matrix)
    return found
