"""Image packs: a zip of WebP strips, split/class/name.webp, each a column of square images of one class."""

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dietcl.errors import UserError
from dietcl.streams.sources.pack import IMAGES, MANIFEST, Progress, prepare_pack


@dataclass(frozen=True, kw_only=True)
class Strips:
    """A zip of WebP strips with a meta.json that gives the side of the squares (`size`)."""

    name: ClassVar[str] = "strips"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20  # unless told otherwise
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    path: Path

    def prepare(self, cache: Path, progress: Progress | None = None) -> Path:
        """Unpack into one array beside a manifest, once."""
        try:
            stamp = self.path.stat()
        except OSError:
            raise UserError(f"{self.path}: no such file; give a .zip of WebP strips") from None
        facts = {"name": self.path.name, "bytes": stamp.st_size, "time": stamp.st_mtime_ns}
        return prepare_pack(cache, self.path.stem, facts, lambda folder: self._unpack(folder, progress))

    def _unpack(self, folder: Path, progress: Progress | None) -> None:
        import numpy as np
        from PIL import Image

        from dietcl.streams.manifest import write_manifest

        try:
            with zipfile.ZipFile(self.path) as pack:
                size = int(json.loads(pack.read("meta.json"))["size"])
                names = sorted(name for name in pack.namelist() if name.endswith(".webp"))
                strips, split, label = [], [], []
                for done, name in enumerate(names, start=1):
                    part, kind, _ = name.split("/")
                    picture = Image.open(io.BytesIO(pack.read(name))).convert("RGB")
                    strip = np.asarray(picture).reshape(-1, size, size, 3)
                    strips.append(strip)
                    split += ["train" if part == "train" else "test"] * len(strip)
                    label += [kind] * len(strip)
                    if progress:
                        progress(done, len(names))
            images = np.concatenate(strips)
        except (zipfile.BadZipFile, KeyError, TypeError, ValueError, OSError) as error:
            raise UserError(f"{self.path}: not a zip of WebP strips with a meta.json ({error})") from None
        np.save(folder / IMAGES, images)
        columns = {
            "id": [str(i) for i in range(len(images))],
            "file": [IMAGES] * len(images),
            "offset": np.arange(len(images)),
            "label": label,
            "time": [None] * len(images),
            "split": split,
        }
        write_manifest(folder / MANIFEST, columns)
