"""Storage formats, decoders, resizers and encodings side by side on one core: what docs/decisions.md rests on."""

import itertools
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import torch

import dietcl._compat  # noqa: F401
from benchmarks.figure import Figure
from benchmarks.formats.decoders import decoders
from benchmarks.formats.encodings import encodings, raw_or_jpeg, resizers
from benchmarks.formats.race import AT_ONCE, SIDE
from benchmarks.formats.stores import read_all, storage
from benchmarks.formats.workers import floats, threads
from benchmarks.photos import write_photos
from dietcl.streams.index import open_manifest
from dietcl.streams.options import Packing
from dietcl.streams.packer import pack
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.registry import prepare


def run(quick: bool) -> list[Figure]:
    """Measure everything on one core, contenders in turn."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cores)})
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    rounds = 5 if quick else 21
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        photos = write_photos(folder / "photos", 256 if quick else 2048)
        manifest = prepare(Folder(test_share=0), str(photos), folder / "manifest", verify="none").manifest
        originals = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[:AT_ONCE]]
        packed = pack(manifest, folder / "pack", Packing(side=SIDE))
        contents = read_all(open_manifest(packed.manifest))
        sections: list[Callable[[], list[Figure]]] = [
            partial(storage, folder, contents, rounds),
            partial(decoders, contents[:AT_ONCE], originals, rounds),
            partial(resizers, originals, rounds),
            partial(encodings, originals, rounds),
            partial(raw_or_jpeg, folder, manifest, rounds),
            partial(floats, rounds),
            partial(threads, contents[: 4 * AT_ONCE], rounds, all_cores),
        ]
        return list(itertools.chain.from_iterable(section() for section in sections))
