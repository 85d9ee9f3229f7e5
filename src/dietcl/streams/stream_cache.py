"""Cache of streams: one cut from a large manifest is kept beside its index, and mapped the next time."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.streams.index import Index, create_npy, keep_folder
from dietcl.streams.options import Recipe
from dietcl.streams.stream import Stream, TestStep, TimeStep, build_stream, identify

LARGE = 1_000_000  # rows; a smaller stream is cut anew in a second or two
MOST = 4  # streams kept of one manifest: each takes about as much room as 12 bytes a row
_FORMAT = 3


def cached_stream(name: str, index: Index, recipe: Recipe, seed: int) -> Stream:
    """Return the stream that a manifest, a recipe and a seed make; a large one is kept."""
    if index.folder is None or len(index) < LARGE:
        return build_stream(name, index, recipe, seed)
    folder = index.folder / "streams" / f"{_FORMAT}-{identify(index, recipe, seed)}"
    if stream := _load(folder, name, len(index)):
        return stream
    stream = build_stream(name, index, recipe, seed)
    with suppress(OSError):  # a folder that may not be written to, a full disk, or another process was faster
        keep_folder(folder, partial(_write, stream), lambda kept: _load(kept, name, len(index)) is not None, MOST - 1)
    return _load(folder, name, len(index)) or stream


def _write(stream: Stream, folder: Path) -> None:
    columns: dict[str, list[npt.NDArray[np.int64]]] = {
        "labeled": [step.labeled for step in stream.steps],
        "labels": [step.labels for step in stream.steps],
        "unlabeled": [step.unlabeled for step in stream.steps],
        "unplaced": [step.unplaced for step in stream.steps],
        "test_rows": [test.rows for test in stream.tests],
        "test_labels": [test.labels for test in stream.tests],
    }
    for name, parts in columns.items():
        with create_npy(folder / f"{name}.npy", "<i8", sum(map(len, parts))) as file:
            for part in parts:
                file.write(part.astype("<i8", copy=False).data)
    np.save(folder / "index_row.npy", stream.index_row)
    facts: dict[str, Any] = {name: getattr(stream, name) for name in ("identity", "seed", "classes", "times")}
    facts["sizes"] = {name: [len(part) for part in parts] for name, parts in columns.items()}
    facts["steps"] = [
        {name: getattr(step, name) for name in ("t", "seen_classes", "new_classes", "by_class")}
        for step in stream.steps
    ]
    (folder / "stream.json").write_text(json.dumps(facts))


def _load(folder: Path, name: str, count: int) -> Stream | None:
    """Map a kept stream, or return None if it is missing or incomplete."""
    try:
        facts = json.loads((folder / "stream.json").read_text())
        parts = {column: _split(folder / f"{column}.npy", sizes) for column, sizes in facts["sizes"].items()}
        rows = zip(*(parts[name] for name in ("labeled", "labels", "unlabeled", "unplaced")), strict=True)
        steps = tuple(
            TimeStep(
                *(step["t"], labeled, labels, unlabeled, step["seen_classes"], tuple(step["new_classes"])),
                by_class=step["by_class"],
                unplaced=unplaced,
            )
            for step, (labeled, labels, unlabeled, unplaced) in zip(facts["steps"], rows, strict=True)
        )
        test_columns = zip(facts["steps"], parts["test_rows"], parts["test_labels"], strict=True)
        tests = tuple(TestStep(step["t"], test_rows, labels) for step, test_rows, labels in test_columns)
        (index_row,) = _split(folder / "index_row.npy", [count])
        times = tuple(span and (span[0], span[1]) for span in facts["times"])
        return Stream(name, facts["identity"], facts["seed"], steps, tests, tuple(facts["classes"]), index_row, times)
    except (OSError, EOFError, ValueError, TypeError, LookupError):
        return None


def _split(path: Path, sizes: list[int]) -> list[npt.NDArray[Any]]:
    values = np.load(path, mmap_mode="r").view(np.ndarray)
    if len(values) != sum(sizes):
        raise ValueError(f"{path}: incomplete")
    return np.split(values, np.cumsum(sizes)[:-1])
