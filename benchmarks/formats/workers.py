"""Threads against worker processes, whether large calls stall other threads, and the memory of float batches."""

import io
import itertools
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import cv2
import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F
from PIL import Image

from benchmarks.figure import Figure
from benchmarks.formats.race import AT_ONCE, SIDE, Race, each
from dietcl.streams.decode import decode
from dietcl.streams.normalize import normalize
from dietcl.streams.options import MEAN, STD
from dietcl.streams.storage import spread

_files: list[bytes] = []  # what a worker process decodes


def floats(rounds: int) -> list[Figure]:
    """Normalize a batch into memory that numpy asked for (huge pages, where they may be had) or torch."""
    last = torch.randint(0, 256, (AT_ONCE, SIDE, SIDE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)

    def ours(images: torch.Tensor) -> int:
        return len(normalize(images))

    def theirs(images: torch.Tensor) -> int:
        return len(images.float().div_(255).sub_(MEAN).div_(STD))

    figures = []
    for layout, images in (("channels last", last), ("channels first", last.contiguous())):
        race = Race({"numpy's memory": partial(ours, images), "torch's memory": partial(theirs, images)})
        title = f"normalize {AT_ONCE} at {SIDE} px, {layout}"
        figures += race.run(2 * rounds).figures(title, "numpy's memory", "ms/image")
    return figures


def _blank(number: int) -> torch.Tensor:
    return torch.full((AT_ONCE, 3, SIDE, SIDE), number % 256, dtype=torch.uint8)


def _remember(files: list[bytes]) -> None:
    _files.extend(files)


def _decode_some(share: tuple[int, int]) -> int:
    some = _files[slice(*share)]
    return each(partial(decode, side=SIDE), some)


def threads(files: list[bytes], rounds: int, all_cores: set[int]) -> list[Figure]:
    """Hand batches over from a thread and from a worker process, and decode in one thread and in two."""
    numbers = itertools.count()
    # One batch at a time on the one core: a worker that runs ahead would take time from the thread's turn.
    with ThreadPoolExecutor(1) as thread, torch.multiprocessing.get_context("spawn").Pool(1) as process:

        def from_thread() -> int:
            return sum(len(thread.submit(_blank, next(numbers)).result()) for _ in range(8))

        def from_process() -> int:
            return sum(len(process.apply(_blank, (next(numbers),))) for _ in range(8))

        def clock() -> float:
            own: float = process.apply(time.process_time)
            return own + time.process_time()

        race = Race({"a thread": from_thread, "a worker process": from_process}, clock).run(rounds)
        figures = race.figures(f"make {AT_ONCE} blank squares of {SIDE} px and hand them over", "a thread", "ms/image")
    if len(all_cores) < 2:
        return figures
    os.sched_setaffinity(0, all_cores)  # of this thread and those that it starts from here on
    spawn = torch.multiprocessing.get_context("spawn")
    with (
        ThreadPoolExecutor(1) as single,
        ThreadPoolExecutor(2) as double,
        spawn.Pool(2, initializer=_remember, initargs=(files,)) as processes,
    ):

        def decode_in(pool: ThreadPoolExecutor) -> int:
            return len(spread(pool, lambda i: decode(files[i], SIDE), len(files)))

        def decode_by(count: int) -> int:
            each = len(files) // count
            return sum(processes.map(_decode_some, [(i * each, (i + 1) * each) for i in range(count)], chunksize=1))

        works = {
            "1 thread": partial(decode_in, single),
            "2 threads": partial(decode_in, double),
            "1 worker process": partial(decode_by, 1),
            "2 worker processes": partial(decode_by, 2),
        }
        race = Race(works, time.perf_counter).run(rounds)
        figures += race.figures("decode on two cores, by the clock on the wall", "1 thread")
    figures += _stalls()
    os.sched_setaffinity(0, {min(all_cores)})
    return figures


def _stalls() -> list[Figure]:
    """Tell how long one big call keeps another thread from running: all of its time if it holds Python's lock."""
    picture = np.random.default_rng(5).integers(0, 256, (500, 500, 3), np.uint8)
    large = cv2.resize(picture, (6000, 6000))
    data = simplejpeg.encode_jpeg(large, 90, "RGB", "420")
    images = torch.from_numpy(large).permute(2, 0, 1)[None]
    works: dict[str, Callable[[], object]] = {
        "simplejpeg decodes": lambda: simplejpeg.decode_jpeg(data, "RGB"),
        "Pillow decodes": lambda: np.array(Image.open(io.BytesIO(data))),
        "OpenCV resizes": lambda: cv2.resize(large, (9000, 9000)),
        "torch resizes": lambda: F.interpolate(images, (3000, 3000), mode="bilinear", antialias=True),
    }
    figures = []
    for name, work in works.items():
        shares = []
        for _ in range(5):
            with ThreadPoolExecutor(1) as thread:
                begun = last = time.perf_counter()
                longest, future = 0.0, thread.submit(work)
                while not future.done():
                    now = time.perf_counter()
                    longest, last = max(longest, now - last), now
                shares.append(max(longest, time.perf_counter() - last) / (time.perf_counter() - begun))
        share = 100 * statistics.median(shares)
        figures.append(Figure(f"longest halt of another thread while {name}", share, "% of the call"))
    return figures
