"""Scikit-learn's handwritten digits."""

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.files import IMAGES, MANIFEST
from dietcl.streams.sources.builtin.source_cache import Progress, prepare_pack

VERSION = 1  # raise it when the same options give other pixels


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Handwritten digits (1,797 images of 8 x 8, enlarged); needs scikit-learn."""

    name: ClassVar[str] = "digits"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 5  # unless told otherwise
    label_rate: ClassVar[float] = 0.02
    mirror: ClassVar[bool] = False

    test_share: float = 0.25
    """Share of each digit's images that is kept for tests."""
    size: int = 32
    """Side of the images in pixels."""
    seed: int = 0
    """Seed of the split."""

    def prepare(self, cache: Path, progress: Progress | None = None) -> Path:
        """Enlarge and split the images unless the cache has them, and return the manifest's path."""
        if not 0 <= self.test_share < 1:
            raise UserError(f"--source.test-share {self.test_share}: give a share from 0 to below 1")
        if not 8 <= self.size <= 256:
            raise UserError(f"--source.size {self.size}: give from 8 to 256")
        facts = {"options": asdict(self), "versions": [VERSION, version("pillow")]}
        return prepare_pack(cache, self.name, facts, lambda folder: self._fill(folder, progress))

    def _fill(self, folder: Path, progress: Progress | None) -> None:
        import numpy as np
        from PIL import Image

        from dietcl.rng import numpy_generator
        from dietcl.streams.manifest import write_manifest

        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise UserError("digits: scikit-learn is not installed; run: pip install 'dietcl[digits]'") from None
        digits = load_digits()
        small = np.round(digits.images * (255 / 16)).astype(np.uint8)
        large = [Image.fromarray(image).resize((self.size, self.size), Image.Resampling.BICUBIC) for image in small]
        np.save(folder / IMAGES, np.stack([np.asarray(image) for image in large]))
        split = np.full(len(small), "train", dtype=object)
        for digit in range(10):
            rows = numpy_generator(self.seed, self.name, digit).permutation(np.flatnonzero(digits.target == digit))
            split[rows[: round(self.test_share * len(rows))]] = "test"
        columns = {
            "id": [str(row) for row in range(len(small))],
            "file": [IMAGES] * len(small),
            "offset": range(len(small)),
            "label": [str(digit) for digit in digits.target],
            "time": [None] * len(small),
            "split": split,
        }
        write_manifest(folder / MANIFEST, columns)
        if progress:
            progress(len(small), len(small))
