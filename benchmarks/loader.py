"""Training images, decoded and augmented, per core: a pack through our loader against torchvision's ImageFolder."""

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import dietcl._compat  # noqa: F401
from benchmarks.figure import Figure
from benchmarks.photos import write_photos
from dietcl.streams.augment import crop_and_flip
from dietcl.streams.index import open_manifest
from dietcl.streams.loader import Loader
from dietcl.streams.options import Augmentation, Mix, Packing, Recipe
from dietcl.streams.packer import pack
from dietcl.streams.sampler import pools_of, sample
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage
from dietcl.streams.stream import build_stream

SIDES = {224: 4.0, 32: 30.0}
MICRO_BATCH = 64


def run(quick: bool) -> list[Figure]:
    """Read the same photographs both ways in turn, on one core, and compare medians."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = write_photos(folder / "photos", 192 if quick else 768)
        manifest = prepare(Folder(test_share=0), str(photos), folder / "manifest", verify="none").manifest
        for side, least in SIDES.items():
            started = time.perf_counter()
            packed = pack(manifest, folder / f"pack{side}", Packing(side=side))
            packing = packed.kept / (time.perf_counter() - started)
            theirs, ours = _rates(photos, packed.manifest, side, 3 if quick else 9)
            figures += [
                Figure(f"{side} px: packing, apart", packing, "images/s"),
                Figure(f"{side} px: torchvision's ImageFolder", theirs, "images/s"),
                Figure(f"{side} px: pack and loader", ours, "images/s"),
                Figure(f"{side} px: ours over ImageFolder", ours / theirs, "x", at_least=least),
            ]
    return figures


def _rates(photos: Path, manifest: Path, side: int, rounds: int) -> tuple[float, float]:
    """Return the images per second of both."""
    image_folder, ours = _image_folder(photos, side), _ours(manifest, side)
    times: dict[str, list[float]] = {"theirs": [], "ours": []}
    for _ in range(rounds):
        times["theirs"].append(_seconds(image_folder, MICRO_BATCH))
        times["ours"].append(_seconds(ours, MICRO_BATCH * (4 if side >= 100 else 40)))
    return 1 / statistics.median(times["theirs"]), 1 / statistics.median(times["ours"])


def _seconds(images: Callable[[], Iterator[int]], count: int) -> float:
    """Return the seconds per image over at least `count` of them."""
    source = images()
    next(source)
    done, started = 0, time.perf_counter()
    while done < count:
        done += next(source)
    return (time.perf_counter() - started) / done


def _image_folder(photos: Path, side: int) -> Callable[[], Iterator[int]]:
    from torchvision import datasets, transforms  # after dietcl._compat

    steps = [
        transforms.RandomResizedCrop(side),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.25] * 3),
    ]
    images = datasets.ImageFolder(str(photos), transforms.Compose(steps))

    def read() -> Iterator[int]:
        # What a DataLoader worker does: item by item, then stacked.
        while True:
            order = torch.randperm(len(images)).tolist()
            for start in range(0, len(order) - MICRO_BATCH + 1, MICRO_BATCH):
                torch.stack([images[i][0] for i in order[start : start + MICRO_BATCH]])
                yield MICRO_BATCH

    return read


def _ours(manifest: Path, side: int) -> Callable[[], Iterator[int]]:
    index = open_manifest(manifest)
    stream = build_stream("photos", index, Recipe(recipe="data", time_steps=1, label_rate=0.0), 0)
    pools = pools_of(stream, 1, Mix(unlabeled=1))
    loader = Loader(stream, Storage(index, side), torch.device("cpu"))
    config = Augmentation()

    def read() -> Iterator[int]:
        draws = (sample(pools, {"unlabeled": MICRO_BATCH}, (0, number)) for number in itertools.count())
        for (draw,), (images,) in loader.iterate(draws, ahead=config):
            crop_and_flip(images, config, (*draw.key, draw.pool))
            yield MICRO_BATCH

    return read
