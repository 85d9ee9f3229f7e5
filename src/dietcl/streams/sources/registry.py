"""The kinds of data that `dietcl data prepare` reads, and how one of them becomes a manifest."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from dietcl.errors import UserError
from dietcl.files import MANIFEST
from dietcl.streams.filesystem import Place
from dietcl.streams.manifest import Facts
from dietcl.streams.manifest_builder import Preparation, Progress, Verify
from dietcl.streams.sources.datasets.cglm import Cglm
from dietcl.streams.sources.datasets.cifar import Cifar
from dietcl.streams.sources.datasets.clear import Clear
from dietcl.streams.sources.datasets.cloc import Cloc
from dietcl.streams.sources.datasets.imagenet import ImageNet2k, ImageNet10k
from dietcl.streams.sources.datasets.tiny_imagenet import TinyImageNet
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.readers.huggingface import HuggingFace
from dietcl.streams.sources.readers.idx import Idx
from dietcl.streams.sources.readers.npz import Arrays
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.readers.tar import Tar
from dietcl.streams.sources.readers.webp_zip import Strips


class Reader(Protocol):
    """A kind of data: a frozen dataclass of its options, which also says how its stream is cut by default."""

    name: ClassVar[str]
    recipe: ClassVar[Literal["class", "time", "data"]]
    time_steps: ClassVar[int]
    label_rate: ClassVar[float]
    mirror: ClassVar[bool]

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Tell whether this looks like data of this kind."""

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every image of the file `name` in `rows.place`, or of the whole place if the name is empty."""


# The first one that fits is taken, so the particular come before the general.
_KINDS: tuple[type[Reader], ...] = (
    *(Cloc, Cglm, Cifar, TinyImageNet, Idx, Clear, Strips, Arrays, ImageNet2k, ImageNet10k),
    *(Tar, HuggingFace, Table, Folder),
)
READERS: Mapping[str, type[Reader]] = {reader.name: reader for reader in _KINDS}


@dataclass(frozen=True)
class Prepared:
    """What came out of a preparation."""

    manifest: Path
    kept: int
    problems: Mapping[str, int]  # by kind


def locate(path: str) -> tuple[Place, str]:
    """Return the place of some data, and the name of its file there (empty if the place is the data)."""
    place = Place.of(path)
    if place.is_folder():
        return place, ""
    folder, _, name = place.root.rpartition("/")
    if not Place(folder or "/").has(name):
        raise UserError(f"{path}: no such file or folder; is the path right?")
    return Place(folder or "/"), name


def recognize(place: Place, name: str) -> type[Reader]:
    """Return the first kind that the data looks like."""
    for reader in READERS.values():
        if reader.fits(place, name):
            return reader
    raise UserError(f"{place.path(name)}: of no kind that is known; choose with --kind from {', '.join(READERS)}")


def prepare(
    reader: Reader,
    path: str,
    out: Path,
    verify: Verify = "decode",
    progress: Progress = lambda done, total: None,
) -> Prepared:
    """Turn data into a manifest in the folder `out`, beside a quarantine table of what was left out."""
    if (out / MANIFEST).exists():
        raise UserError(f"{out}: holds a manifest already; choose another --out, or remove it first")
    place, name = locate(path)
    facts = Facts(
        source=reader.name,
        recipe=reader.recipe,
        time_steps=reader.time_steps,
        label_rate=reader.label_rate,
        mirror=reader.mirror,
    )
    rows = Preparation(place, out, facts, verify, progress)
    try:
        reader.read(name, rows)
        return Prepared(rows.close(), rows.kept, dict(rows.problems))
    except BaseException:
        rows.abandon()
        raise
