"""Atomic writes, folders with one writer, scratch folders and the cache folder."""

import errno
import hashlib
import io
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir

from dietcl.errors import UserError, reason

if TYPE_CHECKING:
    import numpy as np

# Files of a folder of prepared images.
MANIFEST, IMAGES = "manifest.parquet", "images.npy"
LOCK = ".lock"
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}


def default_cache() -> Path:
    """Return the cache folder: $DIETCL_CACHE, or the user's cache folder of the system (~/.cache/dietcl on Linux)."""
    return Path(os.environ.get("DIETCL_CACHE") or user_cache_dir("dietcl", appauthor=False)).expanduser()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a run's folder; empty if there is none."""
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        raise UserError(f"{path}: not readable as JSON; choose another --out") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: is not a run configuration; choose another --out")
    return found


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: under a temporary name, synced, then renamed; a failed write leaves nothing behind."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # So that the new name survives a loss of power; not every system can sync a folder.
    with suppress(OSError, AttributeError):
        descriptor = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]") -> None:
    """Write named arrays atomically as a compressed .npz."""
    import numpy as np

    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    write_bytes(path, stream.getvalue())


def make_folder(path: Path, advice: str = "choose another --out") -> Path:
    """Create a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be created ({error.strerror}); {advice}") from None
    return path


def digest(path: Path) -> str:
    """Return a hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL | _NOT_WRITABLE:
            raise
        advice = "free some space" if error.errno in _DISK_FULL else "make it writable"
        advice = f"{advice} and repeat the same command: it resumes from the last checkpoint"
        raise UserError(f"{error.filename or folder}: cannot be written ({reason(error)}); {advice}") from None


@contextmanager
def locked(folder: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Hold a folder's lock, which the system releases when the process ends, however it ends."""
    file = folder / LOCK
    # Without locks in the file system, a marker file would outlive a killed process.
    lock = FileLock(file, timeout=0, fallback_to_soft=False, preserve_lock_file=True)
    try:
        lock.acquire()
    except Timeout:
        advice = "wait until it ends, stop it, or choose another --out"
        raise UserError(f"{folder}: {_holder(file)} is writing to it; {advice}") from None
    except OSError as error:
        warn(f"{folder}: cannot be locked ({reason(error)}); make sure that no other process writes to it")
    try:
        with suppress(OSError):  # Windows lets nobody else read or write a locked file
            file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8").strip() or "another process"
    return "another process"


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Create a temporary folder in `parent`, and remove those that killed processes left there."""
    host = socket.gethostname()
    for old in parent.glob(f".scratch-{host}-*"):
        process = old.name.split("-")[-2]
        if process.isdigit() and not _is_running(int(process)):
            shutil.rmtree(old, ignore_errors=True)
    prefix = f".scratch-{host}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process
    return True
