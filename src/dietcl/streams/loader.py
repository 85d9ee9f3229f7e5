"""The loader: draws in, images out, read and cropped ahead in a thread while the network computes."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import torch

from dietcl.rng import numpy_generator
from dietcl.streams.decode import Pixels
from dietcl.streams.feature_lookup import FeatureLookup
from dietcl.streams.lazy_images import Known, LazyImages, Positions
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Augmentation, Resizing
from dietcl.streams.sampler import Draw, Draws, Key
from dietcl.streams.storage import Storage, spread, squares
from dietcl.streams.stream import Rows, Stream

cv2.setNumThreads(1)  # images are spread over threads already
AHEAD = 3
_WIDEST = 4 / 3  # of a crop, and its inverse the narrowest


@dataclass(frozen=True)
class Pictures:
    """Decoded images of any shape on the host, which are cropped before they go to the device."""

    pixels: list[Pixels]
    size: int
    device: torch.device
    pool: Executor
    resizing: Resizing = Resizing()  # noqa: RUF009 (it is frozen)
    _ahead: dict[Key, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pixels)

    def squares(self) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device: of each picture the square in its middle."""
        return squares(self.pixels, self.size, self.resizing).to(self.device, non_blocking=True)

    def crops(self, config: Augmentation, key: Key) -> torch.Tensor:
        """Return uint8 [B, 3, size, size] on the device: random resized crops, mirrored at random."""
        found = self._ahead.get(key)
        return (self._cropped(config, key) if found is None else found).to(self.device, non_blocking=True)

    def crop_ahead(self, config: Augmentation, key: Key) -> None:
        """Compute crops before `crops` asks for them."""
        self._ahead[key] = self._cropped(config, key)

    def _cropped(self, config: Augmentation, key: Key) -> torch.Tensor:
        random = numpy_generator(*key, "crop").random((5, len(self)))
        shapes = np.array([picture.shape[:2] for picture in self.pixels])
        boxes = crop_boxes(shapes, config.crop, random).tolist()
        mirrored = (config.flip & (random[4] < 0.5)).tolist()
        out = np.empty((len(self), self.size, self.size, 3), np.uint8)

        def crop(i: int) -> None:
            top, left, height, width = boxes[i]
            part = self.pixels[i][top : top + height, left : left + width]
            if (height, width) == out.shape[1:3]:
                out[i] = part
            else:
                smooth = min(height, width) >= 2 * self.size  # linear interpolation would skip pixels
                method = cv2.INTER_AREA if smooth else cv2.INTER_LINEAR
                cv2.resize(part, (self.size, self.size), dst=out[i], interpolation=method)
            if mirrored[i]:
                out[i] = cv2.flip(out[i], 1)

        spread(self.pool, crop, len(self))
        return torch.from_numpy(out).permute(0, 3, 1, 2)


def crop_boxes(shapes: npt.NDArray[np.int64], least: float, random: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return top, left, height and width of a crop with at least this share of the area of each (height, width)."""
    height, width = shapes.T.astype(np.float64)
    if least >= 1:  # no random crops: the square in the middle
        side = np.minimum(height, width)
        return np.stack([(height - side) // 2, (width - side) // 2, side, side], 1).astype(np.int64)
    shape = width / height
    most = np.minimum(1, _WIDEST / np.maximum(shape, 1 / shape))
    area = np.minimum(least, most) + np.maximum(most - least, 0) * random[0]
    aspect = np.clip(_WIDEST ** (2 * random[1] - 1), area * shape, shape / area)
    pixels = area * width * height
    w = np.clip(np.round(np.sqrt(pixels * aspect)), 1, width)
    h = np.clip(np.round(np.sqrt(pixels / aspect)), 1, height)
    top, left = np.floor((height - h + 1) * random[3]), np.floor((width - w + 1) * random[2])
    return np.stack([top, left, h, w], 1).astype(np.int64)


Images = torch.Tensor | Pictures  # equal squares on the device, or pictures of any shape
Loaded = tuple[Draws, list[Images]]
Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass
class Loader:
    """Reads images by opaque row number; counts the seconds waited for them and those that could not be read."""

    stream: Stream
    storage: Storage
    device: torch.device
    lookup: FeatureLookup | None = None  # of features that need not be computed, if the encoder is frozen
    waited: float = 0.0
    substituted: int = 0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="loader"))

    def read(self, rows: Rows) -> torch.Tensor:
        """Return uint8 squares on the device; an image that cannot be read is gray."""
        index_rows = self.stream.index_row[rows]
        images = self.storage.read(index_rows)
        self.substituted += len(self._bad(index_rows))
        return images.to(self.device, non_blocking=True)

    def read_ahead(self, parts: Sequence[Rows]) -> Iterator[torch.Tensor]:
        """Yield what `plain` returns for each part; the next part is read while the last one is used."""
        for future in self._submit(self.plain, parts, 2):
            yield future.result()

    def plain(self, rows: Rows) -> torch.Tensor:
        """Return what `read` does, or lazy images, of which those are read now whose features are not all known."""
        if self.lookup is None:
            return self.read(rows)
        return self._lazy(self.lookup.rows(self.stream.index_row[rows]), rows)

    def keep_features(self) -> None:
        """Save features that were computed to the cache."""
        if self.lookup is not None:
            self.lookup.flush()

    def _lazy(self, known: Known, rows: Rows) -> LazyImages:
        index_rows = self.stream.index_row[rows]
        images = lazy_images(known, index_rows, self.storage, self.device, lambda some: self.read(rows[some]))
        if known.needs_pixels:
            images.pixels()
        return images

    def iterate(
        self, micro_batches: Iterator[Draws], ahead: Augmentation | None = None
    ) -> Generator[Loaded, None, None]:
        """Yield each micro-batch's draws with their images; a few micro-batches are read (and cropped) ahead."""
        for future in self._submit(partial(self._load, ahead=ahead), micro_batches, AHEAD):
            started = time.perf_counter()
            loaded, bad = future.result()
            self.waited += time.perf_counter() - started
            self.substituted += bad  # only now, because batches that are read ahead and never used do not count
            yield loaded

    def _submit(self, work: Callable[[Item], Value], items: Iterable[Item], most: int) -> Iterator[Future[Value]]:
        """Yield the future of each item's work in order, with `most` of them under way."""
        waiting: deque[Future[Value]] = deque()
        try:
            for item in items:
                waiting.append(self._thread.submit(work, item))
                if len(waiting) >= most:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for future in waiting:
                future.cancel()

    def _load(self, draws: Draws, ahead: Augmentation | None) -> tuple[Loaded, int]:
        """Return a micro-batch, and how many of its images were substituted."""
        loaded = [self._load_draw(draw, ahead) for draw in draws]
        batch = tuple(draw for draw, _, _ in loaded), [images for _, images, _ in loaded]
        return batch, sum(bad for _, _, bad in loaded)

    def _load_draw(self, draw: Draw, ahead: Augmentation | None) -> tuple[Draw, Images, int]:
        """Return the images of a draw; plain ones, which are not cropped ahead, are lazy if features may be known."""
        if ahead is not None or self.lookup is None:
            return self._fetch_draw(draw, ahead)
        known = self.lookup.rows(self.stream.index_row[draw.rows])
        if not known.needs_pixels:
            return draw, self._lazy(known, draw.rows), 0
        draw, images, bad = self._fetch_draw(draw, None)
        if bad:  # others stand in for them
            known = self.lookup.rows(self.stream.index_row[draw.rows])
        pixels = normalize(images.squares() if isinstance(images, Pictures) else images)
        return draw, LazyImages(known, lambda some: pixels[some], self.storage.image_size, self.device), bad

    def _fetch_draw(self, draw: Draw, ahead: Augmentation | None) -> tuple[Draw, Images, int]:
        """Return the images of a draw as they are stored; bad ones, which are counted, are replaced by others."""
        rows = self.stream.index_row[draw.rows]
        found = self.storage.fetch(rows)
        if isinstance(found, torch.Tensor):
            return draw, found.to(self.device, non_blocking=True), 0
        if bad := self._bad(rows):
            chosen = substitutes(len(rows), bad)
            labels = None if draw.labels is None else draw.labels[chosen]
            draw, found = replace(draw, rows=draw.rows[chosen], labels=labels), [found[i] for i in chosen]
        storage = self.storage
        pictures = Pictures(found, storage.image_size, self.device, storage.pool, storage.resizing)
        if ahead is not None:
            pictures.crop_ahead(ahead, (*draw.key, draw.pool))
        return draw, pictures, len(bad)

    def _bad(self, rows: npt.NDArray[np.uint32]) -> list[int]:
        return bad_positions(self.storage, rows)


def bad_positions(storage: Storage, rows: npt.NDArray[np.integer[Any]]) -> list[int]:
    """Return the positions of rows of the index whose images could not be read."""
    return [i for i, row in enumerate(rows.tolist()) if row in storage.bad] if storage.bad else []


def lazy_images(
    known: Known,
    rows: npt.NDArray[np.integer[Any]],
    storage: Storage,
    device: torch.device,
    read: Callable[[Positions], torch.Tensor],
) -> LazyImages:
    """Return images of the index that `read` reads as uint8 squares on the device when they are needed."""

    def pixels(some: Positions) -> torch.Tensor:
        images = normalize(read(some))
        known.keys[bad_positions(storage, rows)] = 0  # what stands in for an image is not kept as its own
        return images

    return LazyImages(known, pixels, storage.image_size, device)


def substitutes(count: int, bad: list[int]) -> Rows:
    """Return whose image each position of a draw gets: a bad one that of the next good one, so all runs do the same."""
    chosen = np.arange(count)
    good = np.delete(chosen, bad)
    if len(good):
        chosen[bad] = good[np.searchsorted(good, bad) % len(good)]
    return chosen
