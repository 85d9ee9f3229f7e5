"""Characters drawn from the fonts that matplotlib ships."""

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.files import IMAGES, MANIFEST
from dietcl.streams.sources.builtin.source_cache import Progress, prepare_pack
from dietcl.streams.sources.variation import DRIFTING, STILL, Drift, Variation

VERSION = 2  # raise it when the code chooses other characters or draws other pixels from the same options
LIBRARIES = ("matplotlib", "numpy", "pillow")  # their versions may change pixels too
LEAST, MOST = 16, 256  # pixels
_BLOCK = 256  # images drawn at once


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """What the sources of drawn characters share."""

    name: ClassVar[str]
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20  # unless told otherwise
    label_rate: ClassVar[float] = 0.02
    mirror: ClassVar[bool] = False  # a mirrored character is another character
    pool: ClassVar[Literal["glyphs", "upstream"]] = "glyphs"
    variation: ClassVar[Variation] = STILL
    drift: ClassVar[Drift | None] = None

    classes: int = 100
    """Number of characters, chosen by the seed; near look-alikes come last."""
    per_class: int = 100
    """Training images of each character."""
    test_per_class: int = 20
    """Test images of each character."""
    size: int = 32
    """Side of the images in pixels."""
    seed: int = 0
    """Another seed gives other characters and other images."""

    def prepare(self, cache: Path, progress: Progress | None = None) -> Path:
        """Draw the images unless the cache has them, and return the manifest's path."""
        for option, least in (("classes", 1), ("per_class", 1), ("test_per_class", 0), ("size", LEAST)):
            if getattr(self, option) < least:
                name = option.replace("_", "-")
                raise UserError(f"--source.{name} {getattr(self, option)}: give at least {least}")
        if self.size > MOST:
            raise UserError(f"--source.size {self.size}: give at most {MOST}")
        facts = {
            "options": asdict(self),
            "variation": asdict(self.variation),
            "drift": asdict(self.drift) if self.drift else None,
            "versions": [VERSION, *(version(library) for library in LIBRARIES)],
        }
        return prepare_pack(cache, self.name, facts, lambda folder: self._draw(folder, cache, progress))

    def _draw(self, folder: Path, cache: Path, progress: Progress | None) -> None:
        import numpy as np

        from dietcl.streams.manifest import write_manifest
        from dietcl.streams.sources.builtin.glyphs.characters import characters, choose
        from dietcl.streams.sources.builtin.glyphs.render import render

        pool = getattr(characters(cache), self.pool)
        if self.classes > len(pool):
            raise UserError(
                f"--source.classes {self.classes}: {self.name} has {len(pool)} characters to choose from; give fewer"
            )
        chosen = choose(pool, self.classes, self.seed)
        places = [("train", i) for i in range(self.per_class)] + [("test", i) for i in range(self.test_per_class)]
        total = len(chosen) * len(places)
        images = np.lib.format.open_memmap(folder / IMAGES, "w+", np.uint8, (total, self.size, self.size))
        times = np.empty(total)
        for first, character in zip(range(0, total, len(places)), chosen, strict=True):
            for start in range(0, len(places), _BLOCK):
                keys = [(self.seed, self.name, character, *place) for place in places[start : start + _BLOCK]]
                rows = slice(first + start, first + start + len(keys))
                images[rows], times[rows] = render(character, keys, self.size, self.variation, self.drift)
            if progress:
                progress(first + len(places), total)
        images.flush()
        columns = {
            "id": [f"{ord(character):04X}-{split}-{i}" for character in chosen for split, i in places],
            "file": [IMAGES] * total,
            "offset": range(total),
            "label": [f"U+{ord(character):04X} {character}" for character in chosen for _ in places],
            "time": times if self.drift else [None] * total,
            "split": [split for _ in chosen for split, _ in places],
        }
        write_manifest(folder / MANIFEST, columns)


@dataclass(frozen=True, kw_only=True)
class Glyphs(_Drawn):
    """Characters of many scripts in varied faces, poses, inks and papers; 2,000 and more classes."""

    name: ClassVar[str] = "glyphs"


@dataclass(frozen=True, kw_only=True)
class GlyphsDrift(_Drawn):
    """The same characters all the time while ink, paper and scanner drift."""

    name: ClassVar[str] = "glyphs-drift"
    recipe: ClassVar[Literal["class", "time", "data"]] = "time"
    variation: ClassVar[Variation] = DRIFTING
    drift: ClassVar[Drift | None] = Drift()

    classes: int = 25
    per_class: int = 500
    test_per_class: int = 40


@dataclass(frozen=True, kw_only=True)
class GlyphsUpstream(_Drawn):
    """Other characters, none of which looks like a class of the other streams, to pre-train on."""

    name: ClassVar[str] = "glyphs-upstream"
    pool: ClassVar[Literal["glyphs", "upstream"]] = "upstream"

    classes: int = 1500
    per_class: int = 30
    test_per_class: int = 2
