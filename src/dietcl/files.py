"""Where what can be made again is kept, and writing that never leaves half a file."""

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

from dietcl.errors import UserError, reason

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import numpy as np

# What a folder of prepared images holds.
MANIFEST, IMAGES = "manifest.parquet", "images.npy"
LOCK = ".lock"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_WAY = {errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}


def default_cache() -> Path:
    """Return the folder for what can be made again: $DIETCL_CACHE, or ~/.cache/dietcl."""
    return Path(os.environ.get("DIETCL_CACHE") or Path.home() / ".cache" / "dietcl").expanduser()


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside its place and rename it there."""
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file beside its place, sync it and rename it there; a full disk gets its room back."""
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
    sync_folder(path.parent)


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]") -> None:
    """Write named arrays as a compressed .npz, beside its place first."""
    import numpy as np

    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    write_bytes(path, stream.getvalue())


def sync_folder(folder: Path) -> None:
    """Make sure that the names of a folder's files outlive a loss of power, where the system knows how."""
    with suppress(OSError, AttributeError):  # some file systems do not
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only process that writes a folder; the lock ends with the process, in whatever way that ends."""
    if fcntl is None:
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(
                f"{folder}: {holder} is at work in it; wait for its end, stop it, or choose another --out"
            ) from None
        except OSError as error:
            say(f"{folder}: cannot be locked ({reason(error)}), so make sure that no other process works in it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def make_folder(path: Path, advice: str = "choose another --out") -> Path:
    """Make a folder and those above it, or say why that cannot be and what to do."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be made a folder ({error.strerror}); {advice}") from None
    return path


def digest(path: Path) -> str:
    """Return a hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """Turn a disk that is full or refuses what is written into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM | _NO_WAY:
            raise
        advice = "make room" if error.errno in _NO_ROOM else "make it writable"
        raise UserError(
            f"{error.filename or folder}: cannot be written ({reason(error)}); {advice} and give the same command "
            "again, it goes on from the last checkpoint"
        ) from None


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Make a folder to work in, where its content will go; what killed processes left of theirs is removed."""
    host = socket.gethostname()
    for old in place.glob(f".scratch-{host}-*"):
        process = old.name.split("-")[-2]
        if process.isdigit() and not _is_running(int(process)):
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        dir=place, prefix=f".scratch-{host}-{os.getpid()}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True
