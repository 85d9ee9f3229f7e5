"""Resizers, and the encodings of a pack: JPEG, WebP and raw squares."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import torch.nn.functional as F
from PIL import Image

from benchmarks.figure import Figure
from benchmarks.formats.race import AT_ONCE, SIDE, Race, Work, each
from dietcl.streams.decode import Pixels, decode
from dietcl.streams.index import open_manifest
from dietcl.streams.options import Packing
from dietcl.streams.packer import encode, pack, shrink
from dietcl.streams.storage import Storage


def resizers(originals: list[bytes], rounds: int) -> list[Figure]:
    """Resize crops that grow and that shrink, and tell how far the results lie from Pillow's."""
    pictures: list[Pixels] = [simplejpeg.decode_jpeg(data, "RGB") for data in originals]
    cases = {
        f"resize 150 x 170 to {SIDE}": ([_view(picture, 150, 170) for picture in pictures], SIDE),
        f"resize 256 x 256 to {SIDE}": ([_view(picture, 256, 256) for picture in pictures], SIDE),
        "resize 375 x 375 to 64": ([_view(picture, 375, 375) for picture in pictures], 64),
    }
    figures = []
    for title, (parts, side) in cases.items():
        makers = _resizing(side)
        works = {name: partial(each, one, parts) for name, one in makers.items()}
        batch = torch.stack([torch.from_numpy(part.copy()).permute(2, 0, 1) for part in parts]).float()
        works["torch grid_sample, float batch"] = partial(_sample_grid, batch, side)
        figures += Race(works).run(rounds).figures(title, "OpenCV linear", "ms/image")
        reference = np.stack([makers["Pillow bilinear"](part) for part in parts]).astype(np.float32)
        for name, one in makers.items():
            if name != "Pillow bilinear":
                apart = np.abs(np.stack([one(part) for part in parts]) - reference).mean()
                figures.append(Figure(f"{title}: {name} apart from Pillow bilinear", float(apart), "gray levels"))
    return figures


def _view(picture: Pixels, height: int, width: int) -> Pixels:
    """Cut out the middle without a copy, as crops are."""
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    return picture[top : top + height, left : left + width]


def _resizing(side: int) -> dict[str, Callable[[Pixels], npt.NDArray[Any]]]:
    size = (side, side)

    def smooth(part: Pixels) -> Pixels:
        images = torch.from_numpy(part).permute(2, 0, 1)[None]
        done: Pixels = F.interpolate(images, size, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
        return done

    def pillow(part: Pixels) -> Pixels:
        return np.asarray(Image.fromarray(part).resize(size, Image.Resampling.BILINEAR))

    return {
        "OpenCV linear": lambda part: cv2.resize(part, size, interpolation=cv2.INTER_LINEAR),
        "OpenCV area": lambda part: cv2.resize(part, size, interpolation=cv2.INTER_AREA),
        "Pillow bilinear": pillow,
        "torch uint8 antialiased": smooth,
    }


def _sample_grid(images: torch.Tensor, side: int) -> int:
    theta = torch.eye(2, 3).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, [len(images), 3, side, side], align_corners=False)
    F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return len(images)


def encodings(originals: list[bytes], rounds: int) -> list[Figure]:
    """Encode the same 224-px pictures in several ways: bytes, distortion, and the time to encode and decode."""
    pictures = [np.ascontiguousarray(shrink(simplejpeg.decode_jpeg(data, "RGB"), SIDE)) for data in originals]
    ways: dict[str, Callable[[Pixels], bytes]] = {
        "JPEG 90": lambda picture: encode(picture, Packing(format="jpeg", quality=90)),
        "JPEG 80": lambda picture: encode(picture, Packing(format="jpeg", quality=80)),
        "JPEG 95": lambda picture: encode(picture, Packing(format="jpeg", quality=95)),
        "JPEG 90 in 4:4:4": lambda picture: simplejpeg.encode_jpeg(picture, 90, "RGB", "444"),
        "WebP 90": lambda picture: encode(picture, Packing(format="webp", quality=90)),
    }
    figures, decoders, encoders = [], {}, {}
    for name, way in ways.items():
        files = [way(picture) for picture in pictures]
        size = statistics.mean(map(len, files))
        ratio = statistics.median(
            _decibels(decode(data, SIDE), picture) for data, picture in zip(files, pictures, strict=True)
        )
        figures += [
            Figure(f"encoding at {SIDE} px, an image: {name}", size / 1e3, "kB"),
            Figure(f"encoding at {SIDE} px, signal to noise: {name}", ratio, "dB"),
        ]
        decoders[name] = partial(each, partial(decode, side=SIDE), files)
        encoders[name] = partial(each, way, pictures)
    figures += Race(decoders).run(rounds).figures(f"decode() at {SIDE} px", "JPEG 90")
    return [*figures, *Race(encoders).run(max(5, rounds // 3)).figures(f"encode at {SIDE} px", "JPEG 90")]


def _decibels(one: Pixels, other: Pixels) -> float:
    error = float(np.mean((one.astype(np.float32) - other.astype(np.float32)) ** 2))
    return float(10 * np.log10(255**2 / error))


def raw_or_jpeg(folder: Path, manifest: Path, rounds: int) -> list[Figure]:
    """Pack at several sides both ways, and read squares of it at random through Storage."""
    generator = np.random.default_rng(3)
    figures = []
    for side in (32, 64, 96, 128, SIDE):
        works: dict[str, Work] = {}
        for kind in ("raw", "jpeg"):
            packing = Packing(side=side, format="raw" if kind == "raw" else "jpeg")
            packed = pack(manifest, folder / f"{kind}-{side}", packing)
            index = open_manifest(packed.manifest)
            works[kind] = partial(_read_squares, Storage(index, side), generator, len(index))
            figures.append(Figure(f"packed at {side} px, an image: {kind}", packed.bytes / packed.kept / 1e3, "kB"))
        race = Race(works).run(rounds)
        figures += race.figures(f"packed at {side} px, {AT_ONCE} squares at random", "jpeg")
    return figures


def _read_squares(storage: Storage, generator: np.random.Generator, count: int) -> int:
    for _ in range(4):
        storage.read(generator.integers(count, size=AT_ONCE))
    return 4 * AT_ONCE
