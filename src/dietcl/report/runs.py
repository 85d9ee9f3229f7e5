"""Reads a run folder into one frozen object; what is missing is None or empty, what is broken is named."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from dietcl.budget.budget import Budget
from dietcl.config import stream_title
from dietcl.errors import UserError
from dietcl.metrics import Counts, Floats, Summary
from dietcl.report import run_files
from dietcl.report.confusion import ClassRow, Confusion
from dietcl.report.run_files import Receipts, Samples


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run folder as read."""

    path: Path
    finished: bool
    config: dict[str, Any]
    environment: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    counts: dict[str, Counts | Floats]  # correct, count and loss_sum, each [T, T], as counts.npz has them
    summary: Summary
    receipts: Receipts | None
    samples: Samples
    class_counts: Confusion | None  # None: a run of an earlier version, or one that has measured nothing yet

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a run folder."""
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; name a run folder, as `dietcl train` writes them.")
        config = run_files.read_object(path / "config.json")
        if config is None or "method" not in config:
            lack = "it holds no config.json" if config is None else "its config.json names no method"
            raise UserError(f"{path}: not a run folder, {lack}; name one that `dietcl train` wrote.")
        counts, summary = run_files.read_counts(path / "counts.npz")
        events = run_files.read_events(path / "events.jsonl")
        known = [event.get("classes") for event in events if event["event"] == "step_begin"][: summary.learned]
        return cls(
            path=path,
            finished=(path / "finished").is_file(),
            config=config,
            environment=run_files.read_object(path / "environment.json") or {},
            events=events,
            counts=counts,
            summary=summary,
            receipts=run_files.read_receipts(path / "receipts.json"),
            samples=run_files.read_samples(path / "samples.npz"),
            class_counts=run_files.read_confusion(path / "confusion.npz", known[-1] if known else None),
        )

    @property
    def accuracy(self) -> float:
        """Share of the seen test images that the model classifies correctly at the end; nan before any was tested."""
        return self.summary.final_pooled

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the revealed classes by class number."""
        return self.confusion().classes

    def by_class(self) -> list[ClassRow]:
        """Return right, total and accuracy at the end for every class that has test images, the worst first."""
        return self.confusion().by_class()

    def confusion(self) -> Confusion:
        """Return the counts of the seen test images by true and predicted class at the end."""
        if self.class_counts is None:
            why = "as it has tested nothing yet or was made by an earlier version"
            raise UserError(f"{self.path}: holds no counts by class, {why}; finish or repeat the run")
        return self.class_counts

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def stream(self) -> str:
        """The name of a built-in stream, of a manifest's file or of its folder."""
        return stream_title(str(self.config.get("stream", "?")))

    @property
    def budget(self) -> str:
        """The budget of one time step with its unit."""
        text = str(self.config.get("budget", "?"))
        try:
            budget = Budget.parse(text)
        except UserError:
            return text
        noun = " update" if budget.amount == 1 else " updates"
        return f"{budget}{noun if budget.unit == 'updates' else ''}"

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def due(self) -> int:
        """Number of time steps that the run was to learn."""
        steps = self.summary.time_steps
        return min(steps, self.config.get("first_time_steps") or steps)

    @property
    def stopped(self) -> str | None:
        """Why the run ended before it had learned all that it was to learn, or None when it did not."""
        if self.finished or (self.due and self.summary.learned >= self.due):
            return None
        reasons = [str(event["reason"]) for event in self.of("stopped")]
        return reasons[-1] if reasons else "it was interrupted or is still under way"

    @property
    def realized_rate(self) -> float | None:
        """Share of the images that came so far whose label was revealed, or None before any came."""
        begun = [event for event in self.of("step_begin") if {"labeled", "unlabeled"} <= event.keys()]
        labeled = sum(event["labeled"] for event in begun)
        arrived = labeled + sum(event["unlabeled"] for event in begun)
        return labeled / arrived if arrived else None

    @cached_property
    def seconds(self) -> float:
        """Seconds of all time steps, as far as they were recorded."""
        return float(sum(event.get("seconds") or 0 for event in self.of("step_end")))

    def total(self, field: str) -> float:
        """Return the sum of a field that is recorded at the end of every time step; nan if it never was."""
        values = [event[field] for event in self.of("step_end") if field in event]
        return float(sum(values)) if values else math.nan

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind in their order."""
        return [event for event in self.events if event["event"] == kind]


def find_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the run folders among some paths and one level below them, each once, and the paths that lead to none."""
    found: dict[Path, Path] = {}
    others = []
    for path in paths:
        is_parent = path.is_dir() and not (path / "config.json").is_file()
        # The folder of a pre-training has a config.json as well, but no method.
        candidates = sorted(path.iterdir()) if is_parent else [path]
        runs = [run for run in candidates if "method" in (run_files.read_object(run / "config.json") or {})]
        for run in runs:
            found.setdefault(run.resolve(), run)
        if not runs:
            others.append(path)
    return list(found.values()), others


def read_runs(paths: Sequence[Path]) -> tuple[RunRecord, ...]:
    """Read run folders in their order, each once."""
    if not paths:
        raise UserError("There is no run to report on; name at least one run folder, as `dietcl train` writes them.")
    return tuple(RunRecord.read(path) for path in dict.fromkeys(path.resolve() for path in paths))
