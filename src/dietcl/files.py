"""Where what can be made again is kept, and writing that never leaves half a file."""

import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dietcl.errors import UserError

# What a folder of prepared images holds.
MANIFEST, IMAGES = "manifest.parquet", "images.npy"


def default_cache() -> Path:
    """Return the folder for what can be made again: $DIETCL_CACHE, or ~/.cache/dietcl."""
    return Path(os.environ.get("DIETCL_CACHE") or Path.home() / ".cache" / "dietcl").expanduser()


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside its place and rename it there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


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
