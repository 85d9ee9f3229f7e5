"""Sources of every shape and kind to pack, and what a pack of them holds."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from dietcl.streams.manifest import Facts, write_manifest

FORMATS = ("jpeg", "webp", "raw")
# File, height and width; every third is a JPEG, and some are smaller than what they are packed to.
SHAPES = [(40, 60), (60, 40), (48, 48), (90, 200), (20, 30), (33, 47), (100, 24), (24, 24), (150, 151), (10, 8)]
BAD = {3: "cut: off.png", 11: "none.png", 12: "words.jpg"}
COUNT = 24
SIDE = 24
FACTS = Facts(
    root="photos", source="made here", recipe="time", time_steps=7, cut="duration", label_rate=0.3, mirror=False
)


def picture(number: int, shape: tuple[int, int] | None = None) -> np.ndarray:
    """A smooth picture with colors of its own in every corner."""
    height, width = shape or SHAPES[number % len(SHAPES)]
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    bands = [200 * x + 20, 200 * y + 30, 128 + 90 * np.sin(3 * x + 2 * y + number)]
    return np.stack(bands, 2).clip(0, 255).astype(np.uint8)


def columns() -> dict[str, Any]:
    """Rows in no order, with and without labels and times, of both splits."""
    names = [BAD.get(i) or f"{'über' if i % 2 else 'a: b'}/{i}.{'jpg' if i % 3 == 0 else 'png'}" for i in range(COUNT)]
    return {
        "id": [f"id {(7 * i) % COUNT}" for i in range(COUNT)],
        "file": names,
        "offset": [-1] * COUNT,
        "label": [None if i % 5 == 0 else f"class {i % 4}" for i in range(COUNT)],
        "time": [None if i % 6 == 0 else 100.0 - i for i in range(COUNT)],
        "split": ["test" if i % 4 == 3 else "train" for i in range(COUNT)],
    }


def make_source(folder: Path, bad: bool = True) -> Path:
    """Write real files and their manifest."""
    rows = columns()
    for i, name in enumerate(rows["file"]):
        if i in BAD and not bad:
            name = rows["file"][i] = f"good{i}.png"
        path = folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == BAD[3]:
            Image.fromarray(picture(i)).save(path)
            path.write_bytes(path.read_bytes()[:-400])
        elif name == "words.jpg":
            path.write_text("These are words.")
        elif name != "none.png":
            Image.fromarray(picture(i)).save(path, quality=98, subsampling=0)
    return write_manifest(folder / "manifest.parquet", rows, FACTS)


def stored(folder: Path) -> list[np.ndarray]:
    """The packed pictures, read without any of our own code but the decoder."""
    rows = pq.read_table(folder / "manifest.parquet").to_pydict()
    found = []
    for file, offset, length in zip(rows["file"], rows["offset"], rows["length"], strict=True):
        if file.endswith(".npy"):
            found.append(np.load(folder / file, mmap_mode="r")[offset])
        else:
            with Image.open(io.BytesIO((folder / file).read_bytes()[offset : offset + length])) as image:
                found.append(np.array(image))
    return found


def psnr(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.mean((found.astype(float) - expected.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def resized(number: int, side: int) -> np.ndarray:
    """What a careful hand would make of a picture."""
    image = Image.fromarray(picture(number))
    shorter = min(image.size)
    if shorter <= side:
        return np.asarray(image)
    width, height = (max(side, round(length * side / shorter)) for length in image.size)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
