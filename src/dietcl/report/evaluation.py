"""How a model classifies each class: a panel for a page, and the page and numbers of `dietcl evaluate`."""

import os
import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

from dietcl.files import make_folder, write_json
from dietcl.metrics import few_tests_warning
from dietcl.plural import plural
from dietcl.report.confusion import ClassRow, Confusion, Examples
from dietcl.report.document import document, folded, table_element, thumbnail_element

_ROWS = 10
_MISTAKES = 8
_IMAGES = 6  # of one mistake
CLASS_SENTENCE = "The images by true class, the worst first, and the most frequent mistakes with some of their images."
MODEL_SENTENCE = "The files of the model, and the command that classifies further images with it."


def write_evaluation(out: Path, run: Path, title: str, lede: str, confusion: Confusion, examples: Examples) -> Path:
    """Write evaluation.html and evaluation.json on the model of a run into a folder; returns the page's path."""
    noun = confusion.noun
    score = score_sentence(confusion.accuracy, confusion.total, confusion.answers, noun, confusion.unknown)
    verdict = with_warning(f"The model classifies {score}", confusion.total, noun)
    panels = (class_panel(confusion, examples), model_panel(run, out))
    classes, model = (f'<div class="card panel">{panel}</div>' for panel in panels)
    sections = [("classes", "Classes", "Accuracy by class", CLASS_SENTENCE, classes)]
    sections.append(("model", "Model", "Use the model", MODEL_SENTENCE, model))
    page = make_folder(out) / "evaluation.html"
    page.write_text("\n".join(document(title, verdict, lede, sections)), encoding="utf-8")
    write_json(out / "evaluation.json", {"title": title, "verdict": verdict, **confusion.as_json()})
    return page


def model_panel(run: Path, out: Path) -> str:
    """Return links from a folder to the files of a finished run's model, and how to use it."""
    if not (run / "model.json").is_file():
        return "<p>This run was made by an earlier version and keeps no model.</p>"
    files = [*sorted(run.glob("*.safetensors")), run / "model.json", run / "config.json"]
    folder = os.path.relpath(run.resolve(), out.resolve())
    links = [f'<a href="{quote(f"{folder}/{file.name}")}">{escape(file.name)}</a>' for file in files if file.is_file()]
    command = f"dietcl predict {shlex.quote(str(run))} photo.jpg"
    return f"<p>{', '.join(links)}</p><pre>{escape(command)}</pre>"


def score_sentence(
    accuracy: float, images: int, classes: int | None, noun: str = "test image", unknown: int = 0
) -> str:
    """Say which share of some images is classified correctly, and how that compares with guessing."""
    sentence = f"{100 * accuracy:.1f} % of {plural(images, noun)}"
    if not classes:
        return f"{sentence} correctly"
    ratio = accuracy * classes
    times = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
    chance = f"{times} times chance" if ratio >= 1.05 else "no more than by chance"
    aside = f" ({unknown:,} unknown to it)" if unknown else ""
    return f"{sentence} of {plural(classes + unknown, 'class')}{aside} correctly, {chance}"


def with_warning(sentence: str, images: int, noun: str = "test image") -> str:
    """Return a sentence about an accuracy, and another one if it was measured on few images."""
    warning = (few_tests_warning(images) or "").replace("test image", noun)
    return f"{sentence}. {warning[:1].upper()}{warning[1:]}." if warning else f"{sentence}."


def class_panel(confusion: Confusion, examples: Examples) -> str:
    """Return the table by class, folded after ten rows, and the mistakes that cost most."""
    rows = confusion.by_class()
    table = _table(confusion, rows[:_ROWS])
    if further := rows[_ROWS:]:
        table += folded(f"Show {plural(len(further), 'more class')}", _table(confusion, further))
    if chance := confusion.chance:
        table += f'<p class="small">The mark in each bar is chance, {100 * chance:.1f} %: guessing among '
        table += f"{plural(confusion.answers, 'class')}.</p>"
    return f'<div class="grid two"><div>{table}</div><div>{"".join(_mistakes(confusion, examples))}</div></div>'


def _table(confusion: Confusion, rows: list[ClassRow]) -> str:
    head = '<th>Class</th><th>Right</th><th>Of</th><th>Accuracy</th><th class="text">Most often taken for</th>'
    body, unknown = "", set(confusion.unknown_classes)
    chance = f"--chance:{100 * (confusion.chance or 0):.1f}%"
    for row in rows:
        share, mistake = f"{100 * row.accuracy:.1f}", row.taken_for
        taken = f"{escape(mistake.predicted)} <i>{mistake.count:,} ×</i>" if mistake else ""
        name = escape(row.name) + (" <small>unknown to the model</small>" if row.name in unknown else "")
        body += f'<tr><th scope="row">{name}</th><td>{row.right:,}</td><td>{row.total:,}</td>'
        body += f'<td><span class="share" style="--share:{share}%;{chance}"></span>{share} %</td>'
        body += f'<td class="text">{taken}</td></tr>'
    return table_element("Accuracy by class", head, body, style="classes", card=False)


def _mistakes(confusion: Confusion, examples: Examples) -> Iterator[str]:
    mistakes = confusion.mistakes(_MISTAKES)
    if not mistakes:
        return
    wrong = confusion.total - confusion.right
    answers = [*zip(examples.label, examples.predicted, strict=True)]
    yield '<h4>Most frequent mistakes</h4><ul class="mistakes">'
    for mistake in mistakes:
        share = f"{100 * mistake.count / wrong:.0f} % of all mistakes"
        yield f"<li><div><b>{escape(mistake.truth)}</b> taken for <b>{escape(mistake.predicted)}</b>"
        yield f"<small>{mistake.count:,} ×, {share}</small></div><span>"
        chosen = [i for i, pair in enumerate(answers) if pair == (mistake.truth, mistake.predicted)][:_IMAGES]
        words = f"{mistake.truth}, taken for {mistake.predicted}"
        yield "".join(thumbnail_element(examples.images[i], words) for i in chosen) + "</span></li>"
    yield "</ul>"
