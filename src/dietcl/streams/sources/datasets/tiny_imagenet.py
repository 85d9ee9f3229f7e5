"""Tiny ImageNet as it is unpacked: tiny-imagenet-200 with wnids.txt, train/ and val/."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from dietcl.streams.filesystem import Place
from dietcl.streams.manifest_builder import Preparation

_WNIDS, _ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"


@dataclass(frozen=True, kw_only=True)
class TinyImageNet:
    """The folder tiny-imagenet-200; its validation images are the tests, because test/ comes without labels."""

    name: ClassVar[str] = "tiny-imagenet"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Look for the list of classes and the list of validation images."""
        return not name and place.has(_WNIDS) and place.has(_ANNOTATIONS)

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over the images of train/ by their folders and those of val/ by the list beside them."""
        with rows.place.text(_WNIDS) as lines:
            classes = {line.strip() for line in lines}
        if train := list(_training(classes, rows)):
            file, label = map(list, zip(*train, strict=True))
            rows.refer(file, label=label)
        if validation := list(_validation(classes, rows)):
            row, file, label = map(list, zip(*validation, strict=True))
            rows.refer(file, label=label, split="test", row=row, listed_in=_ANNOTATIONS)


def _training(classes: set[str], rows: Preparation) -> Iterator[tuple[str, str]]:
    for path in _files("train", rows):
        parts = PurePosixPath(path).parts
        if not _is_image(path):
            if not path.endswith("_boxes.txt"):
                rows.problem(path, None, "not an image by its name")
        elif len(parts) != 4 or parts[2] != "images":
            rows.problem(path, None, "not at train/CLASS/images/")
        elif parts[1] not in classes:
            rows.problem(path, None, f"the class is not in {_WNIDS}: {parts[1]}")
        else:
            yield path, parts[1]


def _validation(classes: set[str], rows: Preparation) -> Iterator[tuple[int, str, str]]:
    unlisted = {path for path in _files("val", rows) if path != _ANNOTATIONS}
    listed: set[str] = set()
    with rows.place.text(_ANNOTATIONS) as lines:
        for row, line in enumerate(lines, start=1):  # as editors count
            if not line.strip():
                continue
            file, _, rest = line.rstrip("\r\n").partition("\t")
            path, label = f"val/images/{file}", rest.partition("\t")[0]
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


def _files(folder: str, rows: Preparation) -> Iterator[str]:
    if rows.place.has(folder):
        return rows.place.files(folder)
    rows.problem(folder, None, "the folder is missing")
    return iter(())


def _is_image(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in (".jpeg", ".jpg")
