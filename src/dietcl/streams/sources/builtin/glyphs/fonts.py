"""The characters that the font files of matplotlib show, as masks."""

import re
import unicodedata
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

_FOLDER = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
# Left out: Last Resort (a placeholder for every character), faces with an encoding of their own (cmex, cmmi, cmsy,
# STIXNonUni) and faces that hold a few symbols in other sizes (Display, STIXSiz).
_FACES = re.compile(r"(DejaVuSans|DejaVuSansMono|DejaVuSerif)(-\w+)?|STIXGeneral\w*|cm(b|r|ss|ti|tt)10")
_EM = 96  # pixels per em of the drawing that every mask is made from
_FILL = 0.8  # of the canvas, for a character as large as the em
_WIDEST = 0.9

Mask = npt.NDArray[np.uint8]


@cache
def faces() -> tuple[str, ...]:
    """Return the names of the font faces in use."""
    return tuple(path.stem for path in sorted(_FOLDER.glob("*.ttf")) if _FACES.fullmatch(path.stem))


@cache
def coverage() -> dict[str, tuple[str, ...]]:
    """Return the faces that show each character."""
    found: dict[str, list[str]] = {}
    for face in faces():
        for code in FT2Font(str(_FOLDER / f"{face}.ttf")).get_charmap():
            character = chr(code)
            # Computer Modern files put other symbols at the codes of ASCII punctuation.
            if face.startswith("cm") and not (character.isascii() and character.isalnum()):
                continue
            # Marks, separators, controls and private codes have no shape of their own.
            if unicodedata.category(character)[0] not in "MZC":
                found.setdefault(character, []).append(face)
    return {character: tuple(shown_by) for character, shown_by in sorted(found.items())}


def mask(character: str, face: str, canvas: int) -> Mask | None:
    """Return the ink on a square canvas, small characters enlarged half way (on a log scale) to the em."""
    drawing = _drawing(character, face)
    if drawing is None:
        return None
    return _place(drawing, canvas, min(_WIDEST, _FILL * (max(drawing.size) / _EM) ** 0.5))


def probe(character: str, face: str, canvas: int) -> Mask | None:
    """Return the ink enlarged to one size, for comparing shapes whatever their size."""
    drawing = _drawing(character, face)
    return None if drawing is None else _place(drawing, canvas, _FILL)


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # The basic layout: Raqm is not in every build of Pillow and would shape some scripts differently.
    return ImageFont.truetype(str(_FOLDER / f"{face}.ttf"), _EM, layout_engine=ImageFont.Layout.BASIC)


def _drawing(character: str, face: str) -> Image.Image | None:
    """Return the character cropped to its ink, or None if it has none."""
    font = _font(face)
    left, top, right, bottom = font.getbbox(character, anchor="ls")
    if right <= left or bottom <= top:
        return None
    page = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(page).text((1 - left, 1 - top), character, fill=255, font=font, anchor="ls")
    ink = page.getbbox()
    return page.crop(ink) if ink else None


def _place(drawing: Image.Image, canvas: int, extent: float) -> Mask:
    """Centre a drawing on a square canvas, its longer side taking that part of it."""
    factor = extent * canvas / max(drawing.size)
    width, height = (max(1, round(side * factor)) for side in drawing.size)
    page = Image.new("L", (canvas, canvas))
    small = drawing.resize((width, height), Image.Resampling.BILINEAR)
    page.paste(small, ((canvas - width) // 2, (canvas - height) // 2))
    return np.asarray(page)
