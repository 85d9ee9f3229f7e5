"""A folder of images: CLASS/image.jpg or STEP/CLASS/image.jpg, below train/ and test/ if these are there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from dietcl.streams.place import Place
from dietcl.streams.preparation import Preparation
from dietcl.streams.sources.holdout import check_share, holdout

SUFFIXES = frozenset([".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"])
SPLITS = {"train": "train", "test": "test", "val": "test", "valid": "test", "validation": "test"}
_AT_ONCE = 100_000


@dataclass(frozen=True, kw_only=True)
class Folder:
    """CLASS/image.jpg or STEP/CLASS/image.jpg, below train/ and test/ (or val/) if these are there."""

    name: ClassVar[str] = "folder"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    test_share: float = 0.1
    """Share of the images that is kept for tests where there is no test folder; which ones depends on their paths."""

    def __post_init__(self) -> None:
        check_share(self.test_share)

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take any folder."""
        return not name

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every file that is an image by its name, class and time step by its folders."""
        tops = _folders(rows.place)
        has_splits = "train" in tops
        steps = _steps(rows.place, [top for top in tops if top in SPLITS] if has_splits else [""])
        if steps:
            rows.suggest(recipe="time", time_steps=len(steps), cut="duration")
        paths = rows.place.files()
        while part := list(islice(paths, _AT_ONCE)):
            found = list(self._entries(part, steps, has_splits, rows))
            if found:
                file, label, time, split = map(list, zip(*found, strict=True))
                rows.refer(file, label=label, time=time, split=split if has_splits else holdout(file, self.test_share))

    def _entries(
        self, paths: list[str], steps: dict[str, int], has_splits: bool, rows: Preparation
    ) -> Iterator[tuple[str, str | None, int | None, str]]:
        for path in paths:
            *folders, image = PurePosixPath(path).parts
            if any(part.startswith(".") for part in (*folders, image)) or path.startswith("manifest."):
                continue
            if not _is_text(path):
                rows.problem(path.encode(errors="backslashreplace").decode(), None, "the name is not UTF-8")
                continue
            if PurePosixPath(image).suffix.lower() not in SUFFIXES:
                rows.problem(path, None, "not an image by its name")
                continue
            split = SPLITS.get(folders.pop(0), "") if has_splits and folders else "train"
            if not split:
                rows.problem(path, None, "neither in train/ nor in test/")
                continue
            time = steps.get(folders.pop(0)) if steps and len(folders) > 1 else None
            yield path, "/".join(folders) or None, time, split


def _steps(place: Place, tops: list[str]) -> dict[str, int]:
    """Number the folders of time steps, by number where they have one; none if images lie right in class folders."""
    names = {name for top in tops for name in _folders(place, top)}
    deep = [f"{top}/{name}".strip("/") for top in tops for name in _folders(place, top)[:1]]
    if not deep or not all(_folders(place, folder) for folder in deep):
        return {}
    return {name: number for number, name in enumerate(sorted(names, key=_natural))}


def _folders(place: Place, under: str = "") -> list[str]:
    """Return the folders right below a folder that are not hidden, as the one is in which a manifest is being made."""
    return [name for name in place.folders(under) if not name.startswith(".") and _is_text(name)]


def _is_text(name: str) -> bool:
    """Tell whether a name can be written in UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _natural(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts if part]
