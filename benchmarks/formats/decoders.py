"""Decoders: how fast they are, at which scales, and whether they report broken files."""

import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

from benchmarks.figure import Figure
from benchmarks.formats.race import SIDE, Race, each, optional
from benchmarks.photos import SIZE
from dietcl.streams.decode import Pixels, decode
from dietcl.streams.storage import squares


def decoders(packed: list[bytes], originals: list[bytes], rounds: int) -> list[Figure]:
    """Decode JPEGs at full and at reduced size, and broken ones, with every decoder that is installed."""
    whole = _whole_decoders()
    wide = f"{SIZE[0]} x {SIZE[1]}"
    figures = []
    for title, files in ((f"decode a {SIDE}-px JPEG", packed), (f"decode a JPEG of {wide}", originals)):
        race = Race({name: partial(each, one, files) for name, one in whole.items()})
        figures += race.run(rounds).figures(title, "simplejpeg")
    for side in (SIDE, 64):
        race = Race({name: partial(each, one, originals) for name, one in _scaling_decoders(side).items()})
        figures += race.run(rounds).figures(f"decode a JPEG of {wide} for {side} px", "decode()")
    figures += _scales(originals, rounds)
    for side in (SIDE, 128, 64):
        figures += _squares(originals, side, rounds)
    checked = {**whole, **{f"{name} for 64 px": one for name, one in _scaling_decoders(64).items()}}
    generator = np.random.default_rng(4)
    broken = {
        "truncated": [data[: len(data) // 2] for data in packed],
        "damaged": [_damage(data, generator) for data in packed],
    }
    for (how, files), (name, one) in itertools.product(broken.items(), checked.items()):
        # Those that dietcl uses must report what is cut off; of the others, the figure says how often they do.
        bar = len(files) if how == "truncated" and name.startswith(("simplejpeg", "decode()")) else None
        with _silence():
            reported = sum(_raises(one, data) for data in files)
        figures.append(Figure(f"{how} JPEGs reported, of {len(files)}: {name}", reported, "files", at_least=bar))
    return figures


def _scales(originals: list[bytes], rounds: int) -> list[Figure]:
    """Decode at every eighth of the size that a JPEG's blocks offer."""
    for eighths in range(1, 8):
        height = _reduced(originals[0], eighths).shape[0]
        assert abs(height - SIZE[1] * eighths / 8) < 1, f"{eighths}/8: {height} rows"
    works = {f"{n}/8": partial(each, partial(_reduced, eighths=n), originals) for n in range(8, 0, -1)}
    return Race(works).run(rounds).figures(f"simplejpeg reduces {SIZE[0]} x {SIZE[1]} while decoding", "8/8")


def _reduced(data: bytes, eighths: int) -> Pixels:
    least_width, least_height = (side * eighths // 8 for side in SIZE)
    pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", min_width=least_width, min_height=least_height)
    return pixels


def _squares(originals: list[bytes], side: int, rounds: int) -> list[Figure]:
    """Decode and resize to a square, because a decoder that reduces leaves less to resize."""
    smallest = -(-8 * side // min(SIZE))  # the eighths that leave just enough pixels
    ways: dict[str, Callable[[bytes], Pixels]] = {
        "decode()": lambda data: decode(data, side),
        "simplejpeg at full size": lambda data: simplejpeg.decode_jpeg(data, "RGB"),
        f"simplejpeg at {smallest}/8": partial(_reduced, eighths=smallest),
        "OpenCV at full size": _opencv,
    }

    def square(one: Callable[[bytes], Pixels], data: bytes) -> torch.Tensor:
        return squares([one(data)], side)

    race = Race({name: partial(each, partial(square, one), originals) for name, one in ways.items()})
    title = f"a square of {side} px from a JPEG of {SIZE[0]} x {SIZE[1]}"
    return race.run(rounds).figures(title, "simplejpeg at full size")


def _opencv(data: bytes) -> Pixels:
    pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)  # None where it fails
    found: Pixels = pixels
    return found


def _damage(data: bytes, generator: np.random.Generator) -> bytes:
    """Overwrite 40 bytes in the middle, as a bad disk or transfer does."""
    middle = len(data) // 2
    return data[:middle] + generator.bytes(40) + data[middle + 40 :]


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what libraries write past Python to the standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _raises(one: Callable[[bytes], object], data: bytes) -> bool:
    """Tell whether a decoder reports broken data, by an exception or by giving nothing."""
    try:
        return one(data) is None
    except Exception:
        return True


def _whole_decoders() -> dict[str, Callable[[bytes], object]]:
    fast = {"fastdct": True, "fastupsample": True}
    found: dict[str, Callable[[bytes], object]] = {
        "simplejpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB"),
        "simplejpeg, fast DCT and upsampling": lambda data: simplejpeg.decode_jpeg(data, "RGB", **fast),
        "Pillow": lambda data: np.array(Image.open(io.BytesIO(data)).convert("RGB")),
        "OpenCV": _opencv,
    }
    if kornia := optional("kornia_rs"):
        found["kornia-rs, turbo"] = lambda data: kornia.io.decode_image_jpegturbo(data, "rgb")
        found["kornia-rs"] = kornia.io.decode_image_jpeg
    if (torchvision := _torchvision()) is not None:
        found["torchvision.io"] = lambda data: torchvision.decode_jpeg(_tensor(data))
    return found


def _torchvision() -> Any:
    """Return torchvision.io if its compiled half can be loaded, which a CPU build of torch may not do."""
    module = optional("torchvision.io")
    if module is None:
        return None
    try:
        module.decode_jpeg(_tensor(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))))
    except Exception as error:
        print(f"torchvision.io: cannot be used, left out ({str(error).partition('.')[0]})", file=sys.stderr)
        return None
    return module


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _scaling_decoders(side: int) -> dict[str, Callable[[bytes], object]]:
    """Return decoders that make an image smaller while they decode it, to no less than the side."""

    def pillow(data: bytes) -> Pixels:
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (side, side))
        return np.array(image.convert("RGB"))

    def opencv(data: bytes) -> object:
        factor = min(SIZE) // side
        flags = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
        flag = next((flag for scale, flag in flags.items() if scale <= factor), None)
        if flag is None:
            return _opencv(data)
        reduced: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        return None if reduced is None else cv2.cvtColor(reduced, cv2.COLOR_BGR2RGB)

    return {"decode()": lambda data: decode(data, side), "Pillow with draft": pillow, "OpenCV reduced": opencv}
