"""CGLM of Prabhu et al. (2023): photographs of landmarks in the order in which they were taken."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.parsing.path_lists import find_images, inside

TABLES = {"train.txt": "train", "test.txt": "test"}
_AT_ONCE = 100_000

Line = tuple[int, str, str, str]  # number, class, path, time


@dataclass(frozen=True, kw_only=True)
class Cglm:
    """CGLM: train.txt and test.txt with a class, a path and a time in each line, between tabs."""

    name: ClassVar[str] = "cglm"
    recipe: ClassVar[Literal["class", "time", "data"]] = "time"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.05
    mirror: ClassVar[bool] = True

    images: str = ""
    """Folder in which the paths begin; by default the path that is prepared, or its folder train/."""

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take a folder with both tables, if their lines look right."""
        if name or not all(place.has(file) for file in TABLES):
            return False
        with place.text("train.txt") as lines:
            return len(lines.readline().split("\t")) == 3

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over both tables; test images of classes without a training image stay, and count as wrong."""
        rows.keep_cut()
        if name:
            raise UserError(f"{rows.place.path(name)}: a file; give the folder with train.txt and test.txt")
        for file in TABLES:
            if not rows.place.has(file):
                raise UserError(f"{rows.place.path(file)}: missing; CGLM has train.txt and test.txt in one folder")
        folder: str | None = None
        for file, split in TABLES.items():
            lines = _lines(file, rows)
            while part := list(islice(lines, _AT_ONCE)):
                row, label, paths, time = map(list, zip(*part, strict=True))
                if folder is None:
                    folder = self._folder(rows.place, [str(path) for path in paths])
                files = [inside(folder, str(path)) for path in paths]
                rows.refer(files, label=label, time=time, split=split, row=row, listed_in=file)

    def _folder(self, place: Place, paths: list[str]) -> str:
        folders = [self.images.strip("/")] if self.images else ["", "train"]
        return find_images(place, folders, paths, "say where the paths begin with --images")


def _lines(file: str, rows: Preparation) -> Iterator[Line]:
    with rows.place.text(file) as lines:
        for number, line in enumerate(lines, start=1):
            fields = [field.strip() for field in line.split("\t")]
            if len(fields) == 3 and all(fields):
                yield number, fields[0], fields[1], fields[2]
            elif any(fields):
                rows.problem(file, number, "the line is not a class, a path and a time between tabs")
