"""The index: a manifest's columns as memory-mapped arrays, built once and opened in no time."""

import bisect
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError, reason
from dietcl.files import default_cache, scratch
from dietcl.streams.manifest import SCHEMA, SPLITS, ContentHash, batches, check, read_facts, repeated
from dietcl.streams.text import fingerprints

_COLUMNS: dict[str, np.dtype[Any]] = {
    "file": np.dtype("<i4"),
    "offset": np.dtype("<i8"),
    "length": np.dtype("<i8"),
    "label": np.dtype("<i4"),
    "time": np.dtype("<f8"),
    "split": np.dtype("i1"),
}
_FORMAT = 2  # of the index; another number makes old ones be built anew


class Names:
    """Strings by number in memory-mapped columns: tens of millions of file names take neither memory nor time."""

    def __init__(self, columns: list[pa.Array]) -> None:
        self._columns = columns
        self._starts = np.cumsum([0, *(len(column) for column in columns)]).tolist()

    def __len__(self) -> int:
        length: int = self._starts[-1]
        return length

    def __getitem__(self, number: int) -> str:
        part = bisect.bisect_right(self._starts, int(number)) - 1
        name: str = self._columns[part][int(number) - self._starts[part]].as_py()
        return name


@dataclass(frozen=True)
class Index:
    """The manifest's columns as integer codes in memory-mapped arrays, one entry per row."""

    root: Path | str  # a folder, or an address that fsspec reaches
    hash: str
    files: Names  # one file may stand there several times
    classes: tuple[str, ...]
    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]  # -1: none
    label: npt.NDArray[np.int32]  # -1: unknown
    time: npt.NDArray[np.float64]  # nan: unknown
    split: npt.NDArray[np.int8]  # position in SPLITS
    folder: Path | None = None  # where the index itself lies, if it is kept

    def __len__(self) -> int:
        return len(self.file)


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
        stamp = f"{_FORMAT}-{status.st_size}-{status.st_mtime_ns}-{_footer(source)}"
        root = _root(path)
        places = [path.with_name(f"{path.stem}.index"), _cached_index(path)]
        for place in places:
            if index := _load(place / stamp, root):
                return index
        for place in places:
            with suppress(OSError):  # a folder that may not be written to, a full disk, or another builder was faster
                _keep(source, path, place, stamp)
            if index := _load(place / stamp, root):
                return index
        with tempfile.TemporaryDirectory(prefix="dietcl-index-", ignore_cleanup_errors=True) as folder:
            _build(source, path, Path(folder))
            index = _load(Path(folder), root)  # the mapping outlives the folder
    assert index is not None
    return replace(index, folder=None)


def _footer(source: BinaryIO) -> str:
    """Hash the end of a Parquet file, which tells files of one size and one time apart."""
    source.seek(-min(2**16, source.seek(0, os.SEEK_END)), os.SEEK_END)
    return hashlib.sha256(source.read()).hexdigest()[:8]


def _root(path: Path) -> Path | str:
    root = read_facts(path).root
    return root if "://" in root else path.absolute().parent / root


def _cached_index(path: Path) -> Path:
    return default_cache() / "indexes" / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]


def _keep(source: BinaryIO, path: Path, place: Path, stamp: str) -> None:
    """Put an index into its place in one move: whoever reads or builds it at the same time sees all of it or none."""
    place.mkdir(parents=True, exist_ok=True)
    with _empty_removed(place), scratch(place) as partial:
        folder = partial / "index"
        folder.mkdir()
        _build(source, path, folder)
        for old in place.iterdir():
            if not old.name.startswith(".") and (old.name != stamp or _load(old, place) is None):
                shutil.rmtree(old, ignore_errors=True)
        if not (place / stamp).exists():
            folder.rename(place / stamp)


@contextmanager
def _empty_removed(place: Path) -> Iterator[None]:
    """Remove a folder in which nothing came to lie."""
    try:
        yield
    finally:
        with suppress(OSError):
            place.rmdir()


def _build(source: BinaryIO, path: Path, folder: Path) -> None:
    """Write the columns of a manifest as arrays, a batch of rows at a time."""
    source.seek(0)
    try:
        file = pq.ParquetFile(source)
        rows = file.metadata.num_rows
        digest, prints = ContentHash(), np.empty(rows, np.uint64)
        classes: dict[str, int] = {}
        done = files = 0
        schema = pa.schema([("files", pa.large_string())])
        with _arrays(folder, rows) as arrays, pa.ipc.new_file(folder / "files.arrow", schema) as names:
            for table in batches(file, path):
                check(table, path, done)
                digest.update(table)
                part = slice(done, done + len(table))
                prints[part] = fingerprints(table["id"].combine_chunks())
                file_codes = table["file"].combine_chunks().dictionary_encode()
                names.write_batch(pa.record_batch([file_codes.dictionary.cast(pa.large_string())], names=["files"]))
                columns = {
                    "file": file_codes.indices.to_numpy() + files,
                    "offset": table["offset"].to_numpy(),
                    "length": pc.fill_null(table["length"], -1).to_numpy(),
                    "label": _codes(table["label"].combine_chunks(), classes),
                    "time": pc.fill_null(table["time"], float("nan")).to_numpy(),
                    "split": pc.index_in(table["split"], value_set=pa.array(SPLITS)).to_numpy(),
                }
                for name, column in columns.items():
                    arrays[name].write(column.astype(_COLUMNS[name]).data)
                done, files = part.stop, files + len(file_codes.dictionary)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the index cannot be written
        advice = "write it again" if path.suffix == ".parquet" else "`dietcl data prepare` makes a manifest of it"
        raise UserError(f"{path}: not a readable Parquet file ({reason(error)}); {advice}") from None
    if not rows:
        raise UserError(f"{path}: the manifest has no rows; give at least one image")
    _refuse_repeated(file, path, prints)
    ordered = sorted(classes)
    _renumber(folder / "label.npy", np.argsort(np.array([classes[name] for name in ordered], np.int64)))
    (folder / "index.json").write_text(json.dumps({"hash": digest.hexdigest(), "classes": ordered}))


@contextmanager
def _arrays(folder: Path, rows: int) -> Iterator[dict[str, BinaryIO]]:
    """Open a .npy file for each column, its header written: appending takes no memory, mapping would."""
    arrays = {name: (folder / f"{name}.npy").open("wb") for name in _COLUMNS}
    try:
        for name, array in arrays.items():
            header = {"descr": _COLUMNS[name].str, "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(array, header)
        yield arrays  # type: ignore[misc]
    finally:
        for array in arrays.values():
            array.close()


def _codes(labels: pa.Array, classes: dict[str, int]) -> npt.NDArray[np.int32]:
    """Return each label's number in the order of appearance (-1 for null), and take note of new ones."""
    encoded = labels.dictionary_encode()
    codes = np.array([classes.setdefault(name, len(classes)) for name in encoded.dictionary.to_pylist()] + [-1])
    chosen: npt.NDArray[np.int32] = codes[pc.fill_null(encoded.indices, len(codes) - 1).to_numpy()].astype(np.int32)
    return chosen


def _renumber(path: Path, place: npt.NDArray[np.int64]) -> None:
    """Give every label the number that its class has in alphabetical order."""
    labels = np.load(path, mmap_mode="r+")
    final = np.append(place, -1).astype(np.int32)
    for start in range(0, len(labels), 2**22):
        labels[start : start + 2**22] = final[labels[start : start + 2**22]]
    labels.flush()


def _refuse_repeated(file: pq.ParquetFile, path: Path, prints: npt.NDArray[np.uint64]) -> None:
    prints.sort()
    double = np.unique(prints[1:][prints[1:] == prints[:-1]])
    if not len(double):
        return
    # Different ids may share a print; only now are they read again, and only those.
    ids = pa.chunked_array([batch.column(0).cast(pa.large_string()) for batch in file.iter_batches(columns=["id"])])
    if pc.count_distinct(ids).as_py() != len(ids):
        raise repeated(path, ids)


def _load(folder: Path, root: Path | str) -> Index | None:
    """Map an index, or return None if it is not there or not whole."""
    try:
        header = json.loads((folder / "index.json").read_text())
        names = pa.ipc.open_file(pa.memory_map(str(folder / "files.arrow")))
        files = Names([names.get_batch(number).column(0) for number in range(names.num_record_batches)])
        codes: dict[str, Any] = {name: _map(folder / f"{name}.npy") for name in _COLUMNS}
        if len({len(column) for column in codes.values()}) > 1:
            return None
        return Index(root, header["hash"], files, tuple(header["classes"]), **codes, folder=folder)
    except (OSError, EOFError, ValueError, TypeError, LookupError, pa.ArrowException):
        return None


def _map(path: Path) -> npt.NDArray[Any]:
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return mapped
