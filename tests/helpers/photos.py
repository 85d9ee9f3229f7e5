"""The blobs of `tiny` as image files of different shapes, for tests of what reads and crops them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dietcl.streams.manifest import write_manifest

SHAPES = ((20, 30), (30, 20), (16, 16), (40, 36), (17, 23))  # height, width


def photo(number: int, classes: int = 6) -> np.ndarray:
    """A noisy picture whose class is a color and a place."""
    generator = np.random.default_rng(number)
    height, width = SHAPES[number % len(SHAPES)]
    pixels = generator.integers(0, 90, (height, width, 3)).astype(np.uint8)
    code = number % classes
    color = 80 + 40 * np.array([code % 2, code // 2 % 2, code // 4 % 2])
    top, left = (code * (height - 8)) // classes, (code * (width - 8)) // classes
    pixels[top : top + 8, left : left + 8] = color
    return pixels


def photo_columns(classes: int = 6, per_class: int = 20, test_per_class: int = 4) -> dict[str, Any]:
    """The rows of the manifest: one file each."""
    count = classes * (per_class + test_per_class)
    is_train = np.arange(count) < classes * per_class
    return {
        "id": [f"photo{i}" for i in range(count)],
        "file": [f"class {i % classes}/{i}.png" for i in range(count)],
        "offset": [-1] * count,
        "label": [f"class {i % classes}" for i in range(count)],
        "time": np.where(is_train, np.arange(count), np.arange(count) - classes * per_class).astype(float),
        "split": np.where(is_train, "train", "test"),
    }


def write_photos(folder: Path, classes: int = 6, per_class: int = 20, test_per_class: int = 4) -> Path:
    """Write PNG files and their manifest."""
    columns = photo_columns(classes, per_class, test_per_class)
    for number, file in enumerate(columns["file"]):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number, classes)).save(folder / file, compress_level=1)
    return write_manifest(folder / "manifest.parquet", columns)
