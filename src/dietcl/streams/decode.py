"""Decode the bytes of one image to upright RGB pixels of about the wanted size."""

import io
import warnings
from functools import cache

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from dietcl.errors import reason

try:
    from pillow_heif import register_heif_opener
except ImportError:  # comes with the extra `heic`
    register_heif_opener = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
MOST_PIXELS = 178_956_970  # Pillow's own limit for a decompression bomb
# Pillow's plain image formats only: for EPS, say, it starts another program.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "QOI")
_ORIENTATION = 0x0112
_JPEG, _EXIF = b"\xff\xd8\xff", b"Exif\0\0"
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")

# MOST_PIXELS is checked below. Set once for the process, because threads that restore filters undo each other's.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class Unreadable(Exception):
    """An image that cannot be decoded; the message says why."""


def decode(data: bytes | Exception, side: int) -> Pixels:
    """Return RGB [height, width, 3], reduced to a shorter side of at least `side`; of an animation, the first frame."""
    if isinstance(data, Exception):  # it came instead of the bytes
        raise Unreadable(f"cannot be read ({reason(data)})")
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
    except UnidentifiedImageError:  # its message names an object in memory
        raise Unreadable(_unknown_format(data)) from None
    except Exception as error:  # on a broken file, decoders raise anything, even SyntaxError
        raise Unreadable(f"not a readable image ({reason(error)})") from None


def _decode_jpeg(data: bytes, side: int) -> Pixels | None:
    """Decode an intact, upright JPEG in a common color space, reduced by its decoder; None for any other."""
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
        _refuse_bomb(width, height)
        if colors not in ("YCbCr", "Gray", "RGB") or data.find(_EXIF, 0, 2**16) >= 0:
            return None
        # Of the other scales, 5/8 to 7/8 are slower than full size, and 3/8 is no faster than a half.
        scale = next((scale for scale in (8, 4, 2) if min(height, width) >= scale * side), 1)
        size = {"min_height": height // scale, "min_width": width // scale} if scale > 1 else {}
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", **size)
        return pixels
    except ValueError:
        return None  # Pillow accepts the stray bytes that some cameras write, and rejects a truncated file


def _decode_any(data: bytes, side: int) -> Pixels:
    with Image.open(io.BytesIO(data), formats=formats()) as opened:
        _refuse_bomb(*opened.size)
        opened.draft("RGB", (side, side))
        image = to_rgb(opened if opened.getexif().get(_ORIENTATION, 1) == 1 else ImageOps.exif_transpose(opened))
    return reduce_towards(image, side)


def reduce_towards(image: Image.Image, side: int) -> Pixels:
    """Return an image's pixels, averaged fast in blocks down to twice `side`, for a smoother resizing later."""
    if not min(image.size):
        raise Unreadable("the image has no pixels ({} x {})".format(*image.size))
    factor = min(image.size) // max(1, 2 * side)
    return np.array(image.reduce(factor) if factor > 1 else image)


@cache
def formats() -> tuple[str, ...]:
    """Return the accepted formats that this build of Pillow, or its HEIC plugin, can open."""
    Image.init()
    found = tuple(name for name in _FORMATS if name in Image.OPEN)
    if register_heif_opener is None:
        return found
    register_heif_opener()
    return (*found, "HEIF")


def _unknown_format(data: bytes) -> str:
    if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and "HEIF" not in formats():
        return "a HEIC image needs a plugin, which pip install 'dietcl[heic]' installs"
    if data[4:12] == b"ftypavif" and "AVIF" not in formats():
        return "an AVIF image needs Pillow 11.3 or newer"
    return "not a readable image (unknown format)"


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB without clipping 16-bit values or losing a palette's colors."""
    if image.mode == "F":
        # Both ranges, 0 to 1 and 0 to 255, are in use.
        values = np.nan_to_num(np.asarray(image))
        image = Image.fromarray((values * (255 if values.max(initial=0) <= 1 else 1)).clip(0, 255).astype(np.uint8))
    elif image.mode.startswith("I"):
        # Pillow would clip 16 bits at 255, which gives a white image; 32 bits may hold either range.
        values = np.asarray(image).clip(0, 65535)
        is_small = image.mode == "I" and values.max(initial=0) <= 255
        image = Image.fromarray((values if is_small else values >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # as Pillow's warning asks
    return image.convert("RGB")


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise Unreadable(f"too large to be decoded ({width} x {height} pixels, a decompression bomb perhaps)")
