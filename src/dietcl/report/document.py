"""The frame of an HTML page and its images: no network, no other file, and readable without JavaScript."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.Image import Dither, Quantize

from dietcl import __version__
from dietcl.report.confusion import Images
from dietcl.report.style import page_css

_SCRIPTS = ("chart.js", "accuracy.js", "page.js")  # in this order they are one script
_THUMBNAIL = 112
_FIGURE_COLORS = 128
Section = tuple[str, str, str, str, str]  # key, link in the navigation, title, sentence, body as HTML


def document(heading: str, verdict: str, lede: str, sections: Sequence[Section], charts: Any = None) -> Iterator[str]:
    """Yield a page; only one with charts has a script."""
    names = _SCRIPTS if charts else ()
    script = "".join(files("dietcl.report").joinpath(name).read_text("utf-8") for name in names)
    # Whatever a run's labels are, the browser executes this one script and fetches nothing.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    links = "".join(f'<a href="#{key}">{link}</a>' for key, link, *_ in sections)

    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)} – dietcl</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{page_css()}</style>"  # before the next, which overrides it
    yield "<noscript><style>.chart, .tools, .heat, .legend, .live { display: none; }</style></noscript>"
    yield f'</head><body><header><p class="kicker">dietcl report</p><h1>{escape(heading)}</h1>'
    yield f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""
    yield f'<p class="lede">{escape(lede)}</p><nav>{links}</nav></header><main>'
    for key, _, title, sentence, body in sections:
        yield f'<section id="{key}"><h2>{title}</h2>'
        yield f'<p class="intro">{sentence}</p>' if sentence else ""
        yield f"{body}</section>"
    note = "; the charts are also PNG files in the folder figures" if charts else ""
    yield f"</main><footer>Written by dietcl {__version__}{note}.</footer>"
    if charts:
        data = json.dumps(charts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        yield '<div id="tip" role="tooltip" hidden></div>'
        yield f'<script type="application/json" id="data">{data}</script><script>{script}</script>'
    yield "</body></html>\n"


def thumbnail_element(pixels: Images, words: str) -> str:
    """Return an image; small ones keep their pixels, large ones are scaled down to keep the page small."""
    picture = Image.fromarray(pixels)
    small = max(picture.size) <= _THUMBNAIL
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    source = _data_uri(picture, "PNG" if small else "JPEG", optimize=True)
    kind = "pixels" if max(picture.size) <= 64 else ""
    return f'<img class="{kind}" loading="lazy" alt="{escape(words)}" src="{source}">'


def figure_element(path: Path, alt: str) -> str:
    """Return a PNG figure in few colours: a page of many runs is a third as large."""
    with Image.open(path) as picture:
        # Chosen by coverage: by frequency, the rare ends of a colour bar would be lost.
        few = picture.convert("RGB").quantize(_FIGURE_COLORS, Quantize.MAXCOVERAGE, dither=Dither.NONE)
    return f'<img class="fallback" alt="{escape(alt)}" src="{_data_uri(few, "PNG")}">'


def table_element(label: str, head: str, body: str, style: str = "", card: bool = True) -> str:
    """Return a table that scrolls where it is wider than the page."""
    scroll = f'<div class="{"card " if card else ""}scroll" tabindex="0" role="region" aria-label="{label}">'
    table = f'<table class="{style}">' if style else "<table>"
    return f"{scroll}{table}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def folded(summary: str, html: str) -> str:
    """Return what a click on its summary unfolds."""
    return f'<details class="more"><summary>{summary}</summary>{html}</details>'


def _data_uri(picture: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
