"""How much the images of one character differ, and how that drifts: every difficulty knob of the drawn streams."""

from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Ranges of independent uniform draws, one per image; lengths are parts of the image's side unless said."""

    rotation: Range = (-8.0, 8.0)  # degrees
    shear: Range = (-0.15, 0.15)
    scale: Range = (0.85, 1.05)
    aspect: Range = (-0.1, 0.1)  # natural logarithm of width over height
    shift_x: Range = (-0.05, 0.05)
    shift_y: Range = (-0.05, 0.05)
    weight: Range = (-0.4, 1.0)  # -1: half a pixel of 32 thinner on each side of a stroke; 1: as much bolder
    left_gap: Range = (0.72, 1.5)  # to the centre of the neighbouring character; out of sight from about 1
    right_gap: Range = (0.72, 1.5)
    polarity: Range = (-1.0, -0.1)  # below 0: dark ink on bright paper; above: bright on dark
    contrast: Range = (0.3, 0.8)  # between ink and paper, of the brightness scale
    brightness: Range = (0.0, 1.0)  # where ink and paper lie in what the contrast leaves of the scale
    blur: Range = (0.2, 1.0)  # standard deviation in pixels of 32
    specks: Range = (0.0, 0.006)  # share of the pixels with a speck of ink


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What is added to a draw as time goes from 0 to 1: (amplitude, half waves), from -amplitude at time 0."""

    shear: Range = (0.4, 1.0)
    weight: Range = (0.6, 2.0)
    polarity: Range = (1.1, 1.0)
    contrast: Range = (-0.15, 2.0)
    brightness: Range = (0.3, 3.0)
    blur: Range = (0.3, 2.0)
    specks: Range = (0.004, 1.0)


STILL = Variation()
DRIFTING = Variation(
    shear=(-0.1, 0.1),
    polarity=(-1.0, 1.0),
    weight=(-0.1, 0.5),
    contrast=(0.4, 0.65),
    blur=(0.4, 0.8),
    specks=(0.002, 0.006),
)
