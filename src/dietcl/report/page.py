"""One self-contained HTML page: no network, no file beside it, and still readable without JavaScript."""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from dietcl import __version__
from dietcl.files import make_folder
from dietcl.report import panels
from dietcl.report.chart_json import page_data
from dietcl.report.comparison import comparison
from dietcl.report.figures import Figure, write_figures
from dietcl.report.groups import Group, entries_of, group_runs
from dietcl.report.runs import read_runs
from dietcl.report.series import MEASURES, is_point
from dietcl.report.style import FEW

_FIGURES = "figures"
_SCRIPTS = ("chart.js", "accuracy.js", "page.js")  # in this order they are one script
_SECTIONS = {
    "comparison": ("Comparison", "Comparison", ""),
    "accuracy": (
        "Accuracy",
        "Accuracy along the stream",
        "After each time step the model is tested on the images of every time step so far; a falling line means that "
        "there is ever more to know, or that what was known is being forgotten.",
    ),
    "matrix": (
        "Matrix",
        "What is kept of each time step",
        "Each row is the model after one more time step and each column the test images of one time step: the diagonal "
        "is what was just learned, what lies to the right of it is yet to be learned, and a column that fades further "
        "down is being forgotten.",
    ),
    "budget": (
        "Budget",
        "Where the budget went",
        "Each bar is what one time step may spend, coloured by what it was spent on; the hatched part was left over.",
    ),
    "losses": (
        "Losses",
        "Training losses",
        "Each line is one term of the training loss, averaged over short stretches of updates; it jumps where new data "
        "arrives and falls while that is learned.",
    ),
    "within": (
        "Within time steps",
        "Within time steps",
        "Accuracy while a time step is being learned, one line per time step that the test images come from; a dip "
        "right after new data arrives that later recovers is called the stability gap.",
    ),
    "samples": (
        "Predictions",
        "Predictions",
        "Test images with the model's answer at the end of the stream: green is right; red is wrong, with the true "
        "label above the answer given.",
    ),
    "reconstructions": (
        "Reconstructions",
        "Reconstructions",
        "The model sees a few patches of an image and draws the hidden rest, which is how it can learn from images "
        "that carry no label.",
    ),
    "settings": ("Settings", "Settings", ""),
}


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write report.html and the PNG figures of some run folders into a folder, and return the page's path."""
    groups = group_runs(read_runs(runs))
    figures = write_figures(groups, make_folder(make_folder(out) / _FIGURES))
    page = out / "report.html"
    page.write_text("\n".join(_page(groups, figures)), encoding="utf-8")
    return page


def accuracy_picture(out: Path) -> Path:
    """Return where write_report puts the picture of accuracy along the stream."""
    return out / _FIGURES / f"{MEASURES[0].curve}.png"


def _page(groups: Sequence[Group], figures: Sequence[Figure]) -> Iterator[str]:
    parts = [files("dietcl.report").joinpath(name).read_text("utf-8") for name in ("page.css", *_SCRIPTS)]
    style, script = parts[0], "".join(parts[1:])
    data = json.dumps(page_data(groups), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    # Whatever a run's labels hold, the browser executes this one script and fetches nothing.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    heading = escape(_heading(groups))
    bodies = _bodies(groups, figures)
    links = "".join(f'<a href="#{key}">{_SECTIONS[key][0]}</a>' for key in bodies)

    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading} – dietcl</title>'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{style}</style>"  # before the next one, which has the last word
    yield "<noscript><style>.chart, .tools, .heat, .legend, .live { display: none; }</style></noscript>"
    yield f'</head><body><header><p class="kicker">dietcl report</p><h1>{heading}</h1>'
    yield f'<p class="lede">{escape(_lede(groups))}</p><nav>{links}</nav></header><main>'
    for key, body in bodies.items():
        _, title, sentence = _SECTIONS[key]
        yield f'<section id="{key}"><h2>{title}</h2>'
        yield f'<p class="say">{sentence}</p>' if sentence else ""
        yield f"{body}</section>"
    yield f"</main><footer>Written by dietcl {__version__}; the charts lie as PNG files in the folder figures.</footer>"
    yield '<div id="tip" role="tooltip" hidden></div>'
    yield f'<script type="application/json" id="data">{data}</script><script>{script}</script></body></html>\n'


def _bodies(groups: Sequence[Group], figures: Sequence[Figure]) -> dict[str, str]:
    entries = entries_of(groups)
    charts = {
        kind: panels.chart_panels(kind, entries, figures)
        for kind in ("matrix", "budget", "losses", "within")
        # Curves within time steps are recorded on request only.
        if kind != "within" or any(figure.kind == kind for figure in figures)
    }
    return {
        "comparison": "".join(comparison(entries)),
        "accuracy": "".join(_accuracy(groups, figures)),
        **charts,
        "samples": panels.sample_panels(entries),
        "reconstructions": panels.reconstruction_panels(entries),
        "settings": panels.settings_panels(entries),
    }


def _heading(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.runs[0].method for group in groups))
    streams = " and ".join(dict.fromkeys(group.runs[0].stream for group in groups))
    if len(names) > 4:
        return f"{len(names)} methods on {streams}"
    return f"{', '.join(names[:-1])} and {names[-1]} on {streams}" if len(names) > 1 else f"{names[0]} on {streams}"


def _lede(groups: Sequence[Group]) -> str:
    runs = [entry.run for entry in entries_of(groups)]
    budgets = " or ".join(dict.fromkeys(run.budget for run in runs))
    steps = " or ".join(str(n) for n in sorted({run.due for run in runs} - {0}))
    rates = [f"{100 * rate:.2g}" for run in runs if (rate := run.realized_rate) is not None]
    labeled = f" {_span(rates)} % of the arriving images carry a label." if rates else ""
    many = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{many} over {steps or 'no'} time steps, each of which may spend {budgets}.{labeled}"


def _span(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if low == high else f"{low} to {high}"


def _accuracy(groups: Sequence[Group], figures: Sequence[Figure]) -> Iterator[str]:
    entries = entries_of(groups)
    if not any(entry.run.summary.learned for entry in entries):
        finished = any(entry.run.finished for entry in entries)
        why = "there were no test images" if finished else "no run has finished its first time step"
        yield f'<p class="absent">No accuracy was measured: {why}.</p>'
        return
    yield '<div class="card panel"><div id="tools" class="tools"></div><div class="chart" data-kind="accuracy"></div>'
    yield f"<noscript>{''.join(panels.image(figure) for figure in figures if figure.run < 0)}</noscript>"
    yield f'<p class="small">{_reading(groups)}</p></div>'
    yield '<details class="more"><summary>The numbers (mean over time steps, in percent)</summary>'
    yield '<div class="card scroll" tabindex="0" role="region" aria-label="Accuracy by time step"><table><thead><tr>'
    steps = max(entry.run.summary.time_steps for entry in entries)
    yield f"<th>Time steps learned</th>{''.join(f'<th>{t}</th>' for t in range(1, steps + 1))}</tr></thead><tbody>"
    for entry in entries:
        cells = (f"<td>{'–' if math.isnan(v) else f'{100 * v:.1f}'}</td>" for v in entry.run.summary.accuracy_mean)
        yield f'<tr><th scope="row">{escape(entry.label)}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div></details>"


def _reading(groups: Sequence[Group]) -> str:
    """Say what the lines of the accuracy chart are."""
    several = any(len(group.runs) > 1 for group in groups)
    if len(groups) <= FEW:
        said = "Shaded is one standard error, as the test images are a sample."
        if several:
            said = "Thin lines are seeds and the bold one is their mean; shaded is one standard deviation."
    else:
        spread = "standard deviation" if several else "standard error"
        said = "Each line is the mean over seeds. " if several else ""
        said += f"One {spread} is shaded only where at most {FEW} lines share a chart; the table above has it."
        raised = "raises its line and shows its seeds" if several else "raises its line"
        said += f' <span class="live">Pointing at an entry of the legend {raised}; a click hides it.</span>'
    if any(is_point(run) for group in groups for run in group.runs):
        said += " A diamond was tested only once, after the last time step."
    return said
