"""The sections of the page that show one panel per run: charts, classes, images, the model and the settings."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from dietcl.report.document import figure_element, folded, thumbnail_element
from dietcl.report.evaluation import class_panel, model_panel
from dietcl.report.figures import Figure
from dietcl.report.groups import Entry
from dietcl.report.runs import RunRecord
from dietcl.report.series import INTERACTIVE_STEPS, chosen_samples, chosen_triples, is_point, shared_dates
from dietcl.report.style import FEW

_ABSENT = {
    "matrix": "No accuracy was measured",
    "budget": "No receipts were written",
    "losses": "No losses were recorded",
    "within": "No curves within time steps were recorded",
    "samples": "No sample images were kept",
    "reconstructions": "No reconstructions were kept",
    "classes": "No counts by class were kept",
    "model": "There is no finished model",
}
_Panel = tuple[str, str]  # HTML, empty where there is nothing to show, and a few words beside the title


def run_sections(entries: Sequence[Entry], figures: Sequence[Figure], out: Path) -> dict[str, str]:
    """Return the HTML of every section with one panel per run, in the order of the page."""
    runs = [entry.run for entry in entries]
    charts = {kind: _charts(kind, runs, figures) for kind in ("matrix", "budget", "losses", "within")}
    if not any(body for body, _ in charts["within"]):
        del charts["within"]  # recorded on request only
    panels = {"classes": map(_classes, runs), **charts, "samples": map(_samples, runs)}
    panels |= {"reconstructions": map(_reconstructions, runs), "model": [_model(run, out) for run in runs]}
    sections = {kind: _section(kind, entries, some) for kind, some in panels.items()}
    return sections | {"settings": "".join(map(_settings, entries))}


def swatch(entry: Entry) -> str:
    """Return the line of a group, or the diamond of a run without one, as an element of the page."""
    point = " point" if is_point(entry.run) else ""
    return f'<span class="key k{entry.look.color} l{entry.look.pattern}{point}"></span>'


def _section(kind: str, entries: Sequence[Entry], panels: Iterable[_Panel]) -> str:
    first: list[str] = []
    further: list[str] = []
    absent, places = [], set()
    for (body, aside), entry in zip(panels, entries, strict=True):
        if not body:
            absent.append(entry.label)
            continue
        caption = f"<h3>{swatch(entry)}{escape(entry.label)}</h3><small>{escape(aside)}</small>"
        # One seed of every configuration is in view; a click shows the others, so that a sweep stays readable.
        shelf = further if entry.place in places or len(first) == FEW else first
        shelf.append(f'<figure class="card panel"><figcaption>{caption}</figcaption>{body}</figure>')
        places.add(entry.place)
    is_wide = kind in ("classes", "samples") or len(first) == 1
    grid = f'<div class="grid {"one" if is_wide else "two" if len(first) in (2, 4) else "three"}">'
    html = f"{grid}{''.join(first)}</div>" if first else ""
    if further:
        html += folded(f"Show {len(further)} more", f"{grid}{''.join(further)}</div>")
    if absent:
        html += f'<p class="absent">{_ABSENT[kind]} for {escape(", ".join(absent))}.</p>'
    return html


def _charts(kind: str, runs: Sequence[RunRecord], figures: Sequence[Figure]) -> list[_Panel]:
    """Return one interactive chart per run, each with its PNG figure for readers without JavaScript."""
    drawn = {figure.run: figure for figure in figures if figure.kind == kind}
    panels = []
    for i, run in enumerate(runs):
        html = figure_element(drawn[i].path, drawn[i].alt) if i in drawn else ""
        if i in drawn and (kind != "matrix" or run.summary.time_steps <= INTERACTIVE_STEPS):
            html = f'<div class="chart" data-kind="{kind}" data-run="{i}"></div><noscript>{html}</noscript>'
        panels.append((html, _passes(run) if kind == "budget" else ""))
    return panels


def _passes(run: RunRecord) -> str:
    if run.receipts is None:
        return ""
    search = sum(item.passes for item in run.receipts.search)
    once = ", all at once" if is_point(run) else ""
    return f"{run.receipts.passes:,.0f} passes{once}" + (f", and {search:,.0f} to search" if search else "")


def _classes(run: RunRecord) -> _Panel:
    counts = run.class_counts
    if counts is None:
        return "", ""
    return class_panel(counts, run.samples.mistakes), f"{counts.right:,} of {counts.total:,} test images right"


def _samples(run: RunRecord) -> _Panel:
    samples, tiles, dates = run.samples, "", shared_dates([run])
    for i in chosen_samples(run):
        label, predicted = samples.label[i], samples.predicted[i]
        is_right = label == predicted
        when = f"{samples.t[i]} ({dates[samples.t[i] - 1]})" if dates else f"{samples.t[i]}"
        words = f"Time step {when}: {label}" + ("" if is_right else f", taken for {predicted}")
        answer = "" if is_right else f"<s>✗ {escape(predicted)}</s>"
        tiles += f'<figure class="tile {"right" if is_right else "wrong"}" title="{escape(words)}">'
        tiles += thumbnail_element(samples.images[i], words)
        tiles += f"<b>{'✓ ' if is_right else ''}{escape(label)}</b>{answer}</figure>"
    right = sum(a == b for a, b in zip(samples.label, samples.predicted, strict=True))
    return f'<div class="tiles">{tiles}</div>' if tiles else "", f"{right} of {len(samples.label)} samples right"


def _reconstructions(run: RunRecord) -> _Panel:
    chosen, cells = chosen_triples(run), ""
    for name, images in run.samples.triples.items():
        cells += f"<span>{name.title()}</span>"
        cells += "".join(thumbnail_element(images[i], f"{name.title()} {i + 1}") for i in chosen)
    return f'<div class="triples" style="--n:{len(chosen)}">{cells}</div>' if chosen else "", ""


def _model(run: RunRecord, out: Path) -> _Panel:
    return (model_panel(run.path, out), run.name) if run.finished else ("", "")


def _settings(entry: Entry) -> str:
    values = {"config": entry.run.config, "environment": entry.run.environment}
    text = "\n".join(f"{name} = {json.dumps(value, indent=2, ensure_ascii=False)}" for name, value in values.items())
    title = f"{entry.label} · folder {entry.run.name}"
    return f'<details class="card settings"><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>'
