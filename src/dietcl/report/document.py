"""The frame of an HTML page and its images: no network, no file beside it, and readable without JavaScript."""

import base64
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from dietcl import __version__
from dietcl.report.confusion import Images
from dietcl.report.style import page_css

_SCRIPTS = ("chart.js", "accuracy.js", "page.js")  # in this order they are one script
_THUMBNAIL = 112
_FIGURE_COLORS = 128


@dataclass(frozen=True)
class Section:
    """A part of the page with its place in the navigation; the body is HTML."""

    key: str
    link: str
    title: str
    sentence: str
    body: str


def document(
    *, heading: str, verdict: str, lede: str, sections: Sequence[Section], chart_data: dict[str, Any] | None = None
) -> Iterator[str]:
    """Yield a page; only with chart data does it have a script."""
    script = (
        "".join(files("dietcl.report").joinpath(name).read_text("utf-8") for name in _SCRIPTS) if chart_data else ""
    )
    # Whatever a run's labels hold, the browser executes this one script and fetches nothing.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    links = "".join(f'<a href="#{section.key}">{section.link}</a>' for section in sections)

    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)} – dietcl</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{page_css()}</style>"  # before the next, which overrides it
    yield "<noscript><style>.chart, .tools, .heat, .legend, .live { display: none; }</style></noscript>"
    yield f'</head><body><header><p class="kicker">dietcl report</p><h1>{escape(heading)}</h1>'
    yield f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""
    yield f'<p class="lede">{escape(lede)}</p><nav>{links}</nav></header><main>'
    for section in sections:
        yield f'<section id="{section.key}"><h2>{section.title}</h2>'
        yield f'<p class="say">{section.sentence}</p>' if section.sentence else ""
        yield f"{section.body}</section>"
    charts = "; the charts lie as PNG files in the folder figures" if chart_data else ""
    yield f"</main><footer>Written by dietcl {__version__}{charts}.</footer>"
    if chart_data:
        data = json.dumps(chart_data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
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
        rule, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        few = picture.convert("RGB").quantize(_FIGURE_COLORS, method=rule, dither=dither)
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
