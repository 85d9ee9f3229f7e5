"""What reads a kind of users' data, and how a manifest of that data is written."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dietcl.errors import UserError
from dietcl.files import MANIFEST
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest import Facts
from dietcl.streams.manifest_builder import ManifestBuilder, Progress, Verify
from dietcl.streams.sources.defaults import StreamDefaults


class Reader(StreamDefaults, ABC):
    """A kind of data: a frozen dataclass of its options."""

    @staticmethod
    @abstractmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Return whether this looks like data of this kind."""

    @abstractmethod
    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every image of the file `name` in `rows.file_root`, or of the entire folder if the name is empty."""


@dataclass(frozen=True, kw_only=True)
class GeneralReader(Reader):
    """A layout of users' own images: every label is revealed, and test images are drawn where none are named."""

    label_rate = 1.0

    test_share: float = 0.1
    """Share of the labeled images that become test images where the data names none."""

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise UserError(f"--test-share {self.test_share}: give a share from 0 to below 1")


@dataclass(frozen=True)
class Prepared:
    """The result of a preparation."""

    manifest: Path
    kept: int
    problems: Mapping[str, int]  # by kind


def locate(path: str) -> tuple[FileRoot, str]:
    """Return the root of some data, and the name of its file there (empty for a folder)."""
    file_root = FileRoot.of(path)
    if file_root.is_folder():
        return file_root, ""
    folder, _, name = file_root.root.rpartition("/")
    if not FileRoot(folder or "/").has(name):
        raise UserError(f"{path}: no such file or folder; check the path")
    return FileRoot(folder or "/"), name


def prepare(
    reader: Reader,
    path: str,
    out: Path,
    verify: Verify = "decode",
    progress: Progress | None = None,
    allow_problems: bool = True,
) -> Prepared:
    """Write a manifest of the data into the folder `out`, and a quarantine table of what was left out."""
    if (out / MANIFEST).exists():
        raise UserError(f"{out}: holds a manifest already; choose another --out, or remove it first")
    file_root, name = locate(path)
    defaults = {option: getattr(reader, option) for option in ("recipe", "time_steps", "label_rate", "mirror")}
    facts = Facts(source=reader.name, **defaults)
    rows = ManifestBuilder(file_root, out, facts, verify, progress or (lambda done, total: None))
    try:
        reader.read(name, rows)
        if rows.problems and not allow_problems:
            raise UserError(f"{path}: {next(iter(rows.problems))}; `dietcl data prepare` leaves it out")
        return Prepared(rows.close(), rows.kept, dict(rows.problems))
    except BaseException:
        rows.abandon()
        raise
