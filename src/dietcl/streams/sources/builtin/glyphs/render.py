"""Images of a character: pose, stroke, clutter, ink, paper and scanner as drawn from a key per image."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from dietcl.rng import Part, numpy_generator
from dietcl.streams.sources.builtin.glyphs.fonts import coverage, draw
from dietcl.streams.sources.builtin.glyphs.glyphs import Drift, Variation

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Look = dict[str, npt.NDArray[np.float64]]  # one number per image

_FREE = ("time", "face", "left", "right")  # uniform on [0, 1)
_NEIGHBOURS = "abdeghkmnpqrstuwxyzABDEGHKMNRSTXZ234567890"


def render(
    character: str, keys: Sequence[Sequence[Part]], size: int, variation: Variation, drift: Drift | None
) -> tuple[Images, npt.NDArray[np.float64]]:
    """Return one image and one time on [0, 1) per key, each a function of the character and its own key alone."""
    ranges = asdict(variation)
    names = [*_FREE, *ranges]
    uniform = np.empty((len(keys), len(names)))
    grain = np.empty((len(keys), size, size), dtype=np.float32)
    for row, key in enumerate(keys):
        generator = numpy_generator(*key)
        generator.random(out=uniform[row])
        generator.random(out=grain[row], dtype=np.float32)
    look = dict(zip(names, uniform.T.copy(), strict=True))
    for name, (low, high) in ranges.items():
        look[name] = low + (high - low) * look[name]
    if drift is not None:
        for name, (amplitude, half_waves) in asdict(drift).items():
            look[name] -= amplitude * np.cos(np.pi * half_waves * look["time"])
    ink = _halve(_reweigh(_pose(character, 2 * size, look), look["weight"], max(1, round(size / 32))))
    return _scan(ink, grain, look), look["time"]


@cache
def _neighbours(face: str, canvas: int) -> list[Image.Image]:
    return [drawn for character in _NEIGHBOURS if (drawn := draw(character, face, canvas))]


def _pose(character: str, canvas: int, look: Look) -> Images:
    """Return the character and its two neighbours, posed, at twice the resolution of the image."""
    sources = [(face, drawn) for face in coverage()[character] if (drawn := draw(character, face, canvas))]
    angle = np.radians(look["rotation"])
    cos, sin = np.cos(angle), np.sin(angle)
    wide, high = look["scale"] * np.exp(look["aspect"] / 2), look["scale"] * np.exp(-look["aspect"] / 2)
    # The inverse of rotation x shear x scaling takes a pixel of the image back to the canvas.
    a, b = (cos + look["shear"] * sin) / wide, (sin - look["shear"] * cos) / wide
    d, e = -sin / high, cos / high
    x, y = canvas * (0.5 + look["shift_x"]), canvas * (0.5 + look["shift_y"])
    c, f = canvas / 2 - a * x - b * y, canvas / 2 - d * x - e * y
    posed = np.empty((len(a), canvas, canvas), dtype=np.uint8)
    for row in range(len(a)):
        face, source = sources[int(look["face"][row] * len(sources))]
        matrix = (a[row], b[row], c[row], d[row], e[row], f[row])
        posed[row] = _transform(source, matrix, 0.0)
        others = _neighbours(face, canvas)
        for side, gap in (("left", look["left_gap"][row]), ("right", -look["right_gap"][row])):
            if abs(gap) * look["scale"][row] < 1:
                other = others[int(look[side][row] * len(others))]
                np.maximum(posed[row], _transform(other, matrix, gap * canvas), out=posed[row])
    return posed


def _transform(source: Image.Image, matrix: tuple[float, ...], offset: float) -> Images:
    moved = (*matrix[:2], matrix[2] + offset, *matrix[3:])
    return np.asarray(source.transform(source.size, Image.Transform.AFFINE, moved, Image.Resampling.BILINEAR))


def _reweigh(ink: Images, weight: npt.NDArray[np.float64], radius: int) -> Floats:
    """Blend each image towards its dilation (weight above 0) or its erosion (below)."""
    bolder = (weight > 0)[:, None, None]
    # Erosion is the dilation of the negative, so one running maximum serves both.
    flipped = np.where(bolder, ink, 255 - ink)
    spread = flipped.copy()
    for _ in range(radius):
        for view in (spread, spread.swapaxes(1, 2)):
            before = view.copy()
            np.maximum(view[:, 1:], before[:, :-1], out=view[:, 1:])
            np.maximum(view[:, :-1], before[:, 1:], out=view[:, :-1])
    share: Floats = np.clip(weight, -1, 1).astype(np.float32)[:, None, None]
    change: Floats = (spread - flipped) * share
    return (ink + change) / np.float32(255)


def _halve(image: Floats) -> Floats:
    return (image[:, ::2, ::2] + image[:, 1::2, ::2] + image[:, ::2, 1::2] + image[:, 1::2, 1::2]) / np.float32(4)


def _scan(ink: Floats, grain: Floats, look: Look) -> Images:
    """Put ink and specks on paper, blur and quantize."""
    size = ink.shape[1]
    one: dict[str, Floats] = {name: values.astype(np.float32)[:, None, None] for name, values in look.items()}
    contrast = np.clip(one["contrast"], 0.05, 1)
    dark = (1 - contrast) * np.clip(one["brightness"], 0, 1)
    inverted = one["polarity"] > 0
    paper = np.where(inverted, dark, dark + contrast)
    ink = np.where(inverted, contrast, -contrast) * np.maximum(ink, grain < one["specks"])
    image = _blur(paper + ink, np.maximum(look["blur"], 0.1) * size / 32)
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def _blur(image: Floats, deviation: npt.NDArray[np.float64]) -> Floats:
    """Blur each image by a Gaussian of its own, edges repeated."""
    size = image.shape[1]
    radius = max(2, round(3 * size / 32))  # not from the deviations: an image must not depend on others
    distance = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (distance / deviation[:, None]) ** 2)
    kernel = (kernel / kernel.sum(axis=1, keepdims=True)).astype(np.float32)[:, :, None, None]
    for axis in (1, 2):
        padding = [(radius, radius) if axis == other else (0, 0) for other in range(3)]
        padded = np.pad(image, padding, mode="edge")
        windows = [padded[:, k : k + size] if axis == 1 else padded[:, :, k : k + size] for k in range(2 * radius + 1)]
        image = kernel[:, 0] * windows[0]
        for k in range(1, 2 * radius + 1):
            image += kernel[:, k] * windows[k]
    return image
