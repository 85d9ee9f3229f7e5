"""Decoding: the bytes of one image in, upright RGB pixels of about the wanted size out."""

import io
import warnings
from functools import cache

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from dietcl.errors import reason

Pixels = npt.NDArray[np.uint8]
MOST_PIXELS = 178_956_970  # where Pillow, too, takes an image for a decompression bomb
# Of Pillow's formats those that are pictures and nothing more: to open EPS, say, it starts another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "QOI")
_ORIENTATION = 0x0112
_JPEG, _EXIF = b"\xff\xd8\xff", b"Exif\0\0"


# The bound here is MOST_PIXELS. For good, because threads that put filters back would undo each other's.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class Unreadable(Exception):
    """Bytes that are no image, or not one that may be decoded; the sentence says why."""


def decode(data: bytes, side: int) -> Pixels:
    """Return RGB [height, width, 3]; the shorter side has `side` pixels or more, where the image has as many.

    Larger images are reduced while they are decoded. Animations give their first frame.
    """
    if not data:
        raise Unreadable("the file is empty")
    try:
        if data.startswith(_JPEG) and (pixels := _decode_jpeg(data, side)) is not None:
            return pixels
        return _decode_any(data, side)
    except Unreadable:
        raise
    except Image.DecompressionBombError:
        raise Unreadable("too large to be decoded (a decompression bomb perhaps)") from None
    except UnidentifiedImageError:  # its sentence is about an object in memory
        raise Unreadable("not a readable image (of no format that is known)") from None
    except Exception as error:  # a broken file makes decoders raise anything, SyntaxError included
        raise Unreadable(f"not a readable image ({reason(error)})") from None


def _decode_jpeg(data: bytes, side: int) -> Pixels | None:
    """Decode a JPEG that is in the usual colors, upright and without a flaw, at the scale that its own blocks offer."""
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
        _refuse_bomb(width, height)
        if colors not in ("YCbCr", "Gray", "RGB") or data.find(_EXIF, 0, 2**16) >= 0:
            return None
        # Of the decoder's other eighths, 5/8 to 7/8 are slower than the whole and 3/8 is no quicker than a half.
        scale = next((scale for scale in (8, 4, 2) if min(height, width) >= scale * side), 1)
        size = {"min_height": height // scale, "min_width": width // scale} if scale > 1 else {}
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", **size)
        return pixels
    except ValueError:
        return None  # stray bytes, as some cameras leave them, are no harm; Pillow tells them from a file cut off


def _decode_any(data: bytes, side: int) -> Pixels:
    with Image.open(io.BytesIO(data), formats=_formats()) as opened:
        _refuse_bomb(*opened.size)
        opened.draft("RGB", (side, side))
        image = to_rgb(opened if opened.getexif().get(_ORIENTATION, 1) == 1 else ImageOps.exif_transpose(opened))
    # Twice the wanted size is left for the smoother resizing that follows.
    factor = min(image.size) // max(1, 2 * side)
    return np.array(image.reduce(factor) if factor > 1 else image)


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that this build of Pillow has."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB without clipping 16-bit values or losing a palette's colors."""
    if image.mode == "F":
        # From 0 to 1 or from 0 to 255: both are in use.
        values = np.nan_to_num(np.asarray(image))
        image = Image.fromarray((values * (255 if values.max(initial=0) <= 1 else 1)).clip(0, 255).astype(np.uint8))
    elif image.mode.startswith("I"):
        # Pillow would clip 16 bits at 255, which leaves a white image; 32 bits may hold either.
        values = np.asarray(image).clip(0, 65535)
        is_small = image.mode == "I" and values.max(initial=0) <= 255
        image = Image.fromarray((values if is_small else values >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # the way that Pillow asks for, by a warning
    return image.convert("RGB")


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise Unreadable(f"too large to be decoded ({width} x {height} pixels, a decompression bomb perhaps)")
