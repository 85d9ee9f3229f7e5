"""CLEAR-10 and CLEAR-100 in their newer release: photos of the same classes over ten years, in buckets of time.

The layout is the one that Avalanche reads: ContinualAI/avalanche, commit eb075be393e1f458b2c352514ff6c17b5a2c0f4e,
avalanche/benchmarks/datasets/clear/clear.py, lines 148-166. There every bucket is read, bucket 0 as well if it has
labels; the benchmark's authors mean it for pre-training (features `moco_b0`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.image_writer import is_hostile
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.options import MOST_TIME_STEPS
from dietcl.streams.sources.parsing.path_lists import columns, numbered_lines
from dietcl.streams.sources.reader import Reader

_METADATA, _NAMES = "labeled_metadata.json", "class_names.txt"
_SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class Clear(Reader):
    """CLEAR-10 or CLEAR-100: train/ and test/, each with a labeled_metadata.json; time is the bucket's number."""

    name = "clear"
    recipe = "time"
    time_steps = 10

    with_bucket_0: bool = False
    """Let the stream begin with bucket 0, if it is there, which is meant for pre-training."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Look for the list of the training images."""
        return not name and file_root.has(f"train/{_METADATA}")

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every image that the lists of both splits name."""
        lists = {split: list(self._lists(split, rows)) for split in _SPLITS}
        buckets = sorted({bucket for found in lists.values() for bucket, _, _ in found})
        is_consecutive = bool(buckets) and buckets[-1] - buckets[0] == len(buckets) - 1
        steps = min(max(1, len(buckets)), MOST_TIME_STEPS)
        rows.suggest(recipe="time", time_steps=steps, cut="duration" if is_consecutive else "count")
        for split, found in lists.items():
            for path, label, time in columns(_images(split, found, rows)):
                rows.refer(path, label=label, time=time, split=split)

    def _lists(self, split: str, rows: ManifestBuilder) -> Iterator[tuple[int, str, str]]:
        """Yield bucket, class and file of every list of a split."""
        file, names = f"{split}/{_METADATA}", f"{split}/{_NAMES}"
        classes = None
        if rows.file_root.has(names):
            classes = {line.strip() for _, line in numbered_lines(rows.file_root, names)}
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


def _images(split: str, lists: list[tuple[int, str, str]], rows: ManifestBuilder) -> Iterator[tuple[str, str, int]]:
    """Yield the path, class and bucket of every image in the lists of a split, bucket by bucket."""
    for bucket, label, file in sorted(lists, key=lambda found: found[0]):
        for row, entry in enumerate(_mapping(file, rows).values()):
            path = entry.get("IMG_PATH") if isinstance(entry, dict) else None
            if fault := _fault(path):
                rows.problem(file, row, fault)
            else:
                yield f"{split}/{path}", label, bucket


def _mapping(file: str, rows: ManifestBuilder) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty, with a problem in the quarantine, if there is none."""
    try:
        if rows.file_root.leads_outside(file):
            raise UserError("a link leads outside the folder")
        with rows.file_root.text(file) as stream:
            found = json.load(stream)
    except (UserError, OSError, ValueError, RecursionError) as error:
        rows.problem(file, None, f"cannot be read ({error})")
        return {}
    if not isinstance(found, dict):
        rows.problem(file, None, f"not a JSON mapping (it is {type(found).__name__})")
        return {}
    return found


def _fault(path: Any) -> str:
    if not isinstance(path, str) or not path:
        return "there is no path"
    if not path.isprintable():  # half of a surrogate pair, for one, which no file name can have
        return "the path is not text"
    return "the path leads outside the folder" if is_hostile(path) else ""
