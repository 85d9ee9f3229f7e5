"""Kept streams: one cut from a large manifest is written down beside its index, and mapped the next time."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.files import scratch
from dietcl.streams.index import Index
from dietcl.streams.recipes import Recipe
from dietcl.streams.stream import Stream, TestStep, TimeStep, build_stream, identify

LARGE = 1_000_000  # rows; a smaller stream is cut anew in a second or two
MOST = 4  # streams kept of one manifest: each takes about as much room as 12 bytes a row
_FORMAT = 1
_ROWS = ("labeled", "labels", "unlabeled", "test_rows", "test_labels")


def open_stream(name: str, index: Index, recipe: Recipe, seed: int) -> Stream:
    """Return the stream that a manifest, a recipe and a seed make; a large one is kept."""
    if index.folder is None or len(index) < LARGE:
        return build_stream(name, index, recipe, seed)
    place = index.folder / "streams"
    folder = place / f"{_FORMAT}-{identify(index, recipe, seed)}"
    if stream := _load(folder, name, len(index)):
        return stream
    stream = build_stream(name, index, recipe, seed)
    with suppress(OSError):  # a folder that may not be written to, a full disk, or another process was faster
        _keep(stream, place, folder)
    return _load(folder, name, len(index)) or stream


def _keep(stream: Stream, place: Path, folder: Path) -> None:
    place.mkdir(exist_ok=True)
    with scratch(place) as partial:
        fresh = partial / "stream"
        fresh.mkdir()
        _write(stream, fresh)
        others = [path for path in place.iterdir() if not path.name.startswith(".")]
        for old in sorted(others, key=lambda path: path.stat().st_mtime)[: -(MOST - 1)]:
            shutil.rmtree(old, ignore_errors=True)
        if folder.exists() and _load(folder, stream.name, len(stream.index_row)) is None:
            shutil.rmtree(folder)
        fresh.rename(folder)


def _write(stream: Stream, folder: Path) -> None:
    columns: dict[str, list[npt.NDArray[np.int64]]] = {
        "labeled": [step.labeled for step in stream.steps],
        "labels": [step.labels for step in stream.steps],
        "unlabeled": [step.unlabeled for step in stream.steps],
        "test_rows": [test.rows for test in stream.tests],
        "test_labels": [test.labels for test in stream.tests],
    }
    for name, parts in columns.items():
        with (folder / f"{name}.npy").open("wb") as file:
            header = {"descr": "<i8", "fortran_order": False, "shape": (sum(map(len, parts)),)}
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                file.write(part.astype("<i8", copy=False).data)
    np.save(folder / "index_row.npy", stream.index_row)
    facts: dict[str, Any] = {
        "identity": stream.identity,
        "seed": stream.seed,
        "classes": stream.classes,
        "sizes": {name: [len(part) for part in parts] for name, parts in columns.items()},
        "steps": [
            {"t": step.t, "seen_classes": step.seen_classes, "new_classes": step.new_classes} for step in stream.steps
        ],
    }
    (folder / "stream.json").write_text(json.dumps(facts))


def _load(folder: Path, name: str, rows: int) -> Stream | None:
    """Map a kept stream, or return None if it is not there or not whole."""
    try:
        facts = json.loads((folder / "stream.json").read_text())
        parts = {column: _split(folder / f"{column}.npy", facts["sizes"][column]) for column in _ROWS}
        steps = [
            TimeStep(
                t=step["t"],
                labeled=parts["labeled"][i],
                labels=parts["labels"][i],
                unlabeled=parts["unlabeled"][i],
                seen_classes=step["seen_classes"],
                new_classes=tuple(step["new_classes"]),
            )
            for i, step in enumerate(facts["steps"])
        ]
        (index_row,) = _split(folder / "index_row.npy", [rows])
        pairs = zip(facts["steps"], parts["test_rows"], parts["test_labels"], strict=True)
        return Stream(
            name=name,
            identity=facts["identity"],
            seed=facts["seed"],
            steps=tuple(steps),
            tests=tuple(TestStep(step["t"], rows, labels) for step, rows, labels in pairs),
            classes=tuple(facts["classes"]),
            index_row=index_row,
        )
    except (OSError, EOFError, ValueError, TypeError, LookupError):
        return None


def _split(path: Path, sizes: list[int]) -> list[npt.NDArray[Any]]:
    whole: npt.NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    if len(whole) != sum(sizes):
        raise ValueError(f"{path}: not whole")
    return np.split(whole, np.cumsum(sizes)[:-1])
