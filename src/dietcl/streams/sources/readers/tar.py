"""Tar files in the layout of WebDataset: 01.jpg beside 01.cls or 01.json, read where they lie."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import PurePosixPath
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.holdout import check_share, holdout
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.shards import is_hostile
from dietcl.streams.sources.readers.folder import SUFFIXES
from dietcl.streams.sources.samples import COMPRESSED, samples

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
_TESTS = re.compile(r"(^|[^a-z])(test|val|valid|validation)([^a-z]|$)")
_AT_ONCE = 2**16
_LOOKED_AT = 1000


@dataclass(frozen=True, kw_only=True)
class Tar:
    """Tar shards as WebDataset writes them: 01.jpg beside 01.cls or 01.json (label, time, id); they stay as they are.

    The quarantine counts the members of a shard from 0.
    """

    name: ClassVar[str] = "tar"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    test_shards: str = ""
    """Glob of the shards that are for tests, as val/*.tar; unless told, those with the word test or val(id(ation))."""
    test_share: float = 0.1
    """Share of the images that is kept for tests where no shard is for them; which ones depends on their names."""
    classes: str = ""
    """Text file beside the shards with the class names, one a line from number 0; without it, numbers are names."""

    def __post_init__(self) -> None:
        check_share(self.test_share)
        if is_hostile(self.classes):
            raise UserError(f"--classes {self.classes}: leads outside the folder; put it beside the shards")

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take tar files, and folders that begin with some and without images."""
        if name:
            return name.lower().endswith((".tar", *_COMPRESSED))
        names = [file.lower() for file in islice(place.files(), _LOOKED_AT)]
        has_images = any(PurePosixPath(file).suffix in SUFFIXES for file in names)
        return not has_images and any(file.endswith((".tar", *_COMPRESSED)) for file in names)

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every sample that has an image."""
        kinds = (".tar", *_COMPRESSED)
        shards = [name] if name else [file for file in rows.place.files() if file.lower().endswith(kinds)]
        for shard in shards:
            if shard.lower().endswith(_COMPRESSED):
                raise UserError(f"{rows.place.path(shard)}: {COMPRESSED}")
        tests = {shard for shard in shards if self._is_for_tests(shard)}
        if self.test_shards and not tests:
            raise UserError(
                f"--test-shards {self.test_shards}: no shard has such a name; there are {', '.join(shards[:3])}"
            )
        classes = self._class_names(rows.place)
        found = (sample for shard in shards for sample in samples(shard, classes, rows))
        while part := list(islice(found, _AT_ONCE)):
            if any(sample.time is not None for sample in part):
                rows.suggest(recipe="time", time_steps=self.time_steps)
            ids = [sample.id for sample in part]
            rows.refer(
                [sample.shard for sample in part],
                label=[sample.label for sample in part],
                time=[sample.time for sample in part],
                split=["test" if sample.shard in tests else "train" for sample in part]
                if tests
                else holdout(ids, self.test_share),
                id=ids,
                offset=[sample.offset for sample in part],
                length=[sample.length for sample in part],
                row=[sample.number for sample in part],
            )

    def _is_for_tests(self, shard: str) -> bool:
        if self.test_shards:
            return fnmatchcase(shard, self.test_shards)
        return _TESTS.search(shard.lower()) is not None

    def _class_names(self, place: Place) -> list[str]:
        if not self.classes:
            return []
        with place.text(self.classes) as lines:
            names = [line.strip() for line in lines.read().rstrip().split("\n")]
        if "" in names:
            raise UserError(
                f"{place.path(self.classes)}: line {names.index('') + 1} is empty; give a class name a line"
            )
        return names
