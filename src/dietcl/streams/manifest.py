"""The manifest: one Parquet table that says where each image lies, and its memory-mapped run-time index."""

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError
from dietcl.files import default_cache

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),  # unique
        pa.field("file", pa.string(), nullable=False),  # relative to the manifest's folder, and inside it
        pa.field("offset", pa.int64(), nullable=False),  # row inside a packed .npy file; -1: the file is the image
        pa.field("label", pa.string()),  # null: nobody knows
        pa.field("time", pa.float64()),  # any unit that grows; null: unknown
        pa.field("split", pa.string(), nullable=False),  # train | test
    ]
)
SPLITS = ("train", "test")
_CODES = ("file", "offset", "label", "time", "split")
_FORMAT = 1  # of the index; another number makes old ones be built anew
_OUTSIDE = r"^([/\\]|[A-Za-z]:[/\\])|(^|[/\\])\.\.([/\\]|$)"


class Names:
    """Strings by number in a memory-mapped column: tens of millions of file names take neither memory nor time."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, number: int) -> str:
        name: str = self._column[int(number)].as_py()
        return name


@dataclass(frozen=True)
class Index:
    """The manifest's columns as integer codes in memory-mapped arrays, one entry per row."""

    root: Path
    hash: str
    files: Names
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
    try:
        table = pa.table(columns)
    except pa.ArrowException as error:
        raise UserError(f"{path}: the columns do not make a table ({_line(error)})") from None
    table = _conform(table, path)
    _check(table, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def open_manifest(path: Path) -> Index:
    """Return the run-time index of a manifest; it is built the first time, and again when the manifest changes."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such manifest; give a Parquet file with the columns {', '.join(SCHEMA.names)}")
    try:
        source = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror}); give yourself the right to read it") from None
    with source:
        # Taken from the open file: what is read below is what was stamped, even if the manifest is replaced meanwhile.
        status = os.fstat(source.fileno())
        stamp = f"{_FORMAT}-{status.st_size}-{status.st_mtime_ns}"
        root = path.absolute().parent
        places = [path.with_name(f"{path.stem}.index"), _cached_index(path)]
        for place in places:
            if index := _load_index(place / stamp, root):
                return index
        built = _build_index(source, path)
    for place in places:
        with suppress(OSError):  # a folder that may not be written to, a full disk, or another builder was faster
            _keep_index(built, place, stamp)
        if index := _load_index(place / stamp, root):
            return index
    with tempfile.TemporaryDirectory(prefix="dietcl-index-", ignore_cleanup_errors=True) as folder:
        _write_index(built, Path(folder))
        index = _load_index(Path(folder), root)  # the mapping outlives the folder
    assert index is not None
    return index


def _cached_index(path: Path) -> Path:
    return default_cache() / "indexes" / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Built:
    hash: str
    classes: list[str]
    files: pa.Array
    codes: dict[str, npt.NDArray[Any]]


def _build_index(source: BinaryIO, path: Path) -> _Built:
    try:
        # Further columns may be large (thumbnails, embeddings): they are not even read.
        table = pq.ParquetFile(source).read(columns=SCHEMA.names)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({_line(error)}); write it again") from None
    table = _conform(table, path)
    _check(table, path)
    # 32-bit strings end at 2 GB a column, which long ids or paths of tens of millions of rows exceed.
    file, label = (table[name].cast(pa.large_string()) for name in ("file", "label"))
    files, classes = pc.unique(file), pc.unique(label).drop_null().sort()
    codes = {
        "file": _encode(file, files),
        "offset": table["offset"].to_numpy(),
        "label": _encode(label, classes),
        "time": pc.fill_null(table["time"], float("nan")).to_numpy(),
        "split": _encode(table["split"], pa.array(SPLITS)).astype(np.int8),
    }
    return _Built(_content_hash(table), classes.to_pylist(), files, codes)


def _keep_index(built: _Built, place: Path, stamp: str) -> None:
    """Put an index into its place in one move: whoever reads or builds it at the same time sees all of it or none."""
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=".") as partial:
        folder = Path(partial) / "index"
        folder.mkdir()
        _write_index(built, folder)
        for old in place.iterdir():
            if not old.name.startswith(".") and (old.name != stamp or _load_index(old, place) is None):
                shutil.rmtree(old, ignore_errors=True)
        if not (place / stamp).exists():
            folder.rename(place / stamp)


def _write_index(built: _Built, folder: Path) -> None:
    for name, column in built.codes.items():
        np.save(folder / f"{name}.npy", column)
    files = pa.record_batch([built.files], names=["files"])
    with pa.ipc.new_file(folder / "files.arrow", files.schema) as writer:
        writer.write_batch(files)
    (folder / "index.json").write_text(json.dumps({"hash": built.hash, "classes": built.classes}))


def _load_index(folder: Path, root: Path) -> Index | None:
    """Map an index, or return None if it is not there or not whole."""
    try:
        header = json.loads((folder / "index.json").read_text())
        files = pa.ipc.open_file(pa.memory_map(str(folder / "files.arrow"))).get_batch(0).column(0)
        codes = {name: np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in _CODES}
        return Index(root=root, hash=header["hash"], files=Names(files), classes=tuple(header["classes"]), **codes)
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return None


def _encode(column: pa.ChunkedArray, values: pa.Array) -> npt.NDArray[np.int32]:
    """Return each entry's position among the values (-1 for null)."""
    codes: npt.NDArray[np.int32] = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy()
    return codes


def _conform(table: pa.Table, path: Path) -> pa.Table:
    columns = []
    for field in SCHEMA:
        found = table.column_names.count(field.name)
        if found != 1:
            fault = "is there twice" if found else "is missing"
            raise UserError(f"{path}: column {field.name!r} {fault}; a manifest has {', '.join(SCHEMA.names)}")
        try:
            column = table[field.name].cast(field.type)
        except pa.ArrowException as error:
            kind = table[field.name].type
            raise UserError(
                f"{path}: column {field.name!r} must hold {field.type} and holds {kind} ({_line(error)}); convert it"
            ) from None
        if field.name == "time":
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, field.type), column)
        if not field.nullable and column.null_count:
            row = _first(pc.is_null(column))
            raise UserError(f"{path}: row {row} has no {field.name!r}; fill it in or drop the row")
        columns.append(column)
    return pa.table(columns, schema=SCHEMA)


def _check(table: pa.Table, path: Path) -> None:
    if not len(table):
        raise UserError(f"{path}: the manifest has no rows; give at least one image")
    wrong = {
        "split": (pc.invert(pc.is_in(table["split"], value_set=pa.array(SPLITS))), "use 'train' or 'test'"),
        "offset": (pc.less(table["offset"], -1), "give the image's place in its pack, or -1 for an image file"),
        "file": (pc.match_substring_regex(table["file"], _OUTSIDE), "give a path inside the manifest's folder"),
        "label": (pc.fill_null(pc.equal(table["label"], ""), False), "name the class, or leave it null if unknown"),
        "time": (pc.fill_null(pc.is_inf(table["time"]), False), "give a finite number, or leave it empty"),
    }
    for name, (mask, remedy) in wrong.items():
        if pc.any(mask).as_py():
            row = _first(mask)
            raise UserError(f"{path}: row {row} has {name} {table[name][row].as_py()!r}; {remedy}")
    if pc.count_distinct(table["id"]).as_py() != len(table):
        ids = table["id"].cast(pa.large_string())
        counts = pc.value_counts(ids)
        double = counts.field("values")[_first(pc.greater(counts.field("counts"), 1))]
        first = pc.index(ids, double).as_py()
        row = first + 1 + pc.index(ids.slice(first + 1), double).as_py()
        raise UserError(f"{path}: row {row} repeats the id {double.as_py()!r} of row {first}; ids must be unique")


def _first(mask: pa.ChunkedArray | pa.Array) -> int:
    row: int = pc.index(mask, True).as_py()
    return row


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _content_hash(table: pa.Table) -> str:
    """Hash the values, not the file: compression, row groups, chunks and further columns do not matter."""
    digest = hashlib.sha256()
    for field, column in zip(SCHEMA, table.columns, strict=True):
        # Three digests a column, because where one chunk ends and the next begins must not show.
        valid, size, content = (hashlib.sha256() for _ in range(3))
        for chunk in column.chunks:
            valid.update(chunk.is_valid().to_numpy(zero_copy_only=False))
            known = chunk.drop_null()  # what lies under a null is not a value
            if pa.types.is_string(field.type):
                size.update(pc.binary_length(known).to_numpy().astype("<i8"))
                content.update(_text(known))
            else:
                plain = "<f8" if pa.types.is_floating(field.type) else "<i8"
                content.update(known.to_numpy().astype(plain) + 0)  # so that -0.0 is 0.0
        for part in (valid, size, content):
            digest.update(part.digest())
    return digest.hexdigest()


def _text(strings: pa.StringArray) -> pa.Buffer | bytes:
    """Return the bytes of all strings, one after the other; the array may be a slice but has no nulls."""
    _, bounds, text = strings.buffers()
    if not len(strings) or text is None:
        return b""
    edges = np.frombuffer(bounds, np.int32, len(strings) + 1, strings.offset * 4)
    return text.slice(int(edges[0]), int(edges[-1] - edges[0]))
