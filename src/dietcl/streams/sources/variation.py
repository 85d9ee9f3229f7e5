"""How the images of one character differ: pose, stroke, clutter, ink, paper and scanner."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from dietcl.keys import Part, numpy_generator
from dietcl.streams.sources.fonts import Mask, coverage, mask

Range = tuple[float, float]
Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Look = dict[str, npt.NDArray[np.float64]]  # one number per image


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Ranges of independent uniform draws, one per image; lengths are parts of the image's side unless said."""

    rotation: Range = (-14.0, 14.0)  # degrees
    shear: Range = (-0.3, 0.3)
    scale: Range = (0.75, 1.1)
    aspect: Range = (-0.15, 0.15)  # natural logarithm of width over height
    shift_x: Range = (-0.09, 0.09)
    shift_y: Range = (-0.09, 0.09)
    weight: Range = (-0.4, 1.0)  # -1: half a pixel of 32 thinner on each side of a stroke; 1: as much bolder
    left_gap: Range = (0.7, 1.3)  # to the centre of the neighbouring character; out of sight from about 1
    right_gap: Range = (0.7, 1.3)
    polarity: Range = (-1.0, 1.0)  # below 0: dark ink on bright paper; above: bright on dark
    contrast: Range = (0.25, 0.8)  # between ink and paper, of the brightness scale
    brightness: Range = (0.0, 1.0)  # where ink and paper lie in what the contrast leaves of the scale
    gradient: Range = (0.0, 0.3)  # of the light on the paper, from edge to edge
    texture: Range = (0.0, 0.15)  # amplitude of a wave on the paper
    texture_waves: Range = (1.0, 5.0)  # over the image's side
    blur: Range = (0.2, 1.0)  # standard deviation in pixels of 32
    noise: Range = (0.02, 0.1)  # standard deviation, of the brightness scale


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What is added to a draw as time goes from 0 to 1: (amplitude, half waves), from -amplitude at time 0."""

    shear: Range = (0.4, 1.0)
    weight: Range = (0.6, 2.0)
    polarity: Range = (1.1, 1.0)
    contrast: Range = (-0.15, 2.0)
    brightness: Range = (0.3, 3.0)
    texture: Range = (0.08, 1.0)
    blur: Range = (0.3, 2.0)
    noise: Range = (0.05, 1.0)


STILL = Variation()
DRIFTING = Variation(
    shear=(-0.15, 0.15),
    weight=(-0.2, 0.4),
    contrast=(0.4, 0.7),
    texture=(0.08, 0.12),
    blur=(0.4, 0.8),
    noise=(0.06, 0.1),
)
_FREE = ("time", "face", "left", "right", "gradient_angle", "texture_angle", "texture_phase")  # uniform on [0, 1)
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
        generator.standard_normal(out=grain[row], dtype=np.float32)
    look = dict(zip(names, uniform.T.copy(), strict=True))
    for name, (low, high) in ranges.items():
        look[name] = low + (high - low) * look[name]
    if drift is not None:
        for field in fields(drift):
            amplitude, half_waves = getattr(drift, field.name)
            look[field.name] -= amplitude * np.cos(np.pi * half_waves * look["time"])
    ink = _halve(_reweigh(_pose(character, 2 * size, look), look["weight"], max(1, round(size / 32))))
    return _scan(ink, grain, look), look["time"]


@cache
def _neighbours(face: str, canvas: int) -> list[Mask]:
    return [found for found in (mask(c, face, canvas) for c in _NEIGHBOURS) if found is not None]


def _pose(character: str, canvas: int, look: Look) -> Images:
    """Return the character and its two neighbours, posed, at twice the resolution of the image."""
    faces = [(face, mask(character, face, canvas)) for face in coverage()[character]]
    sources = [(face, Image.fromarray(found)) for face, found in faces if found is not None]
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
                other = Image.fromarray(others[int(look[side][row] * len(others))])
                np.maximum(posed[row], _transform(other, matrix, gap * canvas), out=posed[row])
    return posed


def _transform(source: Image.Image, matrix: tuple[float, ...], offset: float) -> Images:
    a, b, c, d, e, f = matrix
    moved = (a, b, c + offset, d, e, f)
    return np.asarray(source.transform(source.size, Image.Transform.AFFINE, moved, Image.Resampling.BILINEAR))


def _reweigh(ink: Images, weight: npt.NDArray[np.float64], radius: int) -> Floats:
    """Blend each image towards its dilation (weight above 0) or its erosion (below)."""
    bolder = (weight > 0)[:, None, None]
    # Erosion is the dilation of the negative, so one running maximum serves both.
    flipped = np.where(bolder, ink, 255 - ink)
    spread = flipped
    for _ in range(radius):
        for axis in (1, 2):
            spread = np.maximum(spread, np.maximum(np.roll(spread, 1, axis), np.roll(spread, -1, axis)))
    share = np.minimum(np.abs(weight), 1).astype(np.float32)[:, None, None] / 255
    change = (spread - flipped) * share
    return ink * np.float32(1 / 255) + np.where(bolder, change, -change)


def _halve(image: Floats) -> Floats:
    return (image[:, ::2, ::2] + image[:, 1::2, ::2] + image[:, ::2, 1::2] + image[:, 1::2, 1::2]) / 4


def _scan(ink: Floats, grain: Floats, look: Look) -> Images:
    """Put ink on paper, blur, add noise and quantize."""
    size = ink.shape[1]
    place = ((np.arange(size, dtype=np.float32) + 0.5) / size - 0.5)[None]
    column = {name: values.astype(np.float32)[:, None, None] for name, values in look.items()}
    contrast = np.clip(column["contrast"], 0.05, 1)
    dark = (1 - contrast) * np.clip(column["brightness"], 0, 1)
    inverted = column["polarity"] > 0
    paper = np.where(inverted, dark, dark + contrast) + column["gradient"] * _across(look["gradient_angle"], place)
    along = look["texture_waves"][:, None, None] * _across(look["texture_angle"], place)
    paper = paper + column["texture"] * np.sin(2 * np.pi * (along + look["texture_phase"][:, None, None]))
    image = paper + ink * np.where(inverted, contrast, -contrast)
    image = _blur(image.astype(np.float32), np.maximum(look["blur"], 0.1) * size / 32)
    image += np.maximum(column["noise"], 0) * grain
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def _across(turns: npt.NDArray[np.float64], place: Floats) -> Floats:
    """Return each pixel's place along a direction, from -0.5 to 0.5 through the middle."""
    angle = (2 * np.pi * turns).astype(np.float32)[:, None, None]
    across: Floats = np.cos(angle) * place[:, None, :] + np.sin(angle) * place[:, :, None]
    return across


def _blur(image: Floats, deviation: npt.NDArray[np.float64]) -> Floats:
    """Blur each image by a Gaussian of its own, edges repeated."""
    size = image.shape[1]
    radius = max(2, round(3 * size / 32))  # never from the deviations at hand: an image must not depend on others
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
