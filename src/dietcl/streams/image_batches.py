"""Batches of a user's images, decoded in threads ahead of the network, except those whose features are known."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dietcl.launch import cores
from dietcl.streams.content_keys import content_key
from dietcl.streams.decode import Unreadable
from dietcl.streams.feature_lookup import FeatureLookup
from dietcl.streams.image_input import ImageInput, read_bytes, to_pixels
from dietcl.streams.lazy_images import Known, LazyImages, Positions
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Resizing
from dietcl.streams.storage import squares

_AT_ONCE = 16  # images that a thread decodes at a time: a task for each would take as long as a small image
_Failures = list[Unreadable | None]


@dataclass(frozen=True)
class ImageBatch:
    """Some images, why some of them cannot be read, and the others as a tensor, normalized or lazy."""

    images: list[ImageInput]
    failures: _Failures
    readable_BCHW: Tensor


@dataclass(frozen=True)
class ImageDecoder:
    """Turns images of any kind into squares of one size on a device."""

    size: int
    resizing: Resizing
    device: torch.device
    lookup: FeatureLookup | None = None

    def batches(self, images: Iterable[ImageInput], batch: int) -> Iterator[ImageBatch]:
        """Yield images in batches; the next one is decoded while the last one is used."""
        waiting = iter(images)
        with ThreadPoolExecutor(cores(), thread_name_prefix="decode") as pool:
            ahead = self._start(pool, list(islice(waiting, batch)))
            while ahead is not None:
                current, ahead = ahead, self._start(pool, list(islice(waiting, batch)))
                yield current()

    def _start(self, pool: ThreadPoolExecutor, images: list[ImageInput]) -> Callable[[], ImageBatch] | None:
        """Begin to decode images; returns what waits for them, or None if there are none."""
        if not images:
            return None
        squares_BCHW = torch.zeros((len(images), 3, self.size, self.size), dtype=torch.uint8)
        parts = [slice(start, start + _AT_ONCE) for start in range(0, len(images), _AT_ONCE)]
        work = [pool.submit(self._fill, squares_BCHW[part], images[part]) for part in parts]
        return lambda: self._finish(images, squares_BCHW, work)

    def _finish(
        self, images: list[ImageInput], squares_BCHW: Tensor, work: list[Future[tuple[_Failures, Known | None]]]
    ) -> ImageBatch:
        done = [part.result() for part in work]
        failures = list(chain.from_iterable(failed for failed, _ in done))
        good = np.flatnonzero([failure is None for failure in failures])
        readable_BCHW = squares_BCHW if len(good) == len(failures) else squares_BCHW[good]
        known = Known.join([known for _, known in done if known is not None])
        if known is None:
            return ImageBatch(images, failures, normalize(readable_BCHW.to(self.device)))
        readable, of_good = [images[i] for i in good], known.take(good)

        def read(some: Positions) -> Tensor:
            skipped = some[of_good.is_skippable[some]]
            self._decode(readable_BCHW, readable, skipped)  # a method looks at pixels although features are known
            return normalize(readable_BCHW[some].to(self.device))

        return ImageBatch(images, failures, LazyImages(of_good, read, self.size, self.device))

    def _fill(self, squares_BCHW: Tensor, images: list[ImageInput]) -> tuple[_Failures, Known | None]:
        """Write each image's center square into its place; returns why an image has none, and what is known."""
        if self.lookup is None:
            return self._decode(squares_BCHW, images, np.arange(len(images))), None
        images, known = _look_up(self.lookup, images)
        return self._decode(squares_BCHW, images, np.flatnonzero(~known.is_skippable)), known

    def _decode(self, squares_BCHW: Tensor, images: list[ImageInput], positions: Positions) -> _Failures:
        """Write the center squares of images at some positions into their places; returns why an image has none."""
        failures: _Failures = [None] * len(images)
        array, shape = squares_BCHW.numpy(), squares_BCHW.shape[1:]
        for i in positions.tolist():
            image = images[i]
            if isinstance(image, Tensor) and image.dtype == torch.uint8 and image.shape == shape:
                squares_BCHW[i] = image
                continue
            try:
                pixels = to_pixels(image, self.resizing.side(self.size))
            except Unreadable as failure:
                failures[i] = failure
                continue
            if pixels.shape[:2] == shape[1:] and self.resizing.crop_ratio == 1:
                array[i] = pixels.transpose(2, 0, 1)
            else:
                squares_BCHW[i] = squares([pixels], self.size, self.resizing)[0]
        return failures


def _look_up(lookup: FeatureLookup, images: list[ImageInput]) -> tuple[list[ImageInput], Known]:
    """Return images, files among them as their bytes, and what the cache knows of files."""
    keys, images = np.zeros((len(images), 16), np.uint8), list(images)
    for i, image in enumerate(images):
        if isinstance(image, str | Path | bytes):
            with suppress(Unreadable):  # it will be tried again, and fail
                data = images[i] = read_bytes(image)
                keys[i] = np.frombuffer(content_key(data), np.uint8)
    return images, lookup.keys(keys)
