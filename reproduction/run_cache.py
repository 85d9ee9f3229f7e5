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

from dietcl import NotFinite, Run, RunConfig, UserError, open_stream, solved_head_accuracy, train_config
from dietcl.clusters import WorkPool
from dietcl.errors import reason
from dietcl.files import write_bytes
from dietcl.metrics import Summary, summarize
from reproduction.controls import known_controls
from reproduction.oracle import telling_oracle

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


class RunCache:
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
    cells: Sequence[Cell], store: RunCache, scratch: Path, pool: WorkPool, report: Callable[[float, int], None]
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
    for outcome in pool(work, waiting, progress=lambda number, t: advance(number, t / _length(waiting[number]))):
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
    folder = folder_of(cell, scratch)
    try:
        with known_controls(), telling_oracle(cell.config):
            run = train_config(
                cell.config,
                folder,
                progress=lambda t, share: report(max(0, t - 1) + share),
                device=_device(cell.config),
            )
        measured = _measured(cell.config, run)
    except NotFinite as stop:
        measured = {**{name: [[0]] for name in _MATRICES}, "facts": {}, "failure": str(stop)}
    shutil.rmtree(folder)
    return {"key": cell.key, "hash": cell.hash, **measured}


def _device(config: RunConfig) -> str:
    """Return the CPU for encoders of our own, which are small enough for it."""
    return "cpu" if config.weights == "shipped" else "auto"


def _measured(config: RunConfig, run: Run) -> dict[str, Any]:
    """Return counts and facts of a finished run."""
    assert run.receipts is not None
    cut = {**vars(config.recipe), "seed": config.seed, "first_time_steps": config.first_time_steps}
    stream = open_stream(config.stream, **cut)
    flops: dict[str, float] = {}
    for item in (item for step in run.receipts.steps for item in step.items):
        if item.flops:  # evaluation is free
            flops[item.purpose] = flops.get(item.purpose, 0) + item.flops
    facts: dict[str, Any] = {
        "stream": stream.identity,
        "labels_per_step": stream.labels / len(stream.steps),
        "labels": stream.labels,
        # By the rate, not by the images, as committed counts have it to the last digit.
        "arriving_per_step": stream.labels / len(stream.steps) / max(stream.realized_rate, 1e-9),
        "flops": flops,
        "updates": sum(event["updates"] for event in run.of("step_end")),
        "state_bytes": run.of("step_end")[-1]["state_bytes"],
    }
    if config.model.train != "head":  # else the encoder is what it was, at the cost of all its features
        learned = replace(config, weights=str(run.path / "model.safetensors"))
        facts["ridge"] = solved_head_accuracy(learned, device=_device(config))
    if guessed := [event for event in run.of("step_end") if "guesses" in event]:
        facts["guesses"] = [[event["guesses"], event.get("guesses_right", 0)] for event in guessed]
        known = [event.get("guesses_known", event["guesses"]) for event in guessed]  # runs of before do not say
        if known != [event["guesses"] for event in guessed]:
            facts["guesses_known"] = known
    if curve := run.of("curve"):
        facts["curve"] = [{name: event[name] for name in ("t", "update", "loss", "accuracy")} for event in curve]
    return {**{name: _rows(run.counts[name], decimals) for name, decimals in _MATRICES.items()}, "facts": facts}


def _rows(matrix: npt.NDArray[Any], decimals: int) -> list[list[float]]:
    """Return the rows of a matrix up to the time step after their own; later ones are not measured."""
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
