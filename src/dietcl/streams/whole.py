"""Whole numbers that a table holds as floats because one of them is missing, as those do that pandas writes."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MOST = 2**53  # up to here, doubles tell whole numbers from each other


def whole_numbers(values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return floats as the whole numbers that they were before one was missing (NaN: null), and which are none."""
    found = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        is_whole = (np.abs(found) <= MOST) & (found == np.floor(found))
    return pa.array(np.where(is_whole, found, 0).astype(np.int64), mask=~is_whole), ~is_whole & ~np.isnan(found)
