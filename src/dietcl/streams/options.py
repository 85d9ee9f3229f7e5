"""Options of streams: how one is cut, mixed, augmented and packed; free of numpy for a quick command line."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from dietcl.checked_options import CheckedOptions, FromZero, Limit, Share, Valid
from dietcl.errors import UserError

if TYPE_CHECKING:
    from dietcl.streams.sampler import Pool

MEAN, STD = 0.5, 0.25  # of pixels between 0 and 1: how images are standardized
_COMMON_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
IMAGE_SUFFIXES = frozenset((*_COMMON_SUFFIXES, ".avif", ".heic", ".heif"))
BAD_SHARE = 0.01  # of the images that may turn out unreadable before a run stops
MOST_TIME_STEPS = 5_000  # counts are kept for every pair of time steps

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Resizing:
    """How a square becomes of an image: the share of its shorter side that is kept, and how that is resized."""

    crop_ratio: float = 1.0
    interpolation: Interpolation = "bilinear"

    def side(self, size: int) -> int:
        """Return the shorter side of an image of which a square of this size is cut without enlarging it."""
        return math.ceil(size / self.crop_ratio)


Cut = Literal["count", "duration", "day", "week", "month", "value"]
_STEPS = Valid(lambda n: n == "auto" or 1 <= n <= MOST_TIME_STEPS, f"give from 1 to {MOST_TIME_STEPS}")
EVEN_CUTS = ("count", "duration")  # into any number of time steps; the others make as many as the data has


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(CheckedOptions):
    """How a stream is cut into time steps and how many labels it reveals."""

    recipe: Literal["class", "time", "data"] = "class"
    """class: classes are spread over time steps; time: cuts of the timestamp; data: i.i.d. cuts."""
    time_steps: Annotated[int | Literal["auto"], _STEPS] = "auto"
    """Number of time steps T; auto: as the data states, else by its times (distinct dates if at most 50, else 20)."""
    label_rate: Share = 0.01
    """Share of labels revealed, per class and time step (rounded to the nearest count)."""
    at_least_one: bool = False
    """Reveal at least one label of every class in every time step where it occurs."""
    cut: Cut | Literal["auto"] = "auto"
    """Cut time into steps of equal count or duration, or one per day, week, month or value (recipe 'time' only)."""
    test_per_time_step: Limit = None
    """At most this many test images per time step (all by default)."""


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeOptions):
    """A recipe with nothing left to resolve: what a RunConfig holds."""

    time_steps: Annotated[int, _STEPS] = 20
    cut: Cut = "count"


PoolName = Literal["labeled", "unlabeled", "memory", "larder"]
POOLS: tuple[PoolName, ...] = ("unlabeled", "labeled", "memory", "larder")


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Shares of a micro-batch by pool, and how the memory is drawn from."""

    labeled: float = 0.0
    unlabeled: float = 0.0
    memory: float = 0.0
    larder: float = 0.0
    past_only: bool = False  # leave this time step's labels out of the memory
    placed_only: bool = False  # leave images that only chance put into this time step out of the unlabeled ones
    by_time_step: bool = False  # draw a time step first, then one of its labels: every time step weighs the same
    capacity: int | None = None  # size of a reservoir of labels of earlier time steps; None keeps all
    by_class: bool = False  # the capacity is for all labels, this time step's too, and shared by the classes

    def counts(self, size: int, pools: Mapping[PoolName, "Pool"]) -> dict[PoolName, int]:
        """Divide a micro-batch among the pools that hold images; empty if no pool with a share holds any."""
        share = {name: part for name in POOLS if (part := getattr(self, name)) > 0}
        empty = [name for name in share if not len(pools[name].rows)]
        # An empty labeled or memory pool gives its share to the other of the two, if that has one; all others share it.
        pairs: tuple[tuple[PoolName, PoolName], ...] = (("labeled", "memory"), ("memory", "labeled"))
        for name, other in pairs:
            if name in empty and other in share and other not in empty:
                share[other] += share[name]
        share = {name: part for name, part in share.items() if name not in empty}
        total = sum(share.values())
        exact = {name: size * part / total for name, part in share.items()}
        counts = {name: int(value + 1e-9) for name, value in exact.items()}
        # Largest remainders get the rest; ties go to the first pool named (256 in thirds: 86, 85, 85).
        by_remainder = sorted(exact, key=lambda name: round(counts[name] - exact[name], 9))
        for name in by_remainder[: size - sum(counts.values())] if counts else []:
            counts[name] += 1
        if not all(counts.values()) and "larder" in counts:
            # Its share follows from what the method guessed, so that nobody could have chosen another size.
            return dataclasses.replace(self, larder=0.0).counts(size, pools)
        if not all(counts.values()):
            raise UserError(f"--micro-batch {size}: too small for every pool ({', '.join(counts)}); enlarge it")
        return counts


@dataclass(frozen=True, kw_only=True)
class Augmentation(CheckedOptions):
    """Random crops and flips of every training image; mixup, cutmix and smoothing of labeled ones."""

    crop: Annotated[float, Valid(lambda x: 0 < x <= 1, "give a share above 0 and up to 1 (1: no crops)")] = 0.08
    """Smallest share of the image's area that a random crop keeps (1: no crops)."""
    flip: bool = True
    """Mirror half of the images (turned off by streams whose classes a mirror would change)."""
    mixup: FromZero = 0.8
    """Beta parameter of mixup (0: off)."""
    cutmix: FromZero = 1.0
    """Beta parameter of cutmix (0: off); with both on, each micro-batch takes one of them."""
    smoothing: Annotated[float, Valid(lambda x: 0 <= x < 1, "give a share from 0 and below 1")] = 0.1
    """Label smoothing."""


@dataclass(frozen=True, kw_only=True)
class Packing(CheckedOptions):
    """How images are resized and stored."""

    side: Annotated[int, Valid(lambda n: 8 <= n <= 4096, "give from 8 to 4096")] = 224
    """Pixels of the shorter side; smaller images keep their size, except as raw squares."""
    format: Literal["auto", "raw", "jpeg", "webp"] = "auto"
    """raw: uint8 squares from the middle, for small images; jpeg, webp: full pictures; auto: raw up to 64 pixels."""
    quality: Annotated[int, Valid(lambda n: 1 <= n <= 100, "give from 1 to 100")] = 90
    """Quality of JPEG or WebP."""

    @property
    def is_raw(self) -> bool:
        """Whether images become squares of raw pixels."""
        # Small raw squares take little room, and they are read many times faster than JPEGs.
        return self.format == "raw" or (self.format == "auto" and self.side <= 64)
