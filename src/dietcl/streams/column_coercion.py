"""Converts columns of any source to the types of a manifest, with a sentence for each value that does not fit."""

import datetime
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.errors import UserError, reason

MOST = 2**53  # up to this, doubles tell whole numbers from each other


def whole_numbers(values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return floats as the whole numbers that they were before one was missing (NaN: null), and which are none."""
    found = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        is_whole = (np.abs(found) <= MOST) & (found == np.floor(found))
    return pa.array(np.where(is_whole, found, 0).astype(np.int64), mask=~is_whole), ~is_whole & ~np.isnan(found)


# One value for all rows, or one a row.
Values: TypeAlias = str | Sequence[Any] | npt.NDArray[Any] | Any | None  # the last one stands for Arrow arrays
Faults = dict[int, str]
NO_TIME = "the time is neither a number nor a date"
_EXIF_DATE = re.compile(r"^(\d{4}):(\d\d):(?=\d\d\b)")  # 2020:02:01, as cameras write it


def labels(values: Values, count: int) -> tuple[pa.Array, Faults]:
    """Return class names (null: unknown); a label is a string or a whole number, and nothing else."""
    if values is None:
        return pa.nulls(count, pa.string()), {}
    if isinstance(values, str):
        values = [values] * count
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufU":
        values = pa.array(values)
    if isinstance(values, pa.Array):
        names: Any = _plain(values)
        if pa.types.is_string(names.type) or pa.types.is_integer(names.type):
            names = names.cast(pa.string())
            return pc.if_else(pc.equal(names, ""), pa.scalar(None, pa.string()), names), {}
        fault = f"the label is neither a string nor a whole number (it is {names.type})"
        if pa.types.is_floating(names.type):
            whole, odd = whole_numbers(names)
            return whole.cast(pa.string()), dict.fromkeys(np.flatnonzero(odd).tolist(), fault)
        # Not converted to Python's values, which is impossible for nanoseconds, for one.
        known = np.flatnonzero(~names.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))
        return pa.nulls(count, pa.string()), dict.fromkeys(known.tolist(), fault)
    faults: Faults = {}
    found: list[str | None] = []
    for row, value in enumerate(values):
        if _is_missing(value):
            found.append(None)
        elif isinstance(value, str):
            found.append(_utf8(value))
        elif isinstance(value, int | np.integer) and not isinstance(value, bool):
            found.append(str(value))
        elif isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) <= MOST:
            found.append(str(int(value)))
        else:
            found.append(None)
            faults[row] = f"the label is neither a string nor a whole number (it is {type(value).__name__})"
    return pa.array(found, pa.string()), faults


def times(values: Values, count: int) -> tuple[pa.Array, Faults]:
    """Return times as numbers (null: unknown); dates become seconds since 1970 in UTC."""
    if values is None:
        return pa.nulls(count, pa.float64()), {}
    if isinstance(values, pa.Array):
        values = _moments(_plain(values))
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        numbers = values.astype(np.float64)
        faults = {int(row): "the time is not finite" for row in np.flatnonzero(np.isinf(numbers))}
        return pa.array(np.where(np.isinf(numbers), np.nan, numbers), from_pandas=True), faults
    found, faults = [], {}
    for row, value in enumerate(values.to_pylist() if isinstance(values, pa.Array) else values):
        number = _time(value)
        found.append(None if number is None or not math.isfinite(number) else number)
        if number is not None and not math.isfinite(number):
            faults[row] = f"{NO_TIME} ({str(value)[:40]!r})"
    return pa.array(found, pa.float64()), faults


def check_time_format(text: str) -> None:
    """Refuse a --time-format that strptime cannot parse."""
    try:
        datetime.datetime.strptime(datetime.datetime(2001, 2, 3, tzinfo=datetime.UTC).strftime(text), text)
    except ValueError as error:
        raise UserError(f"--time-format {text}: not a format for strptime ({reason(error)})") from None


def parse_times(values: pa.Array, text: str) -> tuple[pa.Array, Faults]:
    """Return times in a strptime format as seconds since 1970 (null: no time); without a time zone they are in UTC."""
    distinct = pc.fill_null(_plain(values).cast(pa.string()), "").dictionary_encode()
    found, faults = [], {}
    for code, value in enumerate(distinct.dictionary.to_pylist()):
        try:
            found.append(_time(datetime.datetime.strptime(value.strip(), text)) if value else None)
        except ValueError:
            found.append(None)
            for row in np.flatnonzero(pc.equal(distinct.indices, code)).tolist():
                faults[row] = f"the time is not in the given format ({value[:40]!r})"
    return pa.array(found, pa.float64()).take(distinct.indices), faults


def _moments(values: Any) -> Any:
    """Convert an Arrow array to numbers where its type allows it."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return values.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(kind):  # an hour or a duration is not a moment
        return pc.if_else(values.is_valid(), str(kind), pa.scalar(None, pa.string()))
    return values


def _time(value: Any) -> float | None:
    """Return a number, None for no time, or infinity for what is neither."""
    if _is_missing(value):
        return None
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(value, datetime.date):
        return _time(datetime.datetime.combine(value, datetime.time()))
    with suppress(TypeError, ValueError, OverflowError):
        return math.inf if isinstance(value, bool) else float(value)
    with suppress(TypeError, ValueError):
        return _time(datetime.datetime.fromisoformat(_EXIF_DATE.sub(r"\1-\2-", value)))
    return math.inf


def _plain(values: pa.Array) -> pa.Array:
    """Undo encodings that only save space: categories, and the wider kinds of strings."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    wide = pa.types.is_large_string(values.type) or str(values.type) == "string_view"
    return values.cast(pa.string()) if wide else values


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value)


def texts(values: Values, count: int) -> pa.Array:
    """Return strings, one a row."""
    if isinstance(values, str):
        return pa.array([values]).take(pa.array(np.zeros(count, np.int32)))
    if isinstance(values, pa.Array):
        return values.cast(pa.string())
    try:
        return pa.array(values).cast(pa.string())
    except UnicodeEncodeError:  # names of files may be any bytes
        return pa.array([_utf8(value) for value in values or ()], pa.string())


def numbers(values: Values, count: int, default: int | None) -> pa.Array:
    """Return whole numbers, one a row."""
    return pa.array([default] * count if values is None else values, pa.int64())


def default_ids(file: pa.Array, offset: pa.Array) -> pa.Array:
    """Identify an image by its path, and by its offset if others are in the same file."""
    if pc.all(pc.equal(offset, -1)).as_py():
        return file
    return pc.binary_join_element_wise(file, offset.cast(pa.string()), "#")
