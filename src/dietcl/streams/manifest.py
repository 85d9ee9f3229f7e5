"""The manifest: one Parquet table that says where each image lies, and its memory-mapped run-time index."""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # unique
        pa.field("file", pa.string(), nullable=False),  # relative to the manifest's folder
        pa.field("offset", pa.int64(), nullable=False),  # row inside a packed .npy file; -1: the file is the image
        pa.field("label", pa.string()),  # null: nobody knows
        pa.field("time", pa.float64()),  # any unit that grows; null: unknown
        pa.field("split", pa.string(), nullable=False),  # train | test
    ]
)
SPLITS = ("train", "test")
_COLUMNS = ("file", "offset", "label", "time", "split")


@dataclass(frozen=True)
class Index:
    """The manifest's columns as integer codes in memory-mapped arrays, one entry per row."""

    root: Path
    hash: str
    files: tuple[str, ...]
    classes: tuple[str, ...]
    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    label: npt.NDArray[np.int32]  # -1: unknown
    time: npt.NDArray[np.float64]  # nan: unknown
    split: npt.NDArray[np.int8]  # position in SPLITS

    def __len__(self) -> int:
        return len(self.file)


def write_manifest(path: Path, columns: dict[str, Any]) -> Path:
    """Write columns that follow SCHEMA as a Parquet manifest."""
    table = _conform(pa.table(columns), path)
    _check(table, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, partial, compression="zstd")
    partial.replace(path)
    return path


def open_manifest(path: Path) -> Index:
    """Return the run-time index of a manifest, building it beside the manifest the first time."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such manifest; give a Parquet file with the columns {', '.join(SCHEMA.names)}")
    stamp = path.stat()
    folder = path.with_name(f"{path.stem}.index")
    header = _read_header(folder)
    if header is None or header["stamp"] != [stamp.st_size, stamp.st_mtime_ns]:
        header = _build_index(path, folder, [stamp.st_size, stamp.st_mtime_ns])
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _COLUMNS}
    return Index(
        root=path.parent,
        hash=header["hash"],
        files=tuple(header["files"]),
        classes=tuple(header["classes"]),
        **columns,
    )


def _read_header(folder: Path) -> dict[str, Any] | None:
    try:
        header: dict[str, Any] = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError):
        return None
    return header


def _build_index(path: Path, folder: Path, stamp: list[int]) -> dict[str, Any]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error}); write it again") from None
    table = _conform(table, path)
    _check(table, path)
    label, classes = _encode(table["label"])
    file, files = _encode(table["file"])
    time = table["time"].combine_chunks().fill_null(float("nan")).to_numpy(zero_copy_only=False)
    split = pc.index_in(table["split"].combine_chunks(), value_set=pa.array(SPLITS)).to_numpy()
    header = {"stamp": stamp, "hash": _content_hash(table), "files": files, "classes": classes}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".index-") as partial:
        np.save(f"{partial}/file.npy", file.astype(np.int32))
        np.save(f"{partial}/offset.npy", table["offset"].to_numpy())
        np.save(f"{partial}/label.npy", label.astype(np.int32))
        np.save(f"{partial}/time.npy", time)
        np.save(f"{partial}/split.npy", split.astype(np.int8))
        (Path(partial) / "index.json").write_text(json.dumps(header))
        folder.mkdir(exist_ok=True)
        # The header is moved last: a folder without one is rebuilt.
        (folder / "index.json").unlink(missing_ok=True)
        for name in [*(f"{column}.npy" for column in _COLUMNS), "index.json"]:
            os.replace(f"{partial}/{name}", folder / name)
    return header


def _encode(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return codes (-1 for null) and the sorted distinct values."""
    values = pc.unique(column).drop_null().sort()
    codes = pc.index_in(column.combine_chunks(), value_set=values).fill_null(-1)
    return codes.to_numpy(zero_copy_only=False), values.to_pylist()


def _conform(table: pa.Table, path: Path) -> pa.Table:
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: column {missing[0]!r} is missing; a manifest has {', '.join(SCHEMA.names)}")
    columns = []
    for field in SCHEMA:
        try:
            column = table[field.name].cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(
                f"{path}: column {field.name!r} must hold {field.type} and holds {table[field.name].type} ({error})"
            ) from None
        if not field.nullable and column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise UserError(f"{path}: row {row} has no {field.name!r}; fill it in or drop the row")
        columns.append(column)
    return pa.table(columns, schema=SCHEMA)


def _check(table: pa.Table, path: Path) -> None:
    if not len(table):
        raise UserError(f"{path}: the manifest has no rows; give at least one image")
    known = pc.is_in(table["split"], value_set=pa.array(SPLITS))
    if not pc.all(known).as_py():
        row = pc.index(known, False).as_py()
        raise UserError(f"{path}: row {row} has split {table['split'][row].as_py()!r}; use 'train' or 'test'")
    if pc.count_distinct(table["id"]).as_py() != len(table):
        counts = pc.value_counts(table["id"].combine_chunks())
        double = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))[0].as_py()
        row = len(table) - 1 - table["id"].to_pylist()[::-1].index(double)
        raise UserError(f"{path}: row {row} repeats the id {double!r}; ids must be unique")
    infinite = pc.fill_null(pc.is_inf(table["time"]), False)
    if pc.any(infinite).as_py():
        raise UserError(f"{path}: row {pc.index(infinite, True).as_py()} has an infinite time; leave it empty instead")


def _content_hash(table: pa.Table) -> str:
    """Hash the values, not the file: compression, row groups and further columns do not matter."""
    digest = hashlib.sha256()
    sink = pa.BufferOutputStream()
    plain = pa.table([column.combine_chunks() for column in table.columns], schema=SCHEMA)
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for batch in plain.to_batches(max_chunksize=1 << 16):
            writer.write_batch(batch)
    digest.update(sink.getvalue())
    return digest.hexdigest()
