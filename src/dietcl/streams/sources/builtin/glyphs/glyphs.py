"""Characters drawn from the fonts that matplotlib ships."""

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.streams.sources.builtin.source_cache import Progress, prepare_pack
from dietcl.streams.sources.defaults import StreamDefaults

VERSION = 2  # raise it when the code chooses other characters or draws other pixels from the same options
LIBRARIES = ("matplotlib", "numpy", "pillow")  # their versions may change pixels too
LEAST, MOST = 16, 256  # pixels

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Ranges of independent uniform draws, one per image; lengths are parts of the image's side by default."""

    rotation: Range = (-8.0, 8.0)  # degrees
    shear: Range = (-0.15, 0.15)
    scale: Range = (0.85, 1.05)
    aspect: Range = (-0.1, 0.1)  # natural logarithm of width over height
    shift_x: Range = (-0.05, 0.05)
    shift_y: Range = (-0.05, 0.05)
    weight: Range = (-0.4, 1.0)  # -1: half a pixel of 32 thinner on each side of a stroke; 1: as much bolder
    left_gap: Range = (0.72, 1.5)  # to the centre of the neighbouring character; out of sight from about 1
    right_gap: Range = (0.72, 1.5)
    polarity: Range = (-1.0, -0.1)  # below 0: dark ink on bright paper; above: bright on dark
    contrast: Range = (0.3, 0.8)  # between ink and paper, of the brightness scale
    brightness: Range = (0.0, 1.0)  # position of ink and paper in what the contrast leaves of the scale
    blur: Range = (0.2, 1.0)  # standard deviation in pixels of 32
    specks: Range = (0.0, 0.006)  # share of the pixels with a speck of ink


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What is added to a draw as time goes from 0 to 1: (amplitude, half waves), from -amplitude at time 0."""

    shear: Range = (0.4, 1.0)
    weight: Range = (0.6, 2.0)
    polarity: Range = (1.1, 1.0)
    contrast: Range = (-0.15, 2.0)
    brightness: Range = (0.3, 3.0)
    blur: Range = (0.3, 2.0)
    specks: Range = (0.004, 1.0)


DRIFTING = Variation(
    shear=(-0.1, 0.1),
    polarity=(-1.0, 1.0),
    weight=(-0.1, 0.5),
    contrast=(0.4, 0.65),
    blur=(0.4, 0.8),
    specks=(0.002, 0.006),
)


@dataclass(frozen=True, kw_only=True)
class DrawnGlyphs(StreamDefaults):
    """Options of every source of drawn characters."""

    label_rate = 0.02
    mirror = False  # a mirrored character is another character
    pool: ClassVar[Literal["glyphs", "upstream"]] = "glyphs"
    variation: ClassVar[Variation] = Variation()
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
                raise UserError(f"--source.{option.replace('_', '-')} {getattr(self, option)}: give at least {least}")
        if self.size > MOST:
            raise UserError(f"--source.size {self.size}: give at most {MOST}")
        look = {"variation": asdict(self.variation), "drift": self.drift and asdict(self.drift)}
        facts = {"options": asdict(self), **look, "versions": [VERSION, *map(version, LIBRARIES)]}
        return prepare_pack(cache, self.name, facts, lambda folder: self._fill(folder, cache, progress))

    def _fill(self, folder: Path, cache: Path, progress: Progress | None) -> None:
        from dietcl.streams.sources.builtin.pack_images import draw_glyphs

        draw_glyphs(self, folder, cache, progress)


@dataclass(frozen=True, kw_only=True)
class Glyphs(DrawnGlyphs):
    """Characters of many scripts in varied faces, poses, inks and papers; 2,000 and more classes."""

    name = "glyphs"


@dataclass(frozen=True, kw_only=True)
class GlyphsDrift(DrawnGlyphs):
    """The same characters all the time while ink, paper and scanner drift."""

    name = "glyphs-drift"
    recipe = "time"
    variation: ClassVar[Variation] = DRIFTING
    drift: ClassVar[Drift | None] = Drift()

    classes: int = 25
    per_class: int = 500
    test_per_class: int = 40


@dataclass(frozen=True, kw_only=True)
class GlyphsUpstream(DrawnGlyphs):
    """Other characters, none of which looks like a class of the other streams, to pre-train on."""

    name = "glyphs-upstream"
    pool: ClassVar[Literal["glyphs", "upstream"]] = "upstream"

    classes: int = 1500
    per_class: int = 30
    test_per_class: int = 2
