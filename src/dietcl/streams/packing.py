"""How images are packed, as options; free of torch so that the command line starts quickly."""

from dataclasses import dataclass
from typing import Literal

from dietcl.errors import UserError

_SMALL = 64  # pixels; up to here raw squares take little room, and they are read many times faster than JPEGs


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How images are resized and stored."""

    side: int = 224
    """Pixels of the shorter side; smaller images keep their size, except as raw squares."""
    format: Literal["auto", "raw", "jpeg", "webp"] = "auto"
    """raw: uint8 squares from the middle, for small images; jpeg, webp: whole pictures; auto: raw up to 64 pixels."""
    quality: int = 90
    """Quality of JPEG or WebP."""

    def __post_init__(self) -> None:
        if not 8 <= self.side <= 4096:
            raise UserError(f"--side {self.side}: give from 8 to 4096")
        if not 1 <= self.quality <= 100:
            raise UserError(f"--quality {self.quality}: give from 1 to 100")

    @property
    def is_raw(self) -> bool:
        """Whether images become squares of raw pixels."""
        return self.format == "raw" or (self.format == "auto" and self.side <= _SMALL)
