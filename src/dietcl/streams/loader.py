"""The loader: draws in, device images out, read ahead in a thread while the network computes."""

import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from dietcl.streams.sampler import Draw
from dietcl.streams.storage import Storage
from dietcl.streams.stream import Rows, Stream

AHEAD = 3
Loaded = tuple[tuple[Draw, ...], list[torch.Tensor]]


@dataclass
class Loader:
    """Reads images by opaque row number and counts the seconds that the caller waited for them."""

    stream: Stream
    storage: Storage
    device: torch.device
    waited: float = 0.0
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="loader"))

    def read(self, rows: Rows) -> torch.Tensor:
        """Return uint8 images on the device."""
        return self.storage.read(self.stream.index_row[rows]).to(self.device, non_blocking=True)

    def iterate(self, micro_batches: Iterator[tuple[Draw, ...]]) -> Generator[Loaded, None, None]:
        """Yield each micro-batch's draws with their images, a few micro-batches read ahead."""
        ahead: deque[Future[Loaded]] = deque()
        try:
            for draws in micro_batches:
                ahead.append(self._thread.submit(self._load, draws))
                if len(ahead) >= AHEAD:
                    yield self._wait(ahead.popleft())
            while ahead:
                yield self._wait(ahead.popleft())
        finally:
            for future in ahead:
                future.cancel()

    def _load(self, draws: tuple[Draw, ...]) -> Loaded:
        return draws, [self.read(draw.rows) for draw in draws]

    def _wait(self, future: Future[Loaded]) -> Loaded:
        started = time.perf_counter()
        result = future.result()
        self.waited += time.perf_counter() - started
        return result
