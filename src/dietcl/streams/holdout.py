"""Test images where a source names none: chosen by their names, so that images added later change nothing."""

from collections.abc import Sequence

import pyarrow as pa

from dietcl.errors import UserError
from dietcl.streams.text import fingerprints


def check_share(share: float) -> None:
    """Refuse what is no share of the images."""
    if not 0 <= share < 1:
        raise UserError(f"--test-share {share}: give a share from 0 to below 1")


def holdout(names: Sequence[str] | pa.Array, share: float) -> list[str]:
    """Return `test` for about this share of the names and `train` for the others."""
    prints = fingerprints(names if isinstance(names, pa.Array) else pa.array(names, pa.string()))
    kept = (prints >> 11) < int(share * 2**53)
    return ["test" if chosen else "train" for chosen in kept]
