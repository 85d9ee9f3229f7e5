"""A folder of images: CLASS/image.jpg or STEP/CLASS/image.jpg, optionally below train/ and test/."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import NOT_AN_IMAGE, ManifestBuilder
from dietcl.streams.quarantine import QUARANTINE
from dietcl.streams.sources.parsing.path_lists import columns, inside, is_image, is_text
from dietcl.streams.sources.reader import GeneralReader

SPLITS = {"train": "train", "test": "test", "val": "test", "valid": "test", "validation": "test"}
LINK_NOT_FOLLOWED = "a symlink to a folder outside the root or in a cycle is not followed"


@dataclass(frozen=True, kw_only=True)
class Folder(GeneralReader):
    """CLASS/image.jpg or STEP/CLASS/image.jpg, optionally below train/ and test/ (or val/)."""

    name = "folder"

    order: str = ""
    """Time-step folders in order, separated by commas (by default in natural order: step2 before step10)."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept any folder."""
        return not name

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every file with an image's suffix; its folders give class and time step."""
        tops = rows.file_root.folders()
        has_splits = "train" in tops
        names = _step_names(rows.file_root, [top for top in tops if top in SPLITS] if has_splits else [""])
        steps = {name: number for number, name in enumerate(self._ordered(names, rows.file_root.root))}
        if not (has_splits and any(SPLITS.get(top) == "test" for top in tops)):
            rows.draw_tests(self.test_share)
        if steps:
            rows.suggest(recipe="time", time_steps=len(steps), cut="duration")
        for file, label, time, split in columns(_entries(steps, has_splits, rows)):
            rows.refer(file, label=label, time=time, split=split)

    def _ordered(self, names: set[str], root: str) -> list[str]:
        """Sort the time-step folders, by --order if it is given."""
        natural = sorted(names, key=_natural)
        if not self.order:
            return natural
        order = [name.strip() for name in self.order.split(",")]
        if set(order) != names or len(order) != len(names):
            found = ",".join(natural) or "none: images are directly in class folders"
            raise UserError(f"--order {self.order}: name each time-step folder of {root} once; found {found}")
        return order


def _entries(
    steps: dict[str, int], has_splits: bool, rows: ManifestBuilder
) -> Iterator[tuple[str, str | None, int | None, str]]:
    """Yield the path, class, time step and split of every image."""
    for path in rows.file_root.files():
        parts = PurePosixPath(path).parts
        if path.startswith("manifest.") or path == QUARANTINE or any(part.startswith(".") for part in parts):
            continue
        folders = list(parts[:-1])
        split = SPLITS.get(folders.pop(0)) if has_splits and folders else "train"
        if not is_text(path):
            rows.problem(path.encode(errors="backslashreplace").decode(), None, "the name is not UTF-8")
        elif not is_image(path):
            # A symlink to a folder that is not followed is listed as a file.
            is_link = rows.file_root.is_local and os.path.isdir(rows.file_root.path(path))
            rows.problem(path, None, LINK_NOT_FOLLOWED if is_link else NOT_AN_IMAGE)
        elif split is None:
            rows.problem(path, None, "neither in train/ nor in test/")
        else:
            time = steps.get(folders.pop(0)) if steps and len(folders) > 1 else None
            yield path, "/".join(folders) or None, time, split


def _step_names(file_root: FileRoot, tops: list[str]) -> set[str]:
    """Return the time-step folders; none if images are directly in class folders."""
    names: set[str] = set()
    for top in tops:
        for name in _contents(file_root, top)[0]:
            folders, has_images = _contents(file_root, inside(top, name))
            if has_images or not folders:
                return set()  # usually decided by the first folder, so no other is listed
            names.add(name)
    return names


def _contents(file_root: FileRoot, under: str) -> tuple[list[str], bool]:
    """Return the folders in a folder, and whether it holds images as well."""
    # Hidden names are not read; the scratch folder of a manifest in the making is one of them.
    found = [(name, is_folder) for name, is_folder in file_root.entries(under) if name[0] != "." and is_text(name)]
    has_images = any(is_image(name) and not is_folder for name, is_folder in found)
    return [name for name, is_folder in found if is_folder], has_images


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key that compares numbers by value."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts if part]
