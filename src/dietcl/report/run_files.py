"""Reads the files of a run folder; what is missing is None or empty, what is broken is named."""

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.budget.receipts import Item
from dietcl.errors import UserError
from dietcl.metrics import Counts, Floats, Summary, summarize
from dietcl.report.confusion import Confusion, Examples, Images

# The fields that an event of each kind must have.
_NEEDED = {
    "step_begin": "t",
    "update": "t loss spent",
    "curve": "t update accuracy",
    "step_end": "t",
    "stopped": "reason",
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
    """All receipts of a run, with those of the search account separate."""

    unit: str
    steps: tuple[Receipt, ...]
    search: tuple[Item, ...]

    @property
    def passes(self) -> float:
        """Passes spent on the stream, the search account left out."""
        return sum(item.passes for step in self.steps for item in step.items)

    @property
    def features_read(self) -> int:
        """Images whose features came from the cache; they were charged for as if they had been computed."""
        return sum(item.images for step in self.steps for item in step.items if item.operation == "read")


@dataclass(frozen=True, eq=False)
class Samples(Examples):
    """Test images of several time steps, mistakes, and images that the decoder reconstructed; each may be empty."""

    t: tuple[int, ...]
    mistakes: Examples
    triples: dict[str, Images]  # original, masked and reconstructed


def _broken(path: Path, what: str) -> UserError:
    return UserError(f"{path}: {what}; repeat the run or leave it out of the report.")


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _broken(path, f"not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise _broken(path, "not a JSON object")
    return value


def read_events(path: Path) -> tuple[dict[str, Any], ...]:
    """Read the events."""
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
        if lacking := [key for key in _NEEDED.get(event["event"], "").split() if key not in event]:
            raise _broken(path, f"line {number} ({event['event']}) lacks {', '.join(lacking)}")
        events.append(event)
    return tuple(events)


def _read_arrays(path: Path, *required: str) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _broken(path, f"not a readable .npz file ({error})") from error
    if lacking := [name for name in required if name not in arrays]:
        raise _broken(path, f"the array '{lacking[0]}' is missing")
    return arrays


def read_counts(path: Path) -> tuple[dict[str, Counts | Floats], Summary]:
    """Read the counts by time step and compute every figure from them."""
    names = ("correct", "count", "loss_sum")
    arrays = _read_arrays(path, *names) or dict.fromkeys(names, np.zeros((0, 0), np.int64))
    try:
        return arrays, summarize(*(arrays[name] for name in names))
    except ValueError as error:
        raise _broken(path, str(error)) from error


def read_confusion(path: Path, known: int | None = None) -> Confusion | None:
    """Read the counts by true and predicted class of a model that knows this many classes, or all of them."""
    names = ("classes", "truth", "predicted", "count")
    arrays = _read_arrays(path, *names)
    if not arrays:
        return None
    classes, *cells = (arrays[name] for name in names)
    if len({values.shape for values in cells}) > 1 or any(values.dtype != np.int64 for values in cells):
        raise _broken(path, '"truth", "predicted" and "count" are not int64 arrays of one length')
    numbers = np.concatenate(cells[:2])
    if ((numbers < -1) | (numbers >= len(classes))).any():
        raise _broken(path, f"a class number is none of the {len(classes)} classes")
    return Confusion(tuple(map(str, classes.tolist())), *cells, unknown=0 if known is None else len(classes) - known)


def read_receipts(path: Path) -> Receipts | None:
    """Read the receipts."""
    value = read_object(path)
    if value is None:
        return None
    try:
        steps = [
            Receipt(int(s["t"]), float(s["budget"]), float(s["spent"]), float(s["unused"]), _items(s["items"]))
            for s in value["steps"]
        ]
        return Receipts(str(value["unit"]), tuple(steps), _items(value.get("search", [])))
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"not the receipts of a run ({type(error).__name__}: {error})") from error


def _items(values: list[dict[str, Any]]) -> tuple[Item, ...]:
    return tuple(
        Item(v["purpose"], v["operation"], int(v["images"]), float(v["passes"]), float(v["flops"])) for v in values
    )


def read_samples(path: Path) -> Samples:
    """Read the sample images; without the file there are none."""
    arrays = _read_arrays(path)

    def images(name: str) -> Images:
        array = arrays.get(name, np.zeros((0, 1, 1, 3), np.uint8))
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
            raise _broken(path, f'"{name}" is {array.dtype}{list(array.shape)} and not uint8[n, H, W, 3]')
        return array

    def column(name: str, count: int) -> list[Any]:
        values: list[Any] = arrays.get(name, np.zeros(0)).tolist()
        if len(values) != count:
            raise _broken(path, f'"{name}" has {len(values)} entries for {count} images')
        return values

    def examples(prefix: str) -> Examples:
        pictures = images(f"{prefix}images")
        names = (tuple(map(str, column(prefix + name, len(pictures)))) for name in ("label", "predicted"))
        return Examples(pictures, *names)

    tested, mistakes = examples(""), examples("mistake_")
    triples = {"original": images("originals"), "masked": images("masked"), "reconstructed": images("reconstructed")}
    if len({pictures.shape for pictures in triples.values()}) > 1:
        raise _broken(path, '"originals", "masked" and "reconstructed" differ in shape')
    t = tuple(map(int, column("t", len(tested.images))))
    return Samples(**vars(tested), t=t, mistakes=mistakes, triples=triples)
