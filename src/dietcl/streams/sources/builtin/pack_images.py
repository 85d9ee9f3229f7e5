"""Fills the packs of the built-in sources; apart from their options, which a command line loads without numpy."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dietcl.errors import UserError
from dietcl.files import IMAGES, MANIFEST
from dietcl.rng import numpy_generator
from dietcl.streams.manifest import write_manifest
from dietcl.streams.sources.builtin.digits import Digits
from dietcl.streams.sources.builtin.glyphs.characters import characters, choose
from dietcl.streams.sources.builtin.glyphs.glyphs import DrawnGlyphs
from dietcl.streams.sources.builtin.glyphs.render import render
from dietcl.streams.sources.builtin.source_cache import Progress

_BLOCK = 256  # images drawn at once


def enlarge_digits(source: Digits, folder: Path, progress: Progress | None) -> None:
    """Enlarge and split the images of scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("digits: scikit-learn is not installed; run: pip install 'dietcl[digits]'") from None
    digits = load_digits()
    small = np.round(digits.images * (255 / 16)).astype(np.uint8)
    large = [Image.fromarray(image).resize((source.size, source.size), Image.Resampling.BICUBIC) for image in small]
    np.save(folder / IMAGES, np.stack([np.asarray(image) for image in large]))
    split = np.full(len(small), "train", dtype=object)
    for digit in range(10):
        rows = numpy_generator(source.seed, source.name, digit).permutation(np.flatnonzero(digits.target == digit))
        split[rows[: round(source.test_share * len(rows))]] = "test"
    _write(folder, [*map(str, range(len(small)))], [*map(str, digits.target)], [None] * len(small), split)
    if progress:
        progress(len(small), len(small))


def draw_glyphs(source: DrawnGlyphs, folder: Path, cache: Path, progress: Progress | None) -> None:
    """Draw every image of every chosen character."""
    pool = getattr(characters(cache), source.pool)
    if source.classes > len(pool):
        raise UserError(f"--source.classes {source.classes}: {source.name} has {len(pool)} characters; give fewer")
    chosen = choose(pool, source.classes, source.seed)
    parts = [("train", i) for i in range(source.per_class)] + [("test", i) for i in range(source.test_per_class)]
    total = len(chosen) * len(parts)
    images = np.lib.format.open_memmap(folder / IMAGES, "w+", np.uint8, (total, source.size, source.size))
    times = np.empty(total)
    for first, character in zip(range(0, total, len(parts)), chosen, strict=True):
        for start in range(0, len(parts), _BLOCK):
            keys = [(source.seed, source.name, character, *part) for part in parts[start : start + _BLOCK]]
            rows = slice(first + start, first + start + len(keys))
            images[rows], times[rows] = render(character, keys, source.size, source.variation, source.drift)
        if progress:
            progress(first + len(parts), total)
    images.flush()
    ids = [f"{ord(character):04X}-{split}-{i}" for character in chosen for split, i in parts]
    label = [f"U+{ord(character):04X} {character}" for character in chosen for _ in parts]
    split = [split for split, _ in parts] * len(chosen)
    _write(folder, ids, label, times if source.drift else [None] * total, split)


def _write(folder: Path, ids: list[str], label: list[str], time: Any, split: Any) -> None:
    columns = {"id": ids, "file": [IMAGES] * len(ids), "offset": range(len(ids))}
    write_manifest(folder / MANIFEST, {**columns, "label": label, "time": time, "split": split})
