"""The index: a manifest's columns as memory-mapped arrays, built once and opened at once afterwards."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError, reason
from dietcl.files import default_cache, scratch
from dietcl.streams import manifest
from dietcl.streams.manifest import SCHEMA, SPLITS

_COLUMNS = {"file": "<i4", "offset": "<i8", "length": "<i8", "label": "<i4", "time": "<f8", "split": "|i1"}
_FORMAT = 2  # of the index; another number makes old ones be rebuilt


class Names:
    """Strings by number in a memory-mapped column: tens of millions of file names need no memory."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __getitem__(self, number: int) -> str:
        return str(self._column[int(number)].as_py())


@dataclass(frozen=True)
class Index:
    """The manifest's columns as integer codes in memory-mapped arrays, one entry per row."""

    root: Path | str  # a folder, or a URL for fsspec
    hash: str
    files: Names  # may repeat
    classes: tuple[str, ...]
    file: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]  # -1: none
    label: npt.NDArray[np.int32]  # -1: unknown
    time: npt.NDArray[np.float64]  # nan: unknown
    split: npt.NDArray[np.int8]  # position in SPLITS
    folder: Path | None = None  # of the index itself, if it is kept

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
        raise UserError(f"{path}: cannot be opened ({error.strerror}); check its permissions") from None
    with source:
        # Taken from the open file: what is read below is what was stamped, even if the manifest is replaced meanwhile.
        status = os.fstat(source.fileno())
        source.seek(max(0, status.st_size - 2**16))
        footer = hashlib.sha256(source.read()).hexdigest()[:8]  # tells files of one size and one time apart
        stamp = f"{_FORMAT}-{status.st_size}-{status.st_mtime_ns}-{footer}"
        stated = manifest.read_facts(path).root
        root = stated if "://" in stated else path.absolute().parent / stated
        cache = default_cache() / "indexes" / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
        folders = [path.with_name(f"{path.stem}.index") / stamp, cache / stamp]
        for folder in folders:
            if index := _load(folder, root):
                return index
        for folder in folders:
            try:
                keep_folder(folder, partial(_build, source, path), lambda kept: _load(kept, root) is not None)
            except OSError:
                pass  # a folder that may not be written to, a full disk, or another builder was faster
            finally:
                with suppress(OSError):
                    folder.parent.rmdir()  # if nothing could be built
            if index := _load(folder, root):
                return index
        with tempfile.TemporaryDirectory(prefix="dietcl-index-", ignore_cleanup_errors=True) as temporary:
            _build(source, path, Path(temporary))
            index = _load(Path(temporary), root)  # the mapping outlives the folder
    assert index is not None
    return replace(index, folder=None)


def keep_folder(target: Path, build: Callable[[Path], None], is_valid: Callable[[Path], bool], others: int = 0) -> None:
    """Build a folder and move it to `target` in one step; of the folders beside it, the newest `others` stay."""
    parent = target.parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch(parent) as work:
        fresh = work / "new"
        fresh.mkdir()
        build(fresh)
        old = [path for path in parent.iterdir() if not path.name.startswith(".") and path != target]
        if others:
            old = sorted(old, key=lambda path: path.stat().st_mtime)[:-others]
        if target.exists() and not is_valid(target):
            old.append(target)
        for path in old:
            shutil.rmtree(path, ignore_errors=True)
        if not target.exists():
            fresh.rename(target)


def create_npy(path: Path, dtype: str, rows: int) -> BinaryIO:
    """Create a .npy file for values to be appended to its header: that takes no memory, mapping would."""
    file = path.open("wb")
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": (rows,)})
    return file


def _build(source: BinaryIO, path: Path, folder: Path) -> None:
    """Write the columns of a manifest as arrays, a batch of rows at a time."""
    source.seek(0)
    try:
        file = pq.ParquetFile(source)
        rows = file.metadata.num_rows
        digest, prints = manifest.ContentHash(), np.empty(rows, np.uint64)
        classes: dict[str, int] = {}
        done = files = 0
        schema = pa.schema([("files", pa.large_string())])
        with ExitStack() as stack, pa.ipc.new_file(folder / "files.arrow", schema) as names:
            arrays = {
                name: stack.enter_context(create_npy(folder / f"{name}.npy", dtype, rows))
                for name, dtype in _COLUMNS.items()
            }
            for table in manifest.batches(file, path):
                manifest.check(table, path, done)
                digest.update(table)
                part = slice(done, done + len(table))
                prints[part] = manifest.fingerprints(table["id"].combine_chunks())
                file_codes = table["file"].combine_chunks().dictionary_encode()
                names.write_batch(pa.record_batch([file_codes.dictionary.cast(pa.large_string())], names=["files"]))
                columns = {
                    "file": file_codes.indices.to_numpy() + files,
                    "offset": table["offset"].to_numpy(),
                    "length": pc.fill_null(table["length"], -1).to_numpy(),
                    "label": manifest.label_codes(table["label"].combine_chunks(), classes),
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
    prints.sort()
    if (prints[1:] == prints[:-1]).any():  # different ids may share a print, so the ids are read again
        ids = [batch.column(0).cast(pa.large_string()) for batch in file.iter_batches(columns=["id"])]
        manifest.refuse_repeated(pa.chunked_array(ids), path)
    # Every label gets the number that its class has in alphabetical order.
    ordered = sorted(classes)
    final = np.append(np.argsort([classes[name] for name in ordered]), -1).astype(np.int32)
    labels = np.load(folder / "label.npy", mmap_mode="r+")
    for start in range(0, rows, 2**22):
        labels[start : start + 2**22] = final[labels[start : start + 2**22]]
    labels.flush()
    (folder / "index.json").write_text(json.dumps({"hash": digest.hexdigest(), "classes": ordered}))


def _load(folder: Path, root: Path | str) -> Index | None:
    """Map an index, or return None if it is missing or incomplete."""
    try:
        header = json.loads((folder / "index.json").read_text())
        names = pa.ipc.open_file(pa.memory_map(str(folder / "files.arrow")))
        files = Names(names.read_all().column(0))
        codes = {name: np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in _COLUMNS}
        if len({len(column) for column in codes.values()}) > 1:
            return None
        return Index(root, header["hash"], files, tuple(header["classes"]), **codes, folder=folder)
    except (OSError, EOFError, ValueError, TypeError, LookupError, pa.ArrowException):
        return None
