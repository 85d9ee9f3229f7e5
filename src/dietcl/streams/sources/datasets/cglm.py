"""CGLM of Prabhu et al. (2023): photographs of landmarks in the order in which they were taken."""

from collections.abc import Iterator
from dataclasses import dataclass

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.path_lists import columns, find_images, inside, numbered_lines
from dietcl.streams.sources.reader import Reader

TABLES = {"train.txt": "train", "test.txt": "test"}


@dataclass(frozen=True, kw_only=True)
class Cglm(Reader):
    """CGLM: train.txt and test.txt with a class, a path and a time in each line, between tabs."""

    name = "cglm"
    recipe = "time"
    label_rate = 0.05

    images: str = ""
    """Folder in which the paths begin; by default the path that is prepared, or its folder train/."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept a folder with both tables, if their lines look right."""
        if name or not all(map(file_root.has, TABLES)):
            return False
        with file_root.text("train.txt") as lines:
            return lines.readline().count("\t") == 2

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add both tables; test images of classes without a training image stay, and count as wrong."""
        rows.keep_cut()
        if name:
            raise UserError(f"{rows.file_root.path(name)}: a file; give the folder with train.txt and test.txt")
        for file in TABLES:
            if not rows.file_root.has(file):
                raise UserError(f"{rows.file_root.path(file)}: missing; CGLM has train.txt and test.txt in one folder")
        folders = [self.images.strip("/")] if self.images else ["", "train"]
        folder: str | None = None
        for file, split in TABLES.items():
            for row, label, paths, time in columns(_lines(file, rows)):
                if folder is None:
                    folder = find_images(rows.file_root, folders, paths, "give the folder of the images as --images")
                files = [inside(folder, path) for path in paths]
                rows.refer(files, label=label, time=time, split=split, row=row, listed_in=file)


def _lines(file: str, rows: ManifestBuilder) -> Iterator[tuple[int, str, str, str]]:
    """Yield the number, class, path and time of each line."""
    for number, line in numbered_lines(rows.file_root, file):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) == 3 and all(fields):
            yield number, fields[0], fields[1], fields[2]
        else:
            rows.problem(file, number, "the line is not a class, a path and a time between tabs")
