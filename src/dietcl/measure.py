"""Measures a model on the labeled images of a manifest, by class."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dietcl.errors import UserError
from dietcl.model import Model
from dietcl.report.confusion import Confusion, Examples
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import SPLITS
from dietcl.streams.storage import Storage

Split = Literal["auto", "train", "test", "all"]
_NOUNS = {"train": "training image", "test": "test image"}
_MISTAKES, _EXAMPLES = 12, 4  # how many of the most frequent mistakes are shown, and how many images of each
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class Measurement:
    """How a model classifies the images of a manifest."""

    confusion: Confusion
    examples: Examples
    """Images of the most frequent mistakes."""
    unreadable: tuple[str, ...]


def measure(
    model: Model, manifest: Path, split: Split = "auto", progress: Callable[[int, int], None] = lambda done, total: None
) -> Measurement:
    """Classify the labeled images of a manifest: of its test split, or all of them if that has no label."""
    index = open_manifest(manifest)
    rows, kind = _rows(index, manifest, split)
    storage = Storage(index, model.image_size, bad_share=1.0, resizing=model.resizing)
    if model.lookup is not None:
        model.lookup.open(storage.reader)
    predicted = np.full(len(rows), -1, np.int64)
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        predicted[part] = model.stored_scores(storage, rows[part]).argmax(1).cpu().numpy()
        progress(min(start + _CHUNK, len(rows)), len(rows))
    model.keep_features()
    good = ~np.isin(rows, list(storage.bad))
    if not good.any():
        why = f"none of its {len(rows)} labeled images can be read"
        raise UserError(f"{manifest}: {why}; `dietcl data check` lists why")
    rows, predicted = rows[good], predicted[good]
    codes, places = np.unique(index.label[rows], return_inverse=True)
    numbers = {name: number for number, name in enumerate(model.classes)}
    # Classes that the model does not know follow under their own names.
    truth = np.array([numbers.setdefault(index.classes[code], len(numbers)) for code in codes], np.int64)[places]
    cells, count = np.unique(np.stack([truth, predicted]), axis=1, return_counts=True)
    unknown, noun = len(numbers) - len(model.classes), _NOUNS.get(kind, "image")
    confusion = Confusion(tuple(numbers), cells[0], cells[1], count, unknown=unknown, noun=noun)
    unreadable = tuple(storage.describe(row) for row in storage.bad)
    chosen: list[tuple[int, str, str]] = []
    for mistake in confusion.mistakes(_MISTAKES):
        is_one = (truth == numbers[mistake.truth]) & (predicted == numbers[mistake.predicted])
        chosen += [(row, mistake.truth, mistake.predicted) for row in rows[is_one][:_EXAMPLES].tolist()]
    images = storage.read(np.array([row for row, _, _ in chosen], np.int64)).permute(0, 2, 3, 1).numpy()
    examples = Examples(images, tuple(label for _, label, _ in chosen), tuple(answer for _, _, answer in chosen))
    return Measurement(confusion, examples, unreadable)


def _rows(index: Index, manifest: Path, split: Split) -> tuple[npt.NDArray[np.int64], Split]:
    """Return the rows that have a label, of the split that is asked for, and which that is."""
    has_label = index.label >= 0
    chosen = "test" if split == "auto" and (has_label & (index.split == SPLITS.index("test"))).any() else split
    if chosen in SPLITS:
        has_label = has_label & (index.split == SPLITS.index(chosen))
    rows = np.flatnonzero(has_label)
    if not len(rows):
        where = "" if chosen in ("auto", "all") else f" in the split {chosen}"
        raise UserError(f"{manifest}: no image{where} has a label, so there is nothing to measure; label some")
    return rows, chosen
