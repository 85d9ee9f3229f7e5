"""Rows of CSV and TSV files some at a time, each with its number; a row is one line, whatever quotes it holds."""

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from dietcl.errors import UserError, reason
from dietcl.streams.filesystem import Place
from dietcl.streams.sources.lines import Quotes, joined, lines
from dietcl.streams.sources.tabular import Batch, Problem

_HEADER = 2**20  # bytes that a header may have


def csv_batches(place: Place, name: str, columns: Sequence[str], problem: Problem) -> Iterator[Batch]:
    """Yield columns of a CSV file as strings; rows are numbered by their lines, and the header is row 1."""
    delimiter, header = csv_header(place, name)
    parser = _Parser(delimiter, len(header), [header.index(column) for column in columns], problem)
    quotes = Quotes(delimiter)
    done = 0
    try:
        with place.open(name) as source:
            for some in lines(source):
                number = np.arange(done + 1, done + 1 + len(some))
                good = quotes.match(some)
                for row in number[~good].tolist():
                    problem(row, "the row has quotes that do not match, or a line break inside them")
                good &= number > 1
                done += len(some)
                for rows, table in parser.rows(number[good], some.filter(pa.array(good))):
                    yield _as_text(rows, table.rename_columns(columns), problem)
    except (OSError, ValueError) as error:
        where = f"{place.path(name)}: not a readable table after row {done}"
        raise UserError(f"{where} ({reason(error)}); mend it") from None


def csv_header(place: Place, name: str) -> tuple[str, list[str]]:
    """Return what parts the fields, and the names of the columns."""
    with place.text(name) as source:
        first = source.readline(_HEADER)
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",", "\t", ";", key=first.count)
    try:
        # Strict: a column whose name has a quote too many would be missed without a word.
        return delimiter, next(csv.reader([first], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise UserError(f"{place.path(name)}: has no readable header ({error}); is it a table?") from None


class _Parser:
    """Makes columns of lines, and checks that each line became one row."""

    def __init__(self, delimiter: str, width: int, wanted: list[int], problem: Problem) -> None:
        self._delimiter, self._problem = delimiter, problem
        self._names = [str(column) for column in range(width)]  # those in the header may be there twice
        # Nothing is guessed: 007 stays 007, and what is not UTF-8 costs its row only.
        self._convert = pa_csv.ConvertOptions(
            include_columns=[self._names[column] for column in wanted],
            column_types=dict.fromkeys(self._names, pa.binary()),
        )

    def rows(self, number: npt.NDArray[np.int64], some: Any) -> Iterator[tuple[npt.NDArray[np.int64], pa.RecordBatch]]:
        """Yield the rows that lines hold, with their numbers."""
        if not len(some):
            return
        table, bad = self._parse(joined(some))
        if table is not None and len(table) + len(bad) == len(some):
            for i, fields in bad.items():
                self._problem(int(number[i]), f"the row has another number of fields than the header ({fields})")
            if len(table):
                yield np.delete(number, list(bad)), table
        elif len(some) == 1:
            self._problem(int(number[0]), "the row cannot be parsed")
        else:  # nothing known leads here; if something does, it must not take other rows with it
            half = len(some) // 2
            yield from self.rows(number[:half], some[:half])
            yield from self.rows(number[half:], some[half:])

    def _parse(self, data: pa.Buffer) -> tuple[pa.RecordBatch | None, dict[int, int]]:
        """Return the rows, and how many fields each of those has that were left out, by place."""
        bad: dict[int, int] = {}

        def skip(row: Any) -> str:
            bad[row.number - 1] = row.actual_columns
            return "skip"

        try:
            table = pa_csv.read_csv(
                pa.BufferReader(data),
                pa_csv.ReadOptions(use_threads=False, block_size=data.size + 1, column_names=self._names),
                # Empty lines are rows, too.
                pa_csv.ParseOptions(delimiter=self._delimiter, ignore_empty_lines=False, invalid_row_handler=skip),
                self._convert,
            )
        except pa.ArrowException:
            return None, bad
        columns = [column.combine_chunks() for column in table.columns]
        return pa.record_batch(columns, names=table.column_names), bad


def _as_text(number: npt.NDArray[np.int64], table: pa.RecordBatch, problem: Problem) -> Batch:
    """Make strings of bytes, without the rows that are no text."""
    try:
        return number, pa.record_batch([column.cast(pa.string()) for column in table.columns], table.schema.names)
    except pa.ArrowInvalid:
        pass
    good = np.ones(len(number), np.bool_)
    for i, row in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True)):
        try:
            for value in row:
                value.decode()
        except UnicodeDecodeError:
            good[i] = False
            problem(int(number[i]), "the row is not UTF-8 text")
    return _as_text(number[good], table.filter(pa.array(good)), problem)
