"""Image packs: a zip of WebP strips, split/class/name.webp, each a column of square images of one class."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.sources.builtin.source_cache import Progress, prepare_pack

if TYPE_CHECKING:  # the command line looks at the options here, and should not wait for what reads images
    from dietcl.streams.manifest_builder import Preparation


@dataclass(frozen=True, kw_only=True)
class Strips:
    """A zip of WebP strips with a meta.json that gives the side of the squares (`size`)."""

    name: ClassVar[str] = "strips"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20  # unless told otherwise
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    path: Annotated[Path, tyro.conf.Suppress] = Path()  # for `prepare`; whoever calls `read` says what to read there
    label: Literal["class", "first-word"] = "class"
    """Take the whole name of a class for its label, or the first word alone."""

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take a zip with a meta.json."""
        if not name.endswith(".zip"):
            return False
        try:
            with place.open(name) as stream, zipfile.ZipFile(stream) as pack:
                return "meta.json" in pack.namelist()
        except (zipfile.BadZipFile, OSError):
            return False

    def prepare(self, cache: Path, progress: Progress | None = None) -> Path:
        """Unpack into one array beside a manifest, once."""
        try:
            stamp = self.path.stat()
        except OSError:
            raise UserError(f"{self.path}: no such file; give a .zip of WebP strips") from None
        facts = {"name": self.path.name, "bytes": stamp.st_size, "time": stamp.st_mtime_ns, "label": self.label}
        return prepare_pack(cache, self.path.stem, facts, lambda folder: self._unpack(folder, progress))

    def _unpack(self, folder: Path, progress: Progress | None) -> None:
        from dietcl.streams.manifest import Facts
        from dietcl.streams.manifest_builder import Preparation

        def report(done: int, total: int | None) -> None:
            if progress and total:
                progress(done, total)

        facts = Facts(source=self.name, recipe=self.recipe, time_steps=self.time_steps, label_rate=self.label_rate)
        rows = Preparation(Place.of(self.path.parent), folder, facts, progress=report)
        try:
            self.read(self.path.name, rows)
            if rows.problems:
                raise UserError(f"{self.path}: {next(iter(rows.problems))}; `dietcl data prepare` goes on without it")
            rows.close()
        except BaseException:
            rows.abandon()
            raise

    def read(self, name: str, rows: "Preparation") -> None:
        """Hand over the images of every strip; the day on which a class was first seen is their time, if it is told."""
        from dietcl.streams.sources.strip_images import hand_over

        hand_over(name, rows, self.time_steps, first_word=self.label == "first-word")
