"""The manifest: one Parquet table with the file, label and time of each image."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError, reason
from dietcl.streams.column_coercion import whole_numbers

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # unique
        pa.field("file", pa.string(), nullable=False),  # relative to the manifest's root, and inside it
        pa.field("offset", pa.int64(), nullable=False),  # row of a packed .npy file, or first byte; -1: all of the file
        pa.field("label", pa.string()),  # null: nobody knows
        pa.field("time", pa.float64()),  # any unit that grows; null: unknown
        pa.field("split", pa.string(), nullable=False),  # train | test
        pa.field("length", pa.int64()),  # bytes of an encoded image inside its file; may be missing, as it once was
    ]
)
SPLITS = ("train", "test")
BATCH = 2**19  # rows that are processed together: tens of millions are never in memory at once
_FACTS = b"dietcl"
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_OUTSIDE = r"^([/\\]|[A-Za-z]:[/\\])|(^|[/\\])\.\.([/\\]|$)"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a manifest states: where its files are, and how its stream is cut by default."""

    root: str = "."  # a folder, relative to the manifest's or absolute, or an address such as s3://bucket/photos
    source: str | None = None
    recipe: str = "class"
    time_steps: int = 20
    cut: str = "count"
    label_rate: float = 1.0
    mirror: bool = True


def read_facts(path: Path) -> Facts:
    """Return the facts of a manifest, or the defaults."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
        facts = Facts(**json.loads(metadata.get(_FACTS, b"{}")))
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return Facts()  # what is wrong with it is reported when it is opened
    if not isinstance(facts.root, str):
        raise UserError(f"{path}: names {facts.root!r} as its root, which is not a folder; prepare the data again")
    return facts


class Writer:
    """Writes a manifest batch by batch under a temporary name, and renames it when it is complete."""

    def __init__(self, path: Path, facts: Facts | None = None) -> None:
        self.path = path
        self.facts = facts  # may be replaced until the end
        self.rows = 0
        self._waiting: list[pa.Table] = []  # a row group of its own for each few rows would be slow to read
        path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = path.with_name(f".{path.name}.{os.getpid()}")
        self._writer = pq.ParquetWriter(self._partial, SCHEMA, compression="zstd")

    def __enter__(self) -> "Writer":
        return self

    def write(self, columns: dict[str, Any] | pa.Table) -> None:
        """Append rows."""
        try:
            table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        except pa.ArrowException as error:
            raise UserError(f"{self.path}: the columns do not make a table ({reason(error)})") from None
        table = conform(table, self.path, self.rows)
        check(table, self.path, self.rows)
        self._waiting.append(table)
        self.rows += len(table)
        if sum(map(len, self._waiting)) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
            if self.facts:
                self._writer.add_key_value_metadata({_FACTS: json.dumps(asdict(self.facts))})
        self._writer.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)


def write_manifest(path: Path, columns: dict[str, Any], facts: Facts | None = None) -> Path:
    """Write columns that follow SCHEMA as a Parquet manifest."""
    with Writer(path, facts) as writer:
        writer.write(columns)
        if not writer.rows:
            raise UserError(f"{path}: the manifest has no rows; give at least one image")
        refuse_repeated(pa.table(columns)["id"].cast(pa.large_string()), path)
    return path


def conform(table: pa.Table, path: Path, first: int = 0) -> pa.Table:
    """Return the manifest's columns in their order and types; rows count from `first`."""
    columns = []
    for field in SCHEMA:
        found = table.column_names.count(field.name)
        if not found and field.name == "length":
            columns.append(pa.nulls(len(table), field.type))
            continue
        if found != 1:
            fault = "occurs twice" if found else "is missing"
            raise UserError(f"{path}: column {field.name!r} {fault}; a manifest has {', '.join(SCHEMA.names)}")
        try:
            given = table[field.name]
            column = (_named(given, path, first) if field.name == "label" else given).cast(field.type)
        except pa.ArrowException as error:
            fault = f"must hold {field.type} and holds {given.type} ({reason(error)})"
            raise UserError(f"{path}: column {field.name!r} {fault}; convert it") from None
        if field.name == "time":
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, field.type), column)
        columns.append(column)
    return pa.table(columns, schema=SCHEMA)


def _named(labels: pa.ChunkedArray, path: Path, first: int) -> pa.ChunkedArray | pa.Array:
    """Return labels that can be written as class names: floats only as the whole numbers that they must be."""
    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(labels.type.value_type)
    if pa.types.is_boolean(labels.type):
        raise UserError(f"{path}: column 'label' must hold string and holds bool; name the classes")
    if not pa.types.is_floating(labels.type):
        return labels
    whole, odd = whole_numbers(labels.combine_chunks())
    if odd.any():
        row = int(odd.argmax())
        raise UserError(f"{path}: row {first + row} has label {labels[row].as_py()!r}; give a name or a whole number")
    return whole


def check(table: pa.Table, path: Path, first: int = 0) -> None:
    """Refuse rows that no manifest may have; they are counted from `first`."""
    for field in SCHEMA:
        if not field.nullable and table[field.name].null_count:
            row = pc.index(pc.is_null(table[field.name]), True).as_py()
            raise UserError(f"{path}: row {first + row} has no {field.name!r}; fill it in or drop the row")
    wrong = {
        "split": (pc.invert(pc.is_in(table["split"], value_set=pa.array(SPLITS))), "use 'train' or 'test'"),
        "offset": (pc.less(table["offset"], -1), "give the image's place in its pack, or -1 for an image file"),
        "file": (outside(table["file"]), "give a path inside the manifest's folder"),
        "label": (pc.equal(table["label"], ""), "name the class, or leave it null if unknown"),
        "time": (pc.is_inf(table["time"]), "give a finite number, or leave it empty"),
        "length": (pc.less(table["length"], 1), "give the number of the image's bytes, or leave it null"),
    }
    for name, (mask, remedy) in wrong.items():
        if pc.any(mask).as_py():
            row = pc.index(mask, True).as_py()
            raise UserError(f"{path}: row {first + row} has {name} {table[name][row].as_py()!r}; {remedy}")


def label_codes(labels: pa.Array, classes: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return the number of each label's class (-1 for null); new classes are added in the order of appearance."""
    encoded = labels.dictionary_encode()
    codes = [classes.setdefault(name, len(classes)) for name in encoded.dictionary.to_pylist()]
    positions: npt.NDArray[np.int32] = pc.fill_null(encoded.indices, len(codes)).to_numpy()
    return np.array([*codes, -1], np.int32)[positions]


def outside(files: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return for each path whether it is absolute or leads out of its folder."""
    return pc.match_substring_regex(files, _OUTSIDE)


def refuse_repeated(ids: pa.ChunkedArray, path: Path) -> None:
    """Refuse ids of which one occurs twice."""
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    counts = pc.value_counts(ids)
    double = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()]
    first = pc.index(ids, double).as_py()
    row = first + 1 + pc.index(ids.slice(first + 1), double).as_py()
    raise UserError(f"{path}: row {row} repeats the id {double.as_py()!r} of row {first}; ids must be unique")


class ContentHash:
    """Hashes the values, not the file: compression, row groups, chunks and further columns do not matter."""

    def __init__(self) -> None:
        # Three digests a column, because where one chunk ends and the next begins must not show.
        self._digests = {name: tuple(hashlib.sha256() for _ in range(3)) for name in SCHEMA.names}
        self._lengths = False

    def update(self, table: pa.Table) -> None:
        """Add the next rows of a table that conforms."""
        self._lengths |= table["length"].null_count < len(table)
        for field, column in zip(SCHEMA, table.columns, strict=True):
            valid, size, content = self._digests[field.name]
            for chunk in column.chunks:
                valid.update(chunk.is_valid().to_numpy(zero_copy_only=False))
                known = chunk.drop_null()  # the bytes under a null are arbitrary
                if pa.types.is_string(field.type):
                    size.update(pc.binary_length(known).to_numpy().astype("<i8"))
                    content.update(_string_bytes(known)[1].data)
                else:
                    plain = "<f8" if pa.types.is_floating(field.type) else "<i8"
                    content.update(known.to_numpy().astype(plain) + 0)  # so that -0.0 is 0.0

    def hexdigest(self) -> str:
        """Return the hash of all rows; a table without lengths hashes as if there were no such column."""
        digest = hashlib.sha256()
        for name, parts in self._digests.items():
            if name != "length" or self._lengths:
                for part in parts:
                    digest.update(part.digest())
        return digest.hexdigest()


def fingerprints(strings: pa.Array) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each string of an array without nulls, to find repeated ones among tens of millions."""
    edges, text = _string_bytes(strings)
    start, size = edges[:-1] - edges[0], np.diff(edges)
    padded = np.append(text, np.zeros(8, np.uint8))  # the last string's last word ends past its end
    words = np.ndarray(len(text) + 1, np.uint64, padded, strides=(1,))  # the eight bytes from each byte on
    found = _mixed(size.astype(np.uint64))
    rows = np.flatnonzero(size > 0)
    done = 0
    while len(rows):
        word = words[start[rows] + done]
        left = size[rows] - done
        short = left < 8
        word[short] &= (np.uint64(1) << (8 * left[short]).astype(np.uint64)) - np.uint64(1)
        found[rows] = _mixed(found[rows] ^ word)
        done += 8
        rows = rows[left > 8]
    return found


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(32))) * _PRIME
    return values ^ (values >> np.uint64(29))


def _string_bytes(strings: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each string begins and the last one ends, and the bytes of all; there must be no nulls."""
    if not len(strings):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    strings = strings.cast(pa.large_string())
    _, bounds, text = strings.buffers()
    edges = np.frombuffer(bounds, np.int64, len(strings) + 1, strings.offset * 8)
    return edges, np.frombuffer(text or b"", np.uint8)[edges[0] : edges[-1]]


def batches(file: pq.ParquetFile, path: Path) -> Iterable[pa.Table]:
    """Yield the manifest's columns in batches of rows; other columns may be large and are not read."""
    conform(file.schema_arrow.empty_table(), path)
    names = [name for name in SCHEMA.names if name in file.schema_arrow.names]
    done = 0
    for batch in file.iter_batches(BATCH, columns=names):
        yield conform(pa.Table.from_batches([batch]), path, done)
        done += len(batch)
