"""A pack: one array of images and its manifest in a cache folder, written once and complete when it appears."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dietcl.files import MANIFEST, make_folder

Progress = Callable[[int, int], None]  # images done, images in all


def prepare_pack(cache: Path, name: str, facts: dict[str, Any], fill: Callable[[Path], object]) -> Path:
    """Return the manifest of the pack that the facts identify, filled in a temporary folder unless it exists."""
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=6).hexdigest()
    folder = cache / f"{name}-{digest}"
    if not (folder / MANIFEST).is_file():
        with tempfile.TemporaryDirectory(dir=make_folder(cache, "set DIETCL_CACHE"), prefix=f".{name}-") as partial:
            fresh = Path(partial) / "pack"
            fresh.mkdir()
            fill(fresh)
            try:
                fresh.rename(folder)
            except OSError:
                # Another process was first; its pack has the same content.
                if not (folder / MANIFEST).is_file():
                    raise
    return folder / MANIFEST
