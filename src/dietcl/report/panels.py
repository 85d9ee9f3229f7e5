"""The sections of the page that show one panel per run: charts, predictions, reconstructions, settings."""

import base64
import io
import json
from collections.abc import Callable, Sequence
from html import escape

from dietcl.report.chart_json import INTERACTIVE_STEPS
from dietcl.report.figures import Figure, name_colors
from dietcl.report.groups import Entry
from dietcl.report.runs import Images, Run
from dietcl.report.series import ceiling, chosen_samples, chosen_triples, is_point, loss_lines, origin_lines, spending
from dietcl.report.style import FEW, look

_THUMBNAIL = 112
_FIGURE_COLORS = 128
_ABSENT = {
    "matrix": "No accuracy was measured",
    "budget": "No receipts were written",
    "losses": "No losses were recorded",
    "within": "No curves within time steps were recorded",
    "samples": "No sample images were kept",
    "reconstructions": "No reconstructions were kept",
}


def chart_panels(kind: str, entries: Sequence[Entry], figures: Sequence[Figure]) -> str:
    """Return one interactive chart per run, each with its PNG figure for readers without JavaScript."""
    drawn = {figure.run: figure for figure in figures if figure.kind == kind}
    runs = [entry.run for entry in entries]
    top, colors = ceiling(runs), name_colors(runs)
    legends: dict[str, Callable[[Run], str]] = {
        "matrix": lambda run: _heat(top),
        "budget": lambda run: _purposes(run, colors),
        "losses": lambda run: _terms(run, colors),
        "within": _origins,
    }
    bodies = []
    for i, run in enumerate(runs):
        if i not in drawn:
            bodies.append("")
        elif kind == "matrix" and run.summary.time_steps > INTERACTIVE_STEPS:
            bodies.append(image(drawn[i]))
        else:
            chart = f'<div class="chart" data-kind="{kind}" data-run="{i}"></div>{legends[kind](run)}'
            bodies.append(f"{chart}<noscript>{image(drawn[i])}</noscript>")
    return _panels(kind, bodies, entries, [_aside(kind, run) for run in runs])


def sample_panels(entries: Sequence[Entry]) -> str:
    """Return test images with true and predicted labels per run."""
    asides = []
    for samples in (entry.run.samples for entry in entries):
        right = sum(a == b for a, b in zip(samples.label, samples.predicted, strict=True)) if samples else 0
        asides.append(f"{right} of {len(samples.label)} samples right" if samples else "")
    return _panels("samples", [_samples(entry.run) for entry in entries], entries, asides, wide=True)


def reconstruction_panels(entries: Sequence[Entry]) -> str:
    """Return originals, what the model saw of them and what it made of that, per run."""
    bodies = [_reconstructions(entry.run) for entry in entries]
    return _panels("reconstructions", bodies, entries, [""] * len(entries))


def settings_panels(entries: Sequence[Entry]) -> str:
    """Return each run's whole configuration and where it was made."""
    return "".join(
        f'<details class="card settings"><summary>{escape(entry.label)} · folder {escape(entry.run.name)}</summary>'
        f"<pre>{_pretty('config', entry.run.config)}\n{_pretty('environment', entry.run.environment)}</pre></details>"
        for entry in entries
    )


def image(figure: Figure) -> str:
    """Return a PNG figure as an element of the page, in few colours: a page of many runs is a third as large."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(figure.path) as picture:
        # Chosen by coverage: by frequency, the rare ends of a colour bar would be lost.
        rule, plain = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        few = picture.convert("RGB").quantize(_FIGURE_COLORS, method=rule, dither=plain)
    few.save(buffer, "PNG")
    return f'<img class="fallback" alt="{escape(figure.alt)}" src="{_uri(buffer.getvalue(), "png")}">'


def swatch(place: int, run: Run) -> str:
    """Return the line of a group, or the diamond of a run without one, as an element of the page."""
    point = " point" if is_point(run) else ""
    return f'<span class="key k{look(place).color} l{look(place).pattern}{point}"></span>'


def _panels(
    kind: str, bodies: Sequence[str], entries: Sequence[Entry], asides: Sequence[str], wide: bool = False
) -> str:
    first: list[str] = []
    further: list[str] = []
    absent: list[str] = []
    places: set[int] = set()
    for body, entry, aside in zip(bodies, entries, asides, strict=True):
        if not body:
            absent.append(entry.label)
            continue
        # One seed of every configuration is in view; the others wait behind a click, so that a sweep stays readable.
        shelf = further if entry.place in places or len(first) == FEW else first
        places.add(entry.place)
        shelf.append(
            f'<figure class="card panel"><figcaption><h3>{swatch(entry.place, entry.run)}{escape(entry.label)}</h3>'
            f"<small>{escape(aside)}</small></figcaption>{body}</figure>"
        )
    columns = "one" if wide or len(first) == 1 else "two" if len(first) in (2, 4) else "three"
    grid = f'<div class="grid {columns}">'
    html = f"{grid}{''.join(first)}</div>" if first else ""
    if further:
        html += (
            f'<details class="more"><summary>Show {len(further)} more</summary>{grid}{"".join(further)}</div></details>'
        )
    if absent:
        html += f'<p class="absent">{_ABSENT[kind]} for {escape(", ".join(absent))}.</p>'
    return html


def _aside(kind: str, run: Run) -> str:
    if kind == "budget" and run.receipts is not None:
        search = sum(item.passes for item in run.receipts.search)
        once = ", all at once" if is_point(run) else ""
        return f"{run.receipts.passes:,.0f} passes{once}" + (f", and {search:,.0f} to search" if search else "")
    return ""


def _heat(top: float) -> str:
    return f'<div class="heat"><span>0 %</span><i></i><span>{100 * top:.0f} %</span></div>'


def _origins(run: Run) -> str:
    curves = origin_lines(run)
    names = list(curves.lines) if curves else [""]
    return f'<div class="heat ramp"><span>images of time step {names[0]}</span><i></i><span>{names[-1]}</span></div>'


def _purposes(run: Run, colors: dict[str, int]) -> str:
    spent = spending(run)
    unused = '<span><span class="swatch unused"></span>unused</span>'
    return _legend(list(spent.by_purpose) if spent else [], colors, unused)


def _terms(run: Run, colors: dict[str, int]) -> str:
    losses = loss_lines(run)
    return _legend(list(losses.lines) if losses else [], colors)


def _legend(names: Sequence[str], colors: dict[str, int], more: str = "") -> str:
    entries = (f'<span><span class="swatch n{colors[name]}"></span>{escape(name)}</span>' for name in names)
    return f'<div class="legend">{"".join(entries)}{more}</div>'


def _samples(run: Run) -> str:
    if run.samples is None or not len(run.samples.images):
        return ""
    tiles = []
    for i in chosen_samples(run):
        true, said = run.samples.label[i], run.samples.predicted[i]
        verdict = "right" if true == said else "wrong"
        words = f"Time step {run.samples.t[i]}: {true}" + ("" if true == said else f", taken for {said}")
        wrong = "" if true == said else f"<s>✗ {escape(said)}</s>"
        tiles.append(
            f'<figure class="tile {verdict}" title="{escape(words)}">{_thumbnail(run.samples.images[i], words)}'
            f"<b>{'✓ ' if true == said else ''}{escape(true)}</b>{wrong}</figure>"
        )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _reconstructions(run: Run) -> str:
    chosen = chosen_triples(run)
    if run.samples is None or not chosen:
        return ""
    rows = (
        ("Original", run.samples.originals),
        ("Masked", run.samples.masked),
        ("Reconstructed", run.samples.reconstructed),
    )
    cells = "".join(
        f"<span>{title}</span>" + "".join(_thumbnail(images[i], f"{title} {i + 1}") for i in chosen)
        for title, images in rows
    )
    return f'<div class="triples" style="--n:{len(chosen)}">{cells}</div>'


def _thumbnail(pixels: Images, words: str) -> str:
    """Return an image element; small images keep their pixels, large ones are scaled down to spare the page."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    small = max(picture.size) <= _THUMBNAIL
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG" if small else "JPEG", optimize=True)
    source = _uri(buffer.getvalue(), "png" if small else "jpeg")
    kind = "pixels" if max(picture.size) <= 64 else ""
    return f'<img class="{kind}" loading="lazy" alt="{escape(words)}" src="{source}">'


def _uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _pretty(title: str, value: dict[str, object]) -> str:
    return escape(f"{title} = {json.dumps(value, indent=2, ensure_ascii=False)}")
