"""CLEAR-10 and CLEAR-100 in their newer release: photos of the same classes over ten years, in buckets of time.

The layout is the one that Avalanche reads: ContinualAI/avalanche, commit eb075be393e1f458b2c352514ff6c17b5a2c0f4e,
avalanche/benchmarks/datasets/clear/clear.py, lines 148-166. There every bucket is read, bucket 0 as well if it has
labels; the benchmark's authors mean it for pre-training (features `moco_b0`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.recipes import MOST_TIME_STEPS
from dietcl.streams.shards import is_hostile

_METADATA, _NAMES = "labeled_metadata.json", "class_names.txt"
_SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class Clear:
    """CLEAR-10 or CLEAR-100: train/ and test/, each with a labeled_metadata.json; time is the bucket's number."""

    name: ClassVar[str] = "clear"
    recipe: ClassVar[Literal["class", "time", "data"]] = "time"
    time_steps: ClassVar[int] = 10
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    with_bucket_0: bool = False
    """Let the stream begin with bucket 0, if it is there, which is meant for pre-training."""

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Look for the list of the training images."""
        return not name and place.has(f"train/{_METADATA}")

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every image that the lists of both splits name."""
        lists = {split: list(self._lists(split, rows)) for split in _SPLITS}
        buckets = sorted({bucket for found in lists.values() for bucket, _, _ in found})
        consecutive = bool(buckets) and buckets[-1] - buckets[0] == len(buckets) - 1
        steps = min(max(1, len(buckets)), MOST_TIME_STEPS)
        rows.suggest(recipe="time", time_steps=steps, cut="duration" if consecutive else "count")
        for split, found in lists.items():
            for bucket in buckets:
                images = [
                    (path, label)
                    for number, label, file in found
                    if number == bucket
                    for path in _images(split, file, rows)
                ]
                if images:
                    paths, labels = map(list, zip(*images, strict=True))
                    rows.refer(paths, label=labels, time=[bucket] * len(paths), split=split)

    def _lists(self, split: str, rows: Preparation) -> Iterator[tuple[int, str, str]]:
        """Yield bucket, class and file of every list of a split."""
        file, names = f"{split}/{_METADATA}", f"{split}/{_NAMES}"
        classes = None
        if rows.place.has(names):
            with rows.place.text(names) as lines:
                classes = {line.strip() for line in lines}
        for bucket, paths in _mapping(file, rows).items():
            if not (bucket.isascii() and bucket.isdigit() and len(bucket) < 10):
                rows.problem(file, None, f"the bucket has no number: {bucket[:40]!r}")
            elif not isinstance(paths, dict):
                rows.problem(file, None, f"the bucket has no classes: {bucket}")
            elif int(bucket) == 0 and not self.with_bucket_0:
                rows.problem(file, None, "bucket 0 is left out: it is meant for pre-training; --with-bucket-0 reads it")
            else:
                for label, path in paths.items():
                    if classes is not None and label not in classes:
                        rows.problem(file, None, f"the class is not in {names}: {label[:40]!r}")
                    elif fault := _fault(label) or _fault(path):
                        rows.problem(file, None, f"{fault}: list of {label!r} in bucket {bucket}")
                    else:
                        yield int(bucket), label, f"{split}/{path}"


def _images(split: str, file: str, rows: Preparation) -> Iterator[str]:
    for row, entry in enumerate(_mapping(file, rows).values()):
        path = entry.get("IMG_PATH") if isinstance(entry, dict) else None
        if fault := _fault(path):
            rows.problem(file, row, fault)
        else:
            yield f"{split}/{path}"


def _mapping(file: str, rows: Preparation) -> dict[str, Any]:
    """Return the mapping in a JSON file; what is none goes to the quarantine and is empty."""
    try:
        if rows.place.leads_outside(file):
            raise UserError("a link leads outside the folder")
        with rows.place.text(file) as stream:
            found = json.load(stream)
    except (UserError, OSError, ValueError, RecursionError) as error:
        rows.problem(file, None, f"cannot be read ({error})")
        return {}
    if isinstance(found, dict):
        return found
    rows.problem(file, None, f"not a JSON mapping (it is {type(found).__name__})")
    return {}


def _fault(path: Any) -> str:
    if not isinstance(path, str) or not path:
        return "there is no path"
    if not path.isprintable():  # half of a surrogate pair, for one, which no file name can have
        return "the path is not text"
    return "the path leads outside the folder" if is_hostile(path) else ""
