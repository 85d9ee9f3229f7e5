"""Reads a run folder into one frozen object; what is missing is None or empty, what is broken is named."""

import json
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.budget.accounts import Item
from dietcl.budget.budget import Budget
from dietcl.config import stream_title
from dietcl.errors import UserError
from dietcl.metrics import Summary, summarize

Images = npt.NDArray[np.uint8]  # [n, H, W, 3]

_NEEDED = {
    "step_begin": ("t",),
    "update": ("t", "loss", "spent"),
    "curve": ("t", "update", "accuracy"),
    "step_end": ("t",),
    "stopped": ("reason",),
}


@dataclass(frozen=True)
class Receipt:
    """What one time step was given and what it spent, in the unit of the receipts."""

    t: int
    budget: float
    spent: float
    unused: float
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Receipts:
    """All receipts of a run, with the search account apart."""

    accounting: str
    unit: str
    steps: tuple[Receipt, ...]
    search: tuple[Item, ...]

    @property
    def passes(self) -> float:
        """Passes spent on the stream, the search account left out."""
        return sum(item.passes for step in self.steps for item in step.items)


@dataclass(frozen=True, eq=False)
class Samples:
    """Test images with their predictions, and what the decoder made of masked images; each part may be empty."""

    images: Images
    label: tuple[str, ...]
    predicted: tuple[str, ...]
    t: tuple[int, ...]
    originals: Images
    masked: Images
    reconstructed: Images


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder as read."""

    path: Path
    finished: bool
    config: dict[str, Any]
    environment: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    summary: Summary
    receipts: Receipts | None
    samples: Samples | None

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
        if budget.unit != "updates":
            return str(budget)
        return f"{budget} update{'' if budget.amount == 1 else 's'}"

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def due(self) -> int:
        """How many time steps the run was to learn."""
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
        """Seconds of all time steps, as far as the events tell."""
        return float(sum(event.get("seconds") or 0 for event in self.of("step_end")))

    def total(self, field: str) -> float:
        """Return the sum of what every time step says of itself at its end; nan if none says it."""
        told = [event[field] for event in self.of("step_end") if field in event]
        return float(sum(told)) if told else math.nan

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind in their order."""
        return [event for event in self.events if event["event"] == kind]


def find_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the run folders among some paths and one level below them, each once, and the paths that lead to none."""
    found: dict[Path, Path] = {}
    others = []
    for path in paths:
        runs = _runs_at(path)
        found |= {run.resolve(): run for run in runs if run.resolve() not in found}
        if not runs:
            others.append(path)
    return list(found.values()), others


def read_runs(paths: Sequence[Path]) -> tuple[Run, ...]:
    """Read run folders in their order, each once."""
    if not paths:
        raise UserError("There is no run to report on; name at least one run folder, as `dietcl train` writes them.")
    return tuple(read_run(path) for path in dict.fromkeys(Path(path).resolve() for path in paths))


def read_run(path: Path) -> Run:
    """Read one run folder."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; name a run folder, as `dietcl train` writes them.")
    config = _read_object(path / "config.json")
    if config is None or "method" not in config:
        lack = "it holds no config.json" if config is None else "its config.json names no method"
        raise UserError(f"{path}: not a run folder, {lack}; name one that `dietcl train` wrote.")
    return Run(
        path=path,
        finished=(path / "finished").is_file(),
        config=config,
        environment=_read_object(path / "environment.json") or {},
        events=_read_events(path / "events.jsonl"),
        summary=_read_summary(path / "counts.npz"),
        receipts=_read_receipts(path / "receipts.json"),
        samples=_read_samples(path / "samples.npz"),
    )


def _runs_at(path: Path) -> list[Path]:
    if path.is_dir() and not (path / "config.json").is_file():
        return [folder for folder in sorted(path.iterdir()) if _is_run(folder)]
    return [path] if _is_run(path) else []


def _is_run(folder: Path) -> bool:
    """Tell a run from any other folder; that of a pre-training has a config.json as well."""
    return "method" in (_read_object(folder / "config.json") or {})


def _broken(path: Path, what: str) -> UserError:
    return UserError(f"{path}: {what}; repeat the run or leave it out of the report.")


def _read_object(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _broken(path, f"not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise _broken(path, "not a JSON object")
    return value


def _read_events(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.is_file():
        return ()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
        except ValueError as error:
            if number == len(lines) and not line.endswith("\n"):
                break  # the process died while it wrote this line
            raise _broken(path, f"line {number} is not valid JSON ({error})") from error
        if not isinstance(event, dict) or "event" not in event:
            raise _broken(path, f'line {number} is not an object with a field "event"')
        if lacking := [key for key in _NEEDED.get(event["event"], ()) if key not in event]:
            raise _broken(path, f"line {number} ({event['event']}) lacks {', '.join(lacking)}")
        events.append(event)
    return tuple(events)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _broken(path, f"not a readable .npz file ({error})") from error


def _read_summary(path: Path) -> Summary:
    arrays = _read_arrays(path)
    if not path.is_file():
        nothing = np.zeros((0, 0), dtype=np.int64)
        return summarize(nothing, nothing, nothing)
    try:
        return summarize(arrays["correct"], arrays["count"], arrays["loss_sum"])
    except KeyError as error:
        raise _broken(path, f"the array {error} is missing") from error
    except ValueError as error:
        raise _broken(path, str(error)) from error


def _read_receipts(path: Path) -> Receipts | None:
    value = _read_object(path)
    if value is None:
        return None
    try:
        steps = (
            Receipt(int(s["t"]), float(s["budget"]), float(s["spent"]), float(s["unused"]), _items(s["items"]))
            for s in value["steps"]
        )
        return Receipts(str(value["accounting"]), str(value["unit"]), tuple(steps), _items(value.get("search", [])))
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"not the receipts of a run ({type(error).__name__}: {error})") from error


def _items(values: list[dict[str, Any]]) -> tuple[Item, ...]:
    return tuple(
        Item(str(v["purpose"]), str(v["operation"]), int(v["images"]), float(v["passes"]), float(v["flops"]))
        for v in values
    )


def _read_samples(path: Path) -> Samples | None:
    arrays = _read_arrays(path)
    if not arrays:
        return None

    def images(name: str) -> Images:
        array = arrays.get(name, np.zeros((0, 1, 1, 3), dtype=np.uint8))
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
            raise _broken(path, f'"{name}" is {array.dtype}{list(array.shape)} and not uint8[n, H, W, 3]')
        return array

    def column(name: str) -> list[Any]:
        values = list(arrays.get(name, np.zeros(0)).tolist())
        if len(values) != len(images("images")):
            raise _broken(path, f'"{name}" has {len(values)} entries for {len(images("images"))} images')
        return values

    originals, masked, reconstructed = images("originals"), images("masked"), images("reconstructed")
    if not originals.shape == masked.shape == reconstructed.shape:
        raise _broken(path, '"originals", "masked" and "reconstructed" differ in shape')
    return Samples(
        images=images("images"),
        label=tuple(map(str, column("label"))),
        predicted=tuple(map(str, column("predicted"))),
        t=tuple(map(int, column("t"))),
        originals=originals,
        masked=masked,
        reconstructed=reconstructed,
    )
