"""Where what can be made again is kept, and writing that never leaves half a file."""

import json
import os
from pathlib import Path
from typing import Any


def default_cache() -> Path:
    """Return the folder for what can be made again: $DIETCL_CACHE, or ~/.cache/dietcl."""
    return Path(os.environ.get("DIETCL_CACHE") or Path.home() / ".cache" / "dietcl").expanduser()


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside its place and rename it there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
