"""Tiny ImageNet as it is unpacked: tiny-imagenet-200 with wnids.txt, train/ and val/."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import NOT_AN_IMAGE, ManifestBuilder
from dietcl.streams.sources.parsing.path_lists import columns, numbered_lines
from dietcl.streams.sources.reader import Reader

_WNIDS, _ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Reader):
    """The folder tiny-imagenet-200; its validation images are the tests, because test/ comes without labels."""

    name = "tiny-imagenet"

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Look for the list of classes and the list of validation images."""
        return not name and file_root.has(_WNIDS) and file_root.has(_ANNOTATIONS)

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add the images of train/ by their folders and those of val/ by the list beside them."""
        classes = {line.strip() for _, line in numbered_lines(rows.file_root, _WNIDS)}
        for file, label in columns(_training(classes, rows)):
            rows.refer(file, label=label)
        for row, file, label in columns(_validation(classes, rows)):
            rows.refer(file, label=label, split="test", row=row, listed_in=_ANNOTATIONS)


def _training(classes: set[str], rows: ManifestBuilder) -> Iterator[tuple[str, str]]:
    for path in _files("train", rows):
        parts = PurePosixPath(path).parts
        if PurePosixPath(path).suffix.lower() not in (".jpeg", ".jpg"):
            if not path.endswith("_boxes.txt"):
                rows.problem(path, None, NOT_AN_IMAGE)
        elif len(parts) != 4 or parts[2] != "images":
            rows.problem(path, None, "not at train/CLASS/images/")
        elif parts[1] not in classes:
            rows.problem(path, None, f"the class is not in {_WNIDS}: {parts[1]}")
        else:
            yield path, parts[1]


def _validation(classes: set[str], rows: ManifestBuilder) -> Iterator[tuple[int, str, str]]:
    unlisted = {path for path in _files("val", rows) if path != _ANNOTATIONS}
    listed: set[str] = set()
    for row, line in numbered_lines(rows.file_root, _ANNOTATIONS):
        file, label = [*line.split("\t"), ""][:2]
        path = f"val/images/{file}"
        if label not in classes:
            rows.problem(_ANNOTATIONS, row, f"the class is not in {_WNIDS}: {label or 'there is none'}")
        elif path in listed:
            rows.problem(_ANNOTATIONS, row, f"the file is listed twice: {file}")
        elif path not in unlisted:
            rows.problem(_ANNOTATIONS, row, f"the file is missing: {file}")
        else:
            yield row, path, label
        listed.add(path)
    for path in sorted(unlisted - listed):
        rows.problem(path, None, f"not listed in {_ANNOTATIONS}")


def _files(folder: str, rows: ManifestBuilder) -> Iterator[str]:
    if rows.file_root.has(folder):
        return rows.file_root.files(folder)
    rows.problem(folder, None, "the folder is missing")
    return iter(())
