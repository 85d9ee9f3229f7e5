"""How a run is carried out, apart from what it computes; free of torch."""

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from dietcl.budget.budget import Budget
from dietcl.checked_options import CheckedOptions, Count, Valid
from dietcl.errors import UserError
from dietcl.streams.options import BAD_SHARE

Precision = Literal["auto", "float32", "bfloat16"]
SIZE_ADVICE = "give a size such as 10GB or 500MB, or 0 for none"
_UNITS = ("", "kb", "mb", "gb", "tb")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(kb|mb|gb|tb)?")
_THREADS = "give at least 1, or leave it out for all cores"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 10GB, 1.5TB, 500MB or 0."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or (not found[2] and float(found[1])):
        raise ValueError(f"{text} is not a size")
    return int(float(found[1]) * 1000 ** _UNITS.index(found[2] or "kb"))


def is_size(text: str) -> bool:
    """Tell whether `parse_size` can read a text."""
    with suppress(ValueError):
        return parse_size(text) >= 0
    return False


@dataclass(frozen=True, kw_only=True)
class Execution(CheckedOptions):
    """Where and how a run is carried out; device, precision and threads change the rounding, nothing else does."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: Annotated[int | None, Valid(lambda n: n is None or n >= 1, _THREADS)] = None
    """CPU threads (all cores by default)."""
    precision: Precision = "auto"
    """What the network computes in; auto: bfloat16 on GPUs that have it, float32 elsewhere."""
    fresh: bool = False
    """Start over if the folder holds a run."""
    bad_images: Annotated[float, Valid(lambda x: 0 <= x <= 1, "give a share between 0 and 1")] = BAD_SHARE
    """Share of the images that may turn out unreadable before the run stops; they are replaced by others."""
    checkpoint_every: Count = 100
    """Updates between checkpoints; the end of every time step is one, too."""
    checkpoint_minutes: Annotated[float, Valid(lambda x: x > 0, "give a number above 0")] = 10.0
    """Minutes between checkpoints, if that comes first."""
    keep_checkpoints: Count = 2
    """How many checkpoints to keep; a damaged one leaves those before it."""
    cache_size: Annotated[str, Valid(is_size, SIZE_ADVICE)] = "10GB"
    """Features of images that a frozen encoder computed, kept on disk for all runs; the oldest make room."""
    stop_after: str | None = None
    """Save and stop after this time, such as 2h, with exit code 75 (0 if torchrun or srun started several
    processes); run the same command to resume."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.time_limit  # noqa: B018 (it raises if the value is not a time)

    @property
    def cache_bytes(self) -> int:
        """Bytes of features that may be kept on disk."""
        return parse_size(self.cache_size)

    @property
    def time_limit(self) -> float:
        """Seconds after which the run saves itself and stops; infinity by default."""
        if self.stop_after is None:
            return math.inf
        with suppress(UserError):
            limit = Budget.parse(self.stop_after)
            if limit.unit == "seconds":
                return limit.amount
        raise UserError(f"--stop-after {self.stop_after}: give a time such as 2h, 15min, 90s or 1h30min")
