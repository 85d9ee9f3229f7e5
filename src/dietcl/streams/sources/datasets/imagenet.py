"""ImageNet-21K without the classes of ImageNet-1k: the paper's ImageNet10k, and ImageNet2k of Prabhu et al. (2023)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from posixpath import basename, dirname

from dietcl.errors import UserError
from dietcl.rng import numpy_generator
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import NOT_AN_IMAGE, ManifestBuilder
from dietcl.streams.sources.parsing.path_lists import columns, find_images, inside, is_image, numbered_lines
from dietcl.streams.sources.reader import Reader

LAYOUTS = (("imagenet21k_train", "imagenet21k_val"), ("train", "val"))
ORDERS = ("class_incremental_ordering.txt", "ordering_class_incremental.txt")  # written and read under these names
TEST_ORDER = "test.txt"
# Left out by github.com/drimpossible/BudgetCL, 7b5057f, scripts/split_imgnet21k.py, lines 51-57.
PROBLEMATIC = frozenset(["n13867492", "n15102894", "n09450163", "n10994097", "n11196627", "n11318824"])
TEST_PER_CLASS, VALIDATION_PER_CLASS = 50, 10  # of ImageNet2k; the same script, lines 74-76
_CLASS = re.compile(r"n\d{8}")


@dataclass(frozen=True, kw_only=True)
class ImageNet10k(Reader):
    """ImageNet-21K-P without ImageNet-1k: imagenet21k_train/nXXXXXXXX/*.JPEG and imagenet21k_val/ (or train/, val/)."""

    name = "imagenet10k"

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept the folders of ImageNet-21K-P, or ones whose classes are mostly not those of ImageNet-1k."""
        if name or (layout := _layout(file_root)) is None:
            return False
        if layout == LAYOUTS[0]:
            return True
        classes = file_root.folders(layout[0])
        beyond = [found for found in classes if _CLASS.fullmatch(found) and found not in imagenet1k()]
        return 2 * len(beyond) > len(classes)

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add all images of the classes that ImageNet-1k lacks; those of the validation folder are for tests."""
        rows.keep_cut()
        layout = None if name else _layout(rows.file_root)
        if layout is None:
            fault = "not a folder with imagenet21k_train/ and imagenet21k_val/, or train/ and val/"
            raise UserError(f"{rows.file_root.path(name).rstrip('/')}: {fault}; give that of ImageNet-21K-P")
        for top, split in zip(layout, ("train", "test"), strict=True):
            images = ((path, found) for found in _classes(top, rows) for path in _images(f"{top}/{found}", rows))
            for file, label in columns(images):
                rows.refer(file, label=label, split=split)


@dataclass(frozen=True, kw_only=True)
class ImageNet2k(Reader):
    """1,000 large classes of ImageNet-21K beyond ImageNet-1k: by released order files, or chosen from ImageNet-21K."""

    name = "imagenet2k"

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
            raise UserError(f"--at-least {self.at_least}: give more than the 60 images set aside in each class")

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept a folder with order files."""
        return not name and _order(file_root) is not None

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add what the order files list, or else the classes chosen by the seed."""
        rows.keep_cut()
        if name:
            raise UserError(f"{rows.file_root.path(name)}: a file; give the folder that holds it")
        order = _order(rows.file_root)
        if order is None:
            for paths, label, splits in columns(self._chosen(rows)):
                rows.refer(paths, label=label, split=splits)
            return
        folder, _, train_order = order.rpartition("/")
        for name, split in ((train_order, "train"), (TEST_ORDER, "test")):
            file = inside(folder, name)
            for row, paths, label in columns(_listed(file, rows)):
                find_images(rows.file_root, [""], paths, "is the data complete?")
                rows.refer(paths, label=label, split=split, row=row, listed_in=file)

    def _chosen(self, rows: ManifestBuilder) -> Iterator[tuple[str, str, str]]:
        """Yield the path, class and split of every image of the chosen classes."""
        folders: dict[str, list[str]] = {}  # by class
        for top in _layout(rows.file_root) or ("",):
            for found in _classes(top, rows):
                folders.setdefault(found, []).append(inside(top, found))
        names, taken = sorted(folders.keys() - PROBLEMATIC), 0
        for number in numpy_generator(self.seed, "imagenet2k").permutation(len(names)):
            if taken == self.classes:
                return
            name = names[number]
            # By the file's own name: whether a validation folder was split off or not does not matter.
            paths = sorted((path for folder in folders[name] for path in _images(folder, rows)), key=basename)
            if len(paths) < self.at_least:
                continue
            taken += 1
            order = numpy_generator(self.seed, "imagenet2k", name).permutation(len(paths)).tolist()
            yield from ((paths[i], name, "test") for i in order[:TEST_PER_CLASS])
            yield from ((paths[i], name, "train") for i in order[TEST_PER_CLASS + VALIDATION_PER_CLASS :])
        if taken < self.classes:
            fault = f"classes beyond ImageNet-1k with at least {self.at_least} images: {taken} of {self.classes}"
            raise UserError(f"{rows.file_root.root}: {fault}; give ImageNet-21K, or other --classes and --at-least")


@cache
def imagenet1k() -> frozenset[str]:
    """Return the 1,000 classes of ImageNet-1k, from the list that timm installs."""
    # timm is not imported, which would take seconds.
    return frozenset(distribution("timm").locate_file("timm/data/_info/imagenet_synsets.txt").read_text().split())


def _layout(file_root: FileRoot) -> tuple[str, str] | None:
    tops = set(file_root.folders())
    return next((layout for layout in LAYOUTS if tops.issuperset(layout)), None)


def _order(file_root: FileRoot) -> str | None:
    files = [f"{folder}{name}" for folder in ("", "order_files/") for name in ORDERS]
    return next((file for file in files if file_root.has(file)), None)


def _classes(top: str, rows: ManifestBuilder) -> Iterator[str]:
    """Yield the names of the class folders that ImageNet-1k lacks and that are not links to outside the root."""
    for name in rows.file_root.folders(top):
        path = inside(top, name)
        if not _CLASS.fullmatch(name):
            rows.problem(path, None, "not a class folder such as n01440764")
        elif name not in imagenet1k() and rows.file_root.leads_outside(path):
            rows.problem(path, None, "a link leads outside the folder")
        elif name not in imagenet1k():
            yield name


def _images(folder: str, rows: ManifestBuilder) -> Iterator[str]:
    for path in rows.file_root.files(folder):
        if is_image(path):
            yield path
        elif not basename(path).startswith("."):
            rows.problem(path, None, NOT_AN_IMAGE)


def _listed(file: str, rows: ManifestBuilder) -> Iterator[tuple[int, str, str]]:
    """Yield the number, path and class of each line, such as /train/n01440764/n01440764_10026.JPEG."""
    for number, line in numbered_lines(rows.file_root, file):
        path = line.strip().lstrip("/")
        label = basename(dirname(path))
        if _CLASS.fullmatch(label):
            yield number, path, label
        else:
            rows.problem(file, number, "the line is not a path such as /train/n01440764/n01440764_10026.JPEG")
