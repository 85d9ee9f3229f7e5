"""Images per second of Model.predict, over preloaded tensors and JPEG files, against a bare forward loop."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import dietcl
from benchmarks.figure import Figure
from dietcl.config_builder import build_config
from dietcl.engine.learner import Equipment, assemble
from dietcl.engine.option_search import NullRecorder
from dietcl.model import BATCH, save_model
from dietcl.models.network import Network, build_network
from dietcl.run import stream_of
from dietcl.streams.normalize import normalize

ENCODERS = {"micro": 1024, "vit_small_patch16_224": 64}  # images of a round
CLASSES = 62
LEAST = 0.9


def run(quick: bool) -> list[Figure]:
    """Classify the same images in all three ways in turn, and compare medians."""
    figures = []
    for encoder, count in ENCODERS.items():
        with tempfile.TemporaryDirectory() as name:
            figures += _rates(encoder, count // 2 if quick else count, 3 if quick else 15, Path(name))
    return figures


def _rates(encoder: str, count: int, rounds: int, folder: Path) -> list[Figure]:
    network = _save_untrained(encoder, folder)
    model = dietcl.load(folder, device="cpu")
    squares, paths = _photos(folder, count, model.image_size)
    images = normalize(squares)
    ways: dict[str, Callable[[], object]] = {
        "bare forward loop": lambda: _bare(network, images),
        "predict, tensors": lambda: model.predict(squares),
        "predict, JPEG files": lambda: model.predict(paths),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, work in ways.items():
            started = time.perf_counter()
            work()
            if number:  # the first round warms up
                seconds[way].append(time.perf_counter() - started)
    bare = seconds["bare forward loop"]
    figures = [Figure(f"{encoder}: {way}", count / statistics.median(seconds[way]), "images/s") for way in ways]
    for way in [*ways][1:]:
        # By round: what else the machine does slows neighbors alike.
        ratio = statistics.median(loop / ours for loop, ours in zip(bare, seconds[way], strict=True))
        figures.append(Figure(f"{encoder}: {way} over bare loop", ratio, "x", at_least=LEAST))
    return figures


def _save_untrained(encoder: str, folder: Path) -> Network:
    """Save a model with random weights; returns the same network without a meter."""
    config = build_config("glyphs", "naive", encoder=encoder, weights="random", time_steps=1)
    stream, index = stream_of(config)
    learner = assemble(config, stream, Equipment(index), NullRecorder())
    learner.network.head.grow(CLASSES, torch.Generator())
    save_model(learner, folder)
    network = build_network(config.model, config.seed)
    network.head.grow(CLASSES, torch.Generator())
    return network


def _photos(folder: Path, count: int, size: int) -> tuple[Tensor, list[Path]]:
    """Return pictures of smooth color as uint8 squares, and as JPEG files of the same size."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
    pictures = [Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC) for image in coarse]
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path, quality=90)
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(
        0, 3, 1, 2
    ).contiguous(), paths


def _bare(network: Network, images: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [network.logits_of(network.features(batch)) for batch in images.split(BATCH)]
