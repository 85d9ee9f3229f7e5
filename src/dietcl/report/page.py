"""One self-contained HTML page: no network, no file beside it, and still readable without JavaScript."""

import base64
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dietcl import __version__
from dietcl.report.figures import PALETTE, Figure, write_figures
from dietcl.report.groups import Group, group_runs
from dietcl.report.runs import Run, read_runs
from dietcl.report.series import spending as spending_of
from dietcl.report.tables import COLUMNS, cell, comparison_rows, paired_rows

_OPEN_PANELS = 4  # further runs wait behind a click, so that a sweep stays readable
_INTERACTIVE_STEPS = 150  # a matrix of more time steps is shown as its PNG figure
_THUMBNAIL = 112

_SAY = {
    "accuracy": "After each time step the model is tested on the images of every time step so far, so a falling line "
    "means that there is ever more to know, or that what was known is forgotten.",
    "matrix": "Each row is the model after one more time step and each column the test images of one time step: the "
    "diagonal is what was just learned, and a column that pales downwards is being forgotten.",
    "budget": "Each bar is what one time step may spend, coloured by what it was spent on; the hatched part was left over.",
    "losses": "Each line is one term of the training loss, averaged over short stretches of updates; it jumps where new "
    "data arrives.",
    "within": "Accuracy while a time step is being learned, one line per time step that the test images come from; "
    "a dip right after new data arrives that later recovers is called the stability gap.",
    "samples": "Test images with the model's answer at the end of the stream: green is right, red is wrong.",
    "reconstructions": "The model sees only the patches that are not hidden and draws the rest; this is how it learns "
    "from images without labels.",
}
_TITLES = {
    "accuracy": "Accuracy along the stream",
    "matrix": "What is kept of each time step",
    "budget": "Where the budget went",
    "losses": "Training losses",
    "within": "Within time steps",
    "samples": "Predictions",
    "reconstructions": "Reconstructions",
}
_WORDS = {
    "Stream": "the whole sequence of images, of which a few carry a label; it arrives in time steps.",
    "Time step": "one arrival of data; the model may spend the same budget on each.",
    "Update": "one change of the model's weights, from one batch of images.",
    "Pass": "one image forward and backward through the whole network: the unit in which computation is counted.",
    **{column.title: f"{column.meaning}." for column in COLUMNS[:7]},
}


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write report.html and the PNG figures of some run folders into a folder, and return the page's path."""
    read = read_runs(runs)
    groups = group_runs(read)
    out.mkdir(parents=True, exist_ok=True)
    figures = write_figures(groups, out / "figures")
    page = out / "report.html"
    page.write_text("\n".join(_page(groups, figures)), encoding="utf-8")
    return page


def _page(groups: Sequence[Group], figures: Sequence[Figure]) -> Iterator[str]:
    runs = [run for group in groups for run in group.runs]
    labels = [label for group in groups for label in group.run_labels]
    style, script = (files("dietcl.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    data = json.dumps(_data(groups), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    heading = _heading(groups)

    sections = {"comparison": ("Comparison", "".join(_comparison(runs)))}
    sections["accuracy"] = (_TITLES["accuracy"], _accuracy(groups, figures))
    for kind in ("matrix", "budget", "losses", "within"):
        panels = {i: _chart(kind, i, run, figures) for i, run in enumerate(runs)}
        if kind != "within" or any(panels.values()):
            sections[kind] = (_TITLES[kind], _panels(kind, panels, labels, runs))
    for kind, build in (("samples", _samples), ("reconstructions", _reconstructions)):
        sections[kind] = (_TITLES[kind], _panels(kind, {i: build(run) for i, run in enumerate(runs)}, labels, runs))
    sections["settings"] = ("Settings", "".join(map(_settings, runs, labels)))

    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<title>{escape(heading)} – dietcl</title><style>{style}</style></head><body>"
    yield f'<header><p class="kicker">dietcl report</p><h1>{escape(heading)}</h1><p class="lede">{_lede(runs)}</p>'
    yield f"<nav>{''.join(f'<a href="#{key}">{escape(title)}</a>' for key, (title, _) in sections.items())}</nav></header>"
    yield "<main>"
    for key, (title, body) in sections.items():
        say = f'<p class="say">{_SAY[key]}</p>' if key in _SAY else ""
        yield f'<section id="{key}"><h2>{escape(title)}</h2>{say}{body}</section>'
    yield f"</main><footer>Written by dietcl {__version__}. The figures lie as PNG files in the folder figures.</footer>"
    yield '<div id="tip" role="tooltip" hidden></div>'
    yield f'<script type="application/json" id="data">{data}</script><script>{script}</script></body></html>'


def _heading(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.runs[0].method for group in groups))
    streams = " and ".join(dict.fromkeys(group.runs[0].stream for group in groups))
    if len(names) > 4:
        return f"{len(names)} methods on {streams}"
    return f"{', '.join(names[:-1])} and {names[-1]} on {streams}" if len(names) > 1 else f"{names[0]} on {streams}"


def _lede(runs: Sequence[Run]) -> str:
    budgets = " or ".join(dict.fromkeys(run.budget for run in runs))
    steps = sorted({run.summary.time_steps for run in runs})
    begun = [event for run in runs for event in run.of("step_begin")]
    rates = [100 * float(event["realized_rate"]) for event in begun if event.get("realized_rate") is not None]
    labels = f" About {np.mean(rates):.2g} % of the arriving images carry a label." if rates else ""
    return (
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} over {' or '.join(map(str, steps))} time steps, "
        f"each with a budget of {escape(budgets)}.{labels}"
    )


def _comparison(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        if run.stopped is not None:
            done = (
                f"after {run.summary.learned} of {run.summary.time_steps} time steps"
                if run.summary.learned
                else "early"
            )
            yield f'<p class="notice"><b>{escape(run.name)}</b> ended {done}: {escape(run.stopped)}</p>'
    rows = comparison_rows(runs)
    several = any(len(row["runs"]) > 1 for row in rows)
    heads = "".join(
        f'<th><abbr title="{escape(column.meaning)}">{escape(column.title)}</abbr></th>' for column in COLUMNS
    )
    yield '<div class="card scroll" tabindex="0" role="region" aria-label="Comparison of the runs"><table><thead><tr>'
    yield f'<th>Method</th><th class="text">Stream</th><th class="text">Budget</th>{"<th>Seeds</th>" if several else ""}'
    yield f"{heads}</tr></thead><tbody>"
    for i, row in enumerate(rows):
        yield f'<tr><th scope="row"><span class="swatch k{i % len(PALETTE)}"></span>{escape(row["label"])}</th>'
        yield f'<td class="text">{escape(row["stream"])}</td><td class="text">{escape(row["budget"])}</td>'
        yield f"<td>{len(row['runs'])}</td>" if several else ""
        yield "".join(f"<td>{_spread(cell(row, column))}</td>" for column in COLUMNS) + "</tr>"
    spread = (
        "one standard deviation over seeds (one standard error for a single run)" if several else "one standard error"
    )
    yield f'</tbody></table></div><p class="small">Accuracies and forgetting in percent, ± {spread}.</p>'
    yield from _differences(paired_rows(runs))
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in _WORDS.items())
    yield f'<details class="more"><summary>What the words mean</summary><dl class="words">{words}</dl></details>'


def _differences(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    titles = list(dict.fromkeys(row["title"] for row in rows))
    pairs: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        pairs.setdefault((row["a"], row["b"], len(row["seeds"])), []).append(row)
    yield '<h3 style="margin-top:1.6em">Differences, seed by seed</h3><p class="small" style="margin:0.2em 0 0.8em">'
    yield "In percentage points, with the 95 % interval of Student's t; an interval that spans 0 decides nothing.</p>"
    yield '<div class="card scroll" tabindex="0" role="region" aria-label="Paired differences"><table><thead><tr>'
    yield f"<th>Pair</th><th>Seeds</th>{''.join(f'<th>{escape(title)}</th>' for title in titles)}</tr></thead><tbody>"
    for (one, other, seeds), values in pairs.items():
        cells = (
            f"<td>{100 * row['difference']:+.1f} <i>[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]</i></td>"
            for row in values
        )
        yield f'<tr><th scope="row">{escape(one)} − {escape(other)}</th><td>{seeds}</td>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"


def _spread(text: str) -> str:
    value, sign, error = text.partition(" ± ")
    return f"{value} <i>± {error}</i>" if sign else value


def _accuracy(groups: Sequence[Group], figures: Sequence[Figure]) -> str:
    runs = [run for group in groups for run in group.runs]
    if not any(run.summary.learned for run in runs):
        return '<p class="absent">No accuracy was measured yet: no run finished its first time step.</p>'
    seeds = any(len(group.runs) > 1 for group in groups)
    shade = "Thin lines are seeds, the bold one is their mean, shaded is one standard deviation" if seeds else ""
    shade = shade or "Shaded is one standard error of the test"
    fallback = "".join(_image(figure) for figure in figures if figure.run < 0)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f"<td>{'–' if math.isnan(v) else f'{100 * v:.1f}'}</td>" for v in run.summary.accuracy_mean)
        + "</tr>"
        for group in groups
        for run, label in zip(group.runs, group.run_labels, strict=True)
    )
    steps = max(run.summary.time_steps for run in runs)
    heads = "".join(f"<th>{t}</th>" for t in range(1, steps + 1))
    return (
        f'<div class="card panel"><div id="tools" class="tools"></div><div class="chart" data-kind="accuracy"></div>'
        f'<noscript>{fallback}</noscript><p class="small">{shade}.</p></div>'
        '<details class="more"><summary>The numbers (mean over time steps, in percent)</summary>'
        '<div class="card scroll" style="margin-top:12px" tabindex="0" role="region" aria-label="Accuracy by time step">'
        f"<table><thead><tr><th>Time steps learned</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _chart(kind: str, index: int, run: Run, figures: Sequence[Figure]) -> str:
    """Return the chart of one run with its PNG figure for readers without JavaScript; empty without data."""
    figure = next((figure for figure in figures if (figure.kind, figure.run) == (kind, index)), None)
    if figure is None:
        return ""
    if kind == "matrix" and run.summary.time_steps > _INTERACTIVE_STEPS:
        return _image(figure)
    legend = {
        "matrix": lambda: '<div class="heat"><span>0 %</span><i></i><span class="ceiling"></span></div>',
        "budget": lambda: _legend(list((spending_of(run) or _nothing()).by_purpose), unused=True),
    }
    return ""
