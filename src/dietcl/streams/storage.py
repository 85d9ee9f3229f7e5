"""Storage: row numbers -> uint8 images, from packed arrays by indexing and from image files by decoding."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.index import Index
from dietcl.streams.stream import Rows

Pixels = npt.NDArray[np.uint8]


class Storage:
    """Reads images of one manifest by row of its index, at one size."""

    def __init__(self, index: Index, image_size: int, workers: int = 2) -> None:
        self.index = index
        self.image_size = image_size
        self._packs: dict[int, Pixels] = {}
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")

    def read(self, rows: Rows) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] for rows of the index."""
        offsets = self.index.offset[rows]
        files = self.index.file[rows]
        out = torch.empty((len(rows), 3, self.image_size, self.image_size), dtype=torch.uint8)
        packed = offsets >= 0
        for file in np.unique(files[packed]):
            inside = np.flatnonzero(packed & (files == file))
            out[torch.from_numpy(inside)] = self._read_pack(int(file), offsets[inside])
        single = np.flatnonzero(~packed)
        paths = [self.index.root / self.index.files[files[i]] for i in single]
        for i, image in zip(single, self._pool.map(self._decode, paths), strict=True):
            out[i] = image
        return out

    def _read_pack(self, file: int, offsets: npt.NDArray[np.int64]) -> torch.Tensor:
        if file not in self._packs:
            self._packs[file] = _open_pack(self.index.root / self.index.files[file])
        pack = self._packs[file]
        if offsets.max() >= len(pack):
            raise UserError(
                f"{self.index.root / self.index.files[file]}: the manifest asks for image {offsets.max()} "
                f"and the pack holds {len(pack)}; prepare the data again"
            )
        images = torch.from_numpy(pack[offsets])
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        if images.shape[-1] != self.image_size:
            size = (self.image_size, self.image_size)
            smooth = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
            images = smooth.round().clamp(0, 255).to(torch.uint8)
        return images.expand(-1, 3, -1, -1)

    def _decode(self, path: Path) -> torch.Tensor:
        """Decode one file: the square in the middle, at the image size."""
        try:
            with Image.open(path) as image:
                image.draft("RGB", (self.image_size, self.image_size))
                picture = _to_rgb(image)
        except Exception as error:  # a broken file makes decoders raise anything, SyntaxError included
            raise UserError(f"{path}: not a readable image ({error}); replace it or drop its row") from None
        side, size = min(picture.size), (self.image_size, self.image_size)
        left, top = ((length - side) // 2 for length in picture.size)
        square = picture.crop((left, top, left + side, top + side))
        square = square.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
        return torch.from_numpy(np.asarray(square).transpose(2, 0, 1).copy())


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits at 255, which leaves a white image.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the way that Pillow asks for, by a warning
    return image.convert("RGB")


def _open_pack(path: Path) -> Pixels:
    try:
        pack: Pixels = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable .npy pack ({error}); prepare the data again") from None
    square = pack.ndim in (3, 4) and pack.shape[1] == pack.shape[2]
    if pack.dtype != np.uint8 or not square or (pack.ndim == 4 and pack.shape[3] != 3):
        raise UserError(
            f"{path}: holds {pack.dtype} {pack.shape}; a pack is uint8 [images, side, side] or [images, side, side, 3]"
        )
    return pack
