"""The loader: draws in, images out, read ahead in a thread while the network computes."""

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from dietcl.streams.augmentation import Augmentation
from dietcl.streams.pictures import Pictures
from dietcl.streams.sampler import Draw
from dietcl.streams.storage import Storage
from dietcl.streams.stream import Rows, Stream

AHEAD = 3
Images = torch.Tensor | Pictures  # equal squares on the device, or pictures of any shape
Loaded = tuple[tuple[Draw, ...], list[Images]]


@dataclass
class Loader:
    """Reads images by opaque row number; counts the seconds waited for them and those that could not be read."""

    stream: Stream
    storage: Storage
    device: torch.device
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
        """Yield what `read` returns for each of some rows, the next one read while the last is used."""
        waiting: deque[Future[torch.Tensor]] = deque()
        for rows in parts:
            waiting.append(self._thread.submit(self.read, rows))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def iterate(
        self, micro_batches: Iterator[tuple[Draw, ...]], ahead: Augmentation | None = None
    ) -> Generator[Loaded, None, None]:
        """Yield each micro-batch's draws with their images, a few micro-batches read (and cropped) ahead."""
        waiting: deque[Future[tuple[Loaded, int]]] = deque()
        try:
            for draws in micro_batches:
                waiting.append(self._thread.submit(self._load, draws, ahead))
                if len(waiting) >= AHEAD:
                    yield self._wait(waiting.popleft())
            while waiting:
                yield self._wait(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def _load(self, draws: tuple[Draw, ...], ahead: Augmentation | None) -> tuple[Loaded, int]:
        """Return a micro-batch, and how many of its images another stands in for."""
        loaded = [self._load_draw(draw, ahead) for draw in draws]
        whole = tuple(draw for draw, _, _ in loaded), [images for _, images, _ in loaded]
        return whole, sum(bad for _, _, bad in loaded)

    def _load_draw(self, draw: Draw, ahead: Augmentation | None) -> tuple[Draw, Images, int]:
        rows = self.stream.index_row[draw.rows]
        found = self.storage.fetch(rows)
        if isinstance(found, torch.Tensor):
            return draw, found.to(self.device, non_blocking=True), 0
        if bad := self._bad(rows):
            chosen = stand_ins(len(rows), bad)
            labels = None if draw.labels is None else draw.labels[chosen]
            draw, found = replace(draw, rows=draw.rows[chosen], labels=labels), [found[i] for i in chosen]
        pictures = Pictures(found, self.storage.image_size, self.device, self.storage.pool)
        if ahead is not None:
            pictures.crop_ahead(ahead, (*draw.key, draw.pool))
        return draw, pictures, len(bad)

    def _bad(self, rows: npt.NDArray[np.uint32]) -> list[int]:
        """Return the positions of images that could not be read."""
        return [i for i, row in enumerate(rows.tolist()) if row in self.storage.bad] if self.storage.bad else []

    def _wait(self, future: Future[tuple[Loaded, int]]) -> Loaded:
        started = time.perf_counter()
        loaded, bad = future.result()
        self.waited += time.perf_counter() - started
        self.substituted += bad  # here, because what was read ahead in vain does not count
        return loaded


def stand_ins(count: int, bad: list[int]) -> Rows:
    """Say whose image and label each place of a draw gets: a bad one those of the next good one, the others their own.

    What stands in depends on the draw alone, so it is the same in every run; if none is good, all keep their own.
    """
    chosen = np.arange(count)
    good = np.delete(chosen, bad)
    if len(good):
        chosen[bad] = good[np.searchsorted(good, bad) % len(good)]
    return chosen
