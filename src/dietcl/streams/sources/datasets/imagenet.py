"""ImageNet-21K without the classes of ImageNet-1k: the paper's ImageNet10k, and ImageNet2k of Prabhu et al. (2023)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.rng import numpy_generator
from dietcl.streams.filesystem import Place
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.parsing.path_lists import find_images
from dietcl.streams.sources.readers.folder import SUFFIXES

LAYOUTS = (("imagenet21k_train", "imagenet21k_val"), ("train", "val"))
ORDERS = ("class_incremental_ordering.txt", "ordering_class_incremental.txt")  # written and read under these names
TEST_ORDER = "test.txt"
# Left out by github.com/drimpossible/BudgetCL, 7b5057f, scripts/split_imgnet21k.py, lines 51-57.
PROBLEMATIC = frozenset(["n13867492", "n15102894", "n09450163", "n10994097", "n11196627", "n11318824"])
TEST_PER_CLASS, VALIDATION_PER_CLASS = 50, 10  # of ImageNet2k; the same script, lines 74-76
_CLASS = re.compile(r"n\d{8}")
_AT_ONCE = 100_000

Entry = tuple[str, str, str]  # path, class, split


@dataclass(frozen=True, kw_only=True)
class ImageNet10k:
    """ImageNet-21K-P without ImageNet-1k: imagenet21k_train/nXXXXXXXX/*.JPEG and imagenet21k_val/ (or train/, val/)."""

    name: ClassVar[str] = "imagenet10k"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take folders under the names of ImageNet-21K-P, or ones whose classes are mostly not those of ImageNet-1k."""
        if name or (layout := _layout(place)) is None:
            return False
        if layout == LAYOUTS[0]:
            return True
        classes = place.folders(layout[0])
        beyond = [found for found in classes if _CLASS.fullmatch(found) and found not in imagenet1k()]
        return 2 * len(beyond) > len(classes)

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over all images of the classes that ImageNet-1k lacks; those of the validation folder are for tests."""
        rows.keep_cut()
        layout = None if name else _layout(rows.place)
        if layout is None:
            raise UserError(
                f"{rows.place.path(name).rstrip('/')}: not a folder with imagenet21k_train/ and imagenet21k_val/, "
                "or train/ and val/; give the one where ImageNet-21K-P was processed into"
            )
        _hand_over(self._entries(layout, rows), rows)

    def _entries(self, layout: tuple[str, str], rows: Preparation) -> Iterator[Entry]:
        for top, split in zip(layout, ("train", "test"), strict=True):
            for found in _classes(top, rows):
                for path in _images(f"{top}/{found}", rows):
                    yield path, found, split


@dataclass(frozen=True, kw_only=True)
class ImageNet2k:
    """1,000 large classes of ImageNet-21K beyond ImageNet-1k: by released order files, or chosen from ImageNet-21K."""

    name: ClassVar[str] = "imagenet2k"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    seed: int = 0
    """Which classes are chosen, and which of their images are for tests, where there are no order files."""
    classes: int = 1000
    """How many classes are chosen."""
    at_least: int = 1200
    """How many images a class must have to be chosen."""

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise UserError(f"--classes {self.classes}: give at least 1")
        if self.at_least <= TEST_PER_CLASS + VALIDATION_PER_CLASS:
            raise UserError(
                f"--at-least {self.at_least}: give more than the 60 images that are set aside in each class"
            )

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take a folder with order files."""
        return not name and _order(place) is not None

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over what the order files list, or else the classes chosen by the seed."""
        rows.keep_cut()
        if name:
            raise UserError(f"{rows.place.path(name)}: a file; give the folder that holds it")
        order = _order(rows.place)
        if order is None:
            _hand_over(self._chosen(rows), rows)
            return
        folder, _, listed = order.rpartition("/")
        for file, split in ((listed, "train"), (TEST_ORDER, "test")):
            _hand_over_listed(f"{folder}/{file}".lstrip("/"), split, rows)

    def _chosen(self, rows: Preparation) -> Iterator[Entry]:
        tops = _layout(rows.place) or ("",)
        folders: dict[str, list[str]] = {}  # by class
        for top in tops:
            for found in _classes(top, rows):
                if found not in PROBLEMATIC:
                    folders.setdefault(found, []).append(f"{top}/{found}".lstrip("/"))
        names, taken = sorted(folders), 0
        for number in numpy_generator(self.seed, "imagenet2k").permutation(len(names)):
            if taken == self.classes:
                return
            name = names[number]
            # By the file's own name: whether a validation folder was split off or not does not matter.
            paths = sorted((path for folder in folders[name] for path in _images(folder, rows)), key=_file_name)
            if len(paths) < self.at_least:
                continue
            taken += 1
            order = numpy_generator(self.seed, "imagenet2k", name).permutation(len(paths)).tolist()
            yield from ((paths[i], name, "test") for i in order[:TEST_PER_CLASS])
            yield from ((paths[i], name, "train") for i in order[TEST_PER_CLASS + VALIDATION_PER_CLASS :])
        if taken < self.classes:
            raise UserError(
                f"{rows.place.root}: {taken} classes beyond ImageNet-1k have at least {self.at_least} images, and "
                f"{self.classes} are wanted; give ImageNet-21K, or other --classes and --at-least"
            )


@cache
def imagenet1k() -> frozenset[str]:
    """Return the 1,000 classes of ImageNet-1k, from the list that timm installs."""
    package = find_spec("timm")  # not imported, which would take seconds
    assert package is not None
    assert package.origin is not None
    names = (Path(package.origin).parent / "data" / "_info" / "imagenet_synsets.txt").read_text().split()
    return frozenset(names)


def _layout(place: Place) -> tuple[str, str] | None:
    tops = set(place.folders())
    return next((layout for layout in LAYOUTS if tops.issuperset(layout)), None)


def _order(place: Place) -> str | None:
    files = [f"{folder}{name}" for folder in ("", "order_files/") for name in ORDERS]
    return next((file for file in files if place.has(file)), None)


def _classes(top: str, rows: Preparation) -> Iterator[str]:
    """Yield the class folders that ImageNet-1k lacks and that lie in the place themselves."""
    for name in rows.place.folders(top):
        path = f"{top}/{name}".lstrip("/")
        if not _CLASS.fullmatch(name):
            rows.problem(path, None, "not a class folder such as n01440764")
        elif name in imagenet1k():
            continue
        elif rows.place.leads_outside(path):
            rows.problem(path, None, "a link leads outside the folder")
        else:
            yield name


def _images(folder: str, rows: Preparation) -> Iterator[str]:
    for path in rows.place.files(folder):
        if PurePosixPath(path).suffix.lower() in SUFFIXES:
            yield path
        elif not _file_name(path).startswith("."):
            rows.problem(path, None, "not an image by its name")


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _hand_over(entries: Iterable[Entry], rows: Preparation) -> None:
    entries = iter(entries)
    while part := list(islice(entries, _AT_ONCE)):
        file, label, split = map(list, zip(*part, strict=True))
        rows.refer(file, label=label, split=split)


def _hand_over_listed(file: str, split: str, rows: Preparation) -> None:
    """Hand over the images of one order file, with lines such as /train/n01440764/n01440764_10026.JPEG."""
    with rows.place.text(file) as lines:
        numbered = enumerate(lines, start=1)
        while part := list(islice(numbered, _AT_ONCE)):
            row, paths, label = [], [], []
            for number, line in part:
                path = line.strip().lstrip("/")
                *_, found, _ = ["", "", *path.split("/")]
                if _CLASS.fullmatch(found):
                    row.append(number)
                    paths.append(path)
                    label.append(found)
                elif path:
                    rows.problem(file, number, "the line is not a path such as /train/n01440764/n01440764_10026.JPEG")
            if row:
                find_images(rows.place, [""], paths)
                rows.refer(paths, label=label, split=split, row=row, listed_in=file)
