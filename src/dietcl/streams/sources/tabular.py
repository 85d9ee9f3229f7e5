"""Rows of CSV and Parquet files some at a time, each with its number."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dietcl.errors import UserError
from dietcl.streams.manifest import line
from dietcl.streams.place import Place

Batch = tuple[npt.NDArray[np.int64], pa.RecordBatch]  # the number of each row, and the rows
Problem = Callable[[int, str], None]  # takes the number of a row and what is wrong with it
_BLOCK = 2**22  # bytes of a CSV file that are parsed together
_HEADER = 2**20  # bytes that a header may have
_BUFFER = 2**20  # bytes of a Parquet column that are fetched at once: a whole row group of images may be gigabytes


def csv_batches(place: Place, name: str, columns: Sequence[str], problem: Problem) -> Iterator[Batch]:
    """Yield columns of a CSV file as strings; the header is row 1, as in a spreadsheet."""
    bad: list[int] = []
    done = 0

    def skip(row: Any) -> str:
        bad.append(row.number)
        problem(row.number, f"the row has another number of fields than the header ({row.actual_columns})")
        return "skip"

    try:
        with place.open(name) as source:
            reader = pa_csv.open_csv(
                source,
                pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK),
                pa_csv.ParseOptions(
                    delimiter=csv_header(place, name)[0],
                    newlines_in_values=True,
                    ignore_empty_lines=False,  # they count as rows, too
                    invalid_row_handler=skip,
                ),
                # Nothing is guessed: 007 stays 007, and what is not UTF-8 costs its row only.
                pa_csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.binary())),
            )
            for batch in reader:
                good = np.arange(done, done + batch.num_rows)
                done += batch.num_rows
                # Good rows before each bad one; the parser may have seen bad ones that come after this batch.
                before = np.array(bad, np.int64) - np.arange(2, 2 + len(bad))
                yield _as_text(good + 2 + np.searchsorted(before, good, side="right"), batch, problem)
    except (pa.ArrowException, OSError, ValueError) as error:
        last = done + len(bad) + 1
        raise UserError(f"{place.path(name)}: not a readable table after row {last} ({line(error)}); mend it") from None


def csv_header(place: Place, name: str) -> tuple[str, list[str]]:
    """Return what parts the fields, and the names of the columns."""
    with place.text(name) as source:
        first = source.readline(_HEADER)
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",", "\t", ";", key=first.count)
    try:
        return delimiter, next(csv.reader([first], delimiter=delimiter), [])
    except csv.Error as error:
        raise UserError(f"{place.path(name)}: has no readable header ({error}); is it a table?") from None


def _as_text(number: npt.NDArray[np.int64], batch: pa.RecordBatch, problem: Problem) -> Batch:
    """Drop rows that are no text, or run over several lines, as they do after an unclosed quote."""
    good = np.ones(len(number), np.bool_)
    try:
        texts = [column.cast(pa.string()) for column in batch.columns]
    except pa.ArrowInvalid:
        values = [column.to_pylist() for column in batch.columns]
        for i, row in enumerate(zip(*values, strict=True)):
            try:
                b"".join(row).decode()
            except UnicodeDecodeError:
                good[i] = False
                problem(int(number[i]), "the row is not UTF-8 text")
        texts = [column.filter(pa.array(good)).cast(pa.string()) for column in batch.columns]
        number, good = number[good], good[good]
    for text in texts:
        good &= ~pc.match_substring(text, "\n").to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(~good).tolist():
        problem(int(number[i]), "the row has a line break inside quotes")
    kept = pa.array(good)
    return number[good], pa.record_batch([text.filter(kept) for text in texts], names=batch.schema.names)


def open_parquet(place: Place, name: str) -> pq.ParquetFile:
    """Open a Parquet file, or say that it is none."""
    source = place.open(name)
    try:
        return pq.ParquetFile(source, buffer_size=_BUFFER)
    except (pa.ArrowException, OSError, ValueError) as error:
        source.close()
        raise UserError(f"{place.path(name)}: not a readable Parquet file ({line(error)}); write it again") from None


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
                f"{place.path(name)}: cannot be read after row {done} ({line(error)}); write it again"
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
