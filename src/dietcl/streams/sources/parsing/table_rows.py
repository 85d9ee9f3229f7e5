"""Rows of CSV and Parquet files, a batch at a time, each with its number."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import compress
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dietcl.errors import UserError, reason
from dietcl.streams.filesystem import FileRoot

Numbers = npt.NDArray[np.int64]
Batch = tuple[Numbers, pa.RecordBatch]  # the number of each row, and the rows
Problem = Callable[[int, str], None]  # takes the number of a row and what is wrong with it
_BUFFER = 2**20  # bytes of a Parquet column that are fetched at once: a row group of images may be gigabytes
_BLOCK = 2**22  # bytes of a CSV file that are parsed together
_LONGEST = 2**24  # bytes that a line may have
_HEADER = 2**20  # bytes that a header may have


def open_parquet(file_root: FileRoot, name: str) -> pq.ParquetFile:
    """Open a Parquet file."""
    source = file_root.open(name)
    try:
        return pq.ParquetFile(source, buffer_size=_BUFFER)
    except (pa.ArrowException, OSError, ValueError) as error:
        source.close()
        fault = f"not a readable Parquet file ({reason(error)})"
        raise UserError(f"{file_root.path(name)}: {fault}; write it again") from None


def parquet_batches(file_root: FileRoot, name: str, columns: Sequence[str], rows: int = 2**17) -> Iterator[Batch]:
    """Yield columns of a Parquet file in their own types; rows are numbered from 0."""
    done = 0
    with open_parquet(file_root, name) as file:
        try:
            for batch in file.iter_batches(rows, columns=list(columns)):
                yield np.arange(done, done + batch.num_rows), batch.select(columns)
                done += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            fault = f"cannot be read after row {done} ({reason(error)})"
            raise UserError(f"{file_root.path(name)}: {fault}; write it again") from None


def parquet_schema(file_root: FileRoot, name: str) -> pa.Schema | None:
    """Return the schema of a Parquet file; None for any other file."""
    try:
        with open_parquet(file_root, name) as file:
            return file.schema_arrow
    except UserError:
        return None


def columns_of(reader: Any, roles: Sequence[str], there: Sequence[str], path: str) -> dict[str, str]:
    """Return the column of each role; the first role and those that the user named are required."""
    usual = {field.name: field.default for field in fields(reader)}
    columns = {}
    for role in roles:
        column = getattr(reader, role)
        count = there.count(column)
        if count > 1 or (not count and (role == roles[0] or column != usual[role])):
            fault = "occurs twice" if count else "is missing"
            known = ", ".join(map(repr, there[:20])) or "none"
            raise UserError(f"{path}: column {column!r} {fault}; its columns are {known}: choose one with --{role}")
        if count:
            columns[role] = column
    return columns


def csv_batches(file_root: FileRoot, name: str, columns: Sequence[str], problem: Problem) -> Iterator[Batch]:
    """Yield columns of a CSV file as strings; rows are numbered by their lines, and the header is row 1."""
    delimiter, header = csv_header(file_root, name)
    wanted = [header.index(column) for column in columns]
    quotes = _Quotes(delimiter)
    done = 0
    try:
        with file_root.open(name) as source:
            for lines in _lines(source):
                number = np.arange(done + 1, done + 1 + len(lines))
                good = quotes.match(lines)
                for row in number[~good].tolist():
                    problem(row, "the row has quotes that do not match, or a line break inside them")
                good &= number > 1
                done += len(lines)
                if good.any():
                    kept = list(compress(lines, good))
                    for rows, table in _parse(number[good], kept, delimiter, len(header), wanted, problem):
                        yield _as_text(rows, table.rename_columns(columns), problem)
    except (OSError, ValueError) as error:
        fault = f"not a readable table after row {done} ({reason(error)})"
        raise UserError(f"{file_root.path(name)}: {fault}; correct it") from None


def csv_header(file_root: FileRoot, name: str) -> tuple[str, list[str]]:
    """Return the delimiter and the names of the columns."""
    with file_root.text(name) as source:
        first = source.readline(_HEADER)
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",", "\t", ";", key=first.count)
    try:
        # Strict: otherwise a column whose name has a stray quote would silently be missed.
        return delimiter, next(csv.reader([first], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise UserError(f"{file_root.path(name)}: has no readable header ({error}); is it a table?") from None


def _lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield some lines at a time without their ends, which may be LF, CRLF or CR."""
    rest = b""
    while read := source.read(_BLOCK):
        data = rest + read
        held = b"\r" if data.endswith(b"\r") else b""  # perhaps half a line end
        *lines, rest = data.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if lines:
            yield lines
        rest += held
        if len(rest) > _LONGEST:
            raise ValueError(f"a line of more than {_LONGEST:,} bytes")
    if rest:
        yield [rest.removesuffix(b"\r")]


class _Quotes:
    """Tells which lines are rows: to a parser, a quote that is not closed swallows all that follows."""

    def __init__(self, delimiter: str) -> None:
        plain = rf'[^"{delimiter}]'
        quoted = r'"(?:[^"]|"")*"'
        # Inside a field that does not begin with one, a quote is a character like any other, as in: 5" nails.
        loose, strict = (f"(?:{quoted}|{plain}{more}*)?" for more in (f"[^{delimiter}]", plain))
        self._row, self._strict = (rf"^{field}(?:{delimiter}{field})*$" for field in (loose, strict))
        self._is_open = False

    def match(self, lines: list[bytes]) -> npt.NDArray[np.bool_]:
        """Return which of the next lines are rows; those without quotes always are."""
        good = np.ones(len(lines), np.bool_)
        at = [i for i, line in enumerate(lines) if b'"' in line]
        quoted = pa.array([lines[i] for i in at], pa.binary())
        is_row, is_strict = (
            pc.match_substring_regex(quoted, pattern).to_numpy(zero_copy_only=False)
            for pattern in (self._row, self._strict)
        )
        # The first quote after an open one may close it, and its line be the end of a row rather than a row.
        is_open = np.concatenate([[self._is_open], ~is_row])
        good[at] = is_row & (is_strict | ~is_open[:-1])
        self._is_open = bool(is_open[-1])
        return good


def _parse(
    number: Numbers, lines: list[bytes], delimiter: str, width: int, wanted: list[int], problem: Problem
) -> Iterator[Batch]:
    """Yield the wanted columns of lines, with the numbers of their rows, and check that each line became one row."""
    names = [str(column) for column in range(width)]  # those in the header may be there twice
    skipped: dict[int, int] = {}  # position of a line -> the number of its fields
    data = b"\n".join([*lines, b""])

    def skip(row: Any) -> str:
        skipped[row.number - 1] = row.actual_columns
        return "skip"

    try:
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            # Empty lines are rows, too.
            pa_csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False, invalid_row_handler=skip),
            # Nothing is guessed: 007 stays 007, and what is not UTF-8 costs its row only.
            pa_csv.ConvertOptions(
                include_columns=[names[column] for column in wanted], column_types=dict.fromkeys(names, pa.binary())
            ),
        )
    except pa.ArrowException:
        table = None
    if table is not None and len(table) + len(skipped) == len(lines):
        for i, count in skipped.items():
            problem(int(number[i]), f"the row has another number of fields than the header ({count})")
        for batch in table.combine_chunks().to_batches():
            yield np.delete(number, list(skipped)), batch
    elif len(lines) == 1:
        problem(int(number[0]), "the row cannot be parsed")
    else:  # no known input leads to this; if one does, it must not take other rows with it
        for half in (slice(len(lines) // 2), slice(len(lines) // 2, None)):
            yield from _parse(number[half], lines[half], delimiter, width, wanted, problem)


def _as_text(number: Numbers, table: pa.RecordBatch, problem: Problem) -> Batch:
    """Decode bytes to strings, without the rows that are not text."""
    try:
        return number, pa.record_batch([column.cast(pa.string()) for column in table.columns], table.schema.names)
    except pa.ArrowInvalid:
        rows = (b",".join(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))
        good = np.array([row.decode(errors="ignore").encode() == row for row in rows])
    for row in number[~good].tolist():
        problem(row, "the row is not UTF-8 text")
    return _as_text(number[good], table.filter(pa.array(good)), problem)
