"""Rows of Parquet files some at a time, each with its number, and what all kinds of tables share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError, reason
from dietcl.streams.filesystem import Place

Batch = tuple[npt.NDArray[np.int64], pa.RecordBatch]  # the number of each row, and the rows
Problem = Callable[[int, str], None]  # takes the number of a row and what is wrong with it
_BUFFER = 2**20  # bytes of a Parquet column that are fetched at once: a whole row group of images may be gigabytes


def open_parquet(place: Place, name: str) -> pq.ParquetFile:
    """Open a Parquet file, or say that it is none."""
    source = place.open(name)
    try:
        return pq.ParquetFile(source, buffer_size=_BUFFER)
    except (pa.ArrowException, OSError, ValueError) as error:
        source.close()
        raise UserError(f"{place.path(name)}: not a readable Parquet file ({reason(error)}); write it again") from None


def parquet_batches(place: Place, name: str, columns: Sequence[str], rows: int = 2**17) -> Iterator[Batch]:
    """Yield columns of a Parquet file in their own types; rows are numbered from 0."""
    done = 0
    with open_parquet(place, name) as file:
        try:
            for batch in file.iter_batches(rows, columns=list(columns)):
                yield np.arange(done, done + batch.num_rows), batch.select(columns)
                done += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(
                f"{place.path(name)}: cannot be read after row {done} ({reason(error)}); write it again"
            ) from None


def parquet_schema(place: Place, name: str) -> pa.Schema | None:
    """Return the columns of a Parquet file, or None if it is none."""
    try:
        with open_parquet(place, name) as file:
            return file.schema_arrow
    except UserError:
        return None


def columns_of(reader: Any, roles: Sequence[str], there: Sequence[str], path: str) -> dict[str, str]:
    """Return which column plays each role; the first must be there, and so must those that the user named."""
    usual = {field.name: field.default for field in fields(reader)}
    columns = {}
    for role in roles:
        column = getattr(reader, role)
        count = there.count(column)
        if count > 1 or (not count and (role == roles[0] or column != usual[role])):
            fault = "is there twice" if count else "is missing"
            known = ", ".join(map(repr, there[:20])) or "none"
            raise UserError(f"{path}: column {column!r} {fault}; its columns are {known}: choose one with --{role}")
        if count:
            columns[role] = column
    return columns


def has_values(column: pa.Array) -> bool:
    """Tell whether any row has a value; an empty string is none."""
    if pa.types.is_string(column.type):
        return bool(pc.any(pc.not_equal(column, "")).as_py())
    return bool(pc.any(pc.invert(pc.is_null(column, nan_is_null=True))).as_py())
