"""Scikit-learn's handwritten digits."""

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from dietcl.errors import UserError
from dietcl.streams.sources.builtin.source_cache import Progress, prepare_pack
from dietcl.streams.sources.defaults import StreamDefaults

VERSION = 1  # raise it when the same options give other pixels


@dataclass(frozen=True, kw_only=True)
class Digits(StreamDefaults):
    """Handwritten digits (1,797 images of 8 x 8, enlarged); needs scikit-learn."""

    name = "digits"
    time_steps = 5
    label_rate = 0.02
    mirror = False

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
        from dietcl.streams.sources.builtin.pack_images import enlarge_digits

        enlarge_digits(self, folder, progress)
