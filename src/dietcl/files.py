"""Where what can be made again is kept, and writing that never leaves half a file."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from dietcl.errors import UserError


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
