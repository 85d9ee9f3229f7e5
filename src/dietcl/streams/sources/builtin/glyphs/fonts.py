"""The characters that the font files of matplotlib show, as images of their ink."""

import re
import unicodedata
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

_FOLDER = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
# Left out: Last Resort (a placeholder for every character), faces with an encoding of their own (cmex, cmmi, cmsy,
# STIXNonUni) and faces that hold a few symbols in other sizes (Display, STIXSiz).
_FACES = re.compile(r"(DejaVuSans|DejaVuSansMono|DejaVuSerif)(-\w+)?|STIXGeneral\w*|cm(b|r|ss|ti|tt)10")
_EM = 96  # pixels per em of the drawing that is scaled to the canvas
_FILL = 0.8  # of the canvas, for a character as large as the em
_WIDEST = 0.9


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


def draw(character: str, face: str, canvas: int, one_size: bool = False) -> Image.Image | None:
    """Return the ink in the middle of a square canvas, or None if there is none.

    Small characters are enlarged half way (on a log scale) to the em, or all of them to one size for comparing shapes.
    """
    font = _font(face)
    left, top, right, bottom = font.getbbox(character, anchor="ls")
    if right <= left or bottom <= top:
        return None
    page = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(page).text((1 - left, 1 - top), character, fill=255, font=font, anchor="ls")
    box = page.getbbox()
    if box is None:
        return None
    ink = page.crop(box)
    fill = _FILL if one_size else min(_WIDEST, _FILL * (max(ink.size) / _EM) ** 0.5)
    factor = fill * canvas / max(ink.size)
    width, height = (max(1, round(side * factor)) for side in ink.size)
    placed = Image.new("L", (canvas, canvas))
    scaled = ink.resize((width, height), Image.Resampling.BILINEAR)
    placed.paste(scaled, ((canvas - width) // 2, (canvas - height) // 2))
    return placed


@cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # The basic layout: Raqm is not in every build of Pillow and would shape some scripts differently.
    return ImageFont.truetype(str(_FOLDER / f"{face}.ttf"), _EM, layout_engine=ImageFont.Layout.BASIC)
