"""A folder of images: CLASS/image.jpg or STEP/CLASS/image.jpg, below train/ and test/ if these are there."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from dietcl.streams.filesystem import Place
from dietcl.streams.holdout import check_share, holdout
from dietcl.streams.manifest_builder import NOT_AN_IMAGE, Preparation
from dietcl.streams.quarantine import QUARANTINE

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
        tops = rows.place.folders()
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
            is_ours = path.startswith("manifest.") or path == QUARANTINE
            if is_ours or any(part.startswith(".") for part in (*folders, image)):
                continue
            if not _is_text(path):
                rows.problem(path.encode(errors="backslashreplace").decode(), None, "the name is not UTF-8")
                continue
            if PurePosixPath(image).suffix.lower() not in SUFFIXES:
                # Places list links to folders as files, since they do not follow them.
                is_link = rows.place.is_local and os.path.isdir(rows.place.path(path))
                fault = "a link to a folder is not followed" if is_link else NOT_AN_IMAGE
                rows.problem(path, None, fault)
                continue
            split = SPLITS.get(folders.pop(0), "") if has_splits and folders else "train"
            if not split:
                rows.problem(path, None, "neither in train/ nor in test/")
                continue
            time = steps.get(folders.pop(0)) if steps and len(folders) > 1 else None
            yield path, "/".join(folders) or None, time, split


def _steps(place: Place, tops: list[str]) -> dict[str, int]:
    """Number the folders of time steps, by number where they have one; none if images lie right in class folders."""
    names: set[str] = set()
    for top in tops:
        for name in _contents(place, top)[0]:
            folders, has_images = _contents(place, f"{top}/{name}".strip("/"))
            if has_images or not folders:
                return {}  # mostly the first one says so, and no other is listed
            names.add(name)
    return {name: number for number, name in enumerate(sorted(names, key=_natural))}


def _contents(place: Place, under: str) -> tuple[list[str], bool]:
    """Return the folders right below a folder that will be read, and whether images lie there, too."""
    if place.is_local:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in place._entries(under)]
    else:
        path = place.path(under) if under else place.root
        listed = {entry["name"].strip("/"): entry["type"] for entry in place._ask("ls", path, detail=True)}
        listed.pop(path.partition("://")[2].strip("/"), None)  # some stores keep an empty object for a folder
        found = [(name.rpartition("/")[2], kind == "directory") for name, kind in listed.items()]
    # Hidden ones are not read; the one in which a manifest is being made is hidden, too.
    found = [(name, is_folder) for name, is_folder in found if not name.startswith(".") and _is_text(name)]
    images = (not is_folder and PurePosixPath(name).suffix.lower() in SUFFIXES for name, is_folder in found)
    return sorted(name for name, is_folder in found if is_folder), any(images)


def _is_text(name: str) -> bool:
    """Tell whether a name can be written in UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _natural(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts if part]
