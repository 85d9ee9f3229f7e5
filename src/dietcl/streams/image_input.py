"""Converts a user's images (paths, URLs, PIL images, arrays, tensors) to pixels."""

import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from dietcl.errors import reason
from dietcl.streams.decode import Pixels, Unreadable, decode, reduce_towards, to_rgb

ImageInput = str | Path | bytes | Image.Image | npt.NDArray[Any] | torch.Tensor
_TIMEOUT = 20  # seconds
_MOST_BYTES = 2**28
_LOADING = threading.Lock()  # a PIL image may be given twice, and must not be loaded by two threads


def is_address(image: object) -> bool:
    """Return whether an image is a URL."""
    return isinstance(image, str) and image.startswith(("https://", "http://"))


def to_pixels(image: ImageInput, side: int) -> Pixels:
    """Return RGB [height, width, 3] of any kind of image, reduced towards `side`; raises Unreadable."""
    if isinstance(image, str | Path | bytes):
        return decode(read_bytes(image), side)
    try:
        if isinstance(image, Image.Image):
            with _LOADING:
                image.load()
            return reduce_towards(to_rgb(ImageOps.exif_transpose(image)), side)
        if isinstance(image, torch.Tensor):
            is_channels_first = image.ndim == 3 and image.shape[0] in (1, 3, 4)
            image = image.float() if image.is_floating_point() else image  # numpy has no bfloat16
            image = (image.permute(1, 2, 0) if is_channels_first else image).detach().cpu().numpy()
    except (OSError, SyntaxError, ValueError, RuntimeError, TypeError) as error:  # broken; sparse, quantized and so on
        raise Unreadable(f"not a readable image ({reason(error)})") from None
    if isinstance(image, np.ndarray):
        return _from_array(image, side)
    raise Unreadable(f"{type(image).__name__} is not an image; give a path, a PIL image, an array or a tensor")


def read_bytes(path: str | Path | bytes) -> bytes:
    """Return the bytes of an encoded image in a file or at an address; bytes are returned as they are."""
    if isinstance(path, bytes):
        return path
    try:
        if not is_address(path):
            with open(path, "rb") as file:
                return file.read()
        with urllib.request.urlopen(str(path), timeout=_TIMEOUT) as answer:
            data: bytes = answer.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot be {'fetched' if is_address(path) else 'read'} ({reason(error)})") from None
    if len(data) > _MOST_BYTES:
        raise Unreadable("is larger than 256 MB")
    return data


def _from_array(array: npt.NDArray[Any], side: int) -> Pixels:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise Unreadable(f"an array of shape {array.shape} is not an image; give [height, width, 3] or [height, width]")
    if array.dtype == np.bool_ or np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise Unreadable("an array of floats must hold values from 0 to 1; give 8-bit values as uint8")
        array = (array.astype(np.float64) * 255).round().astype(np.uint8)
    elif array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)  # as in a PNG of 16 bits
    elif array.dtype != np.uint8:
        raise Unreadable(f"an array of {array.dtype} is not an image; give uint8, uint16, or floats from 0 to 1")
    return reduce_towards(Image.fromarray(np.broadcast_to(array[..., :3], (*array.shape[:2], 3))), side)
