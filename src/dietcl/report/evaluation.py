"""How a model classifies each class: a panel for a page, and the page and numbers of `dietcl evaluate`."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from dietcl.files import make_folder, write_json
from dietcl.metrics import few_tests_warning
from dietcl.plural import plural
from dietcl.report.confusion import ClassRow, Confusion, Examples
from dietcl.report.document import document, folded, table_element, thumbnail_element

_ROWS = 10
_MISTAKES = 8
_IMAGES = 6  # of one mistake
CLASS_SENTENCE = "Test images by true class, the worst first, and the most frequent mistakes with some of their images."


def write_evaluation(out: Path, *, title: str, description: str, confusion: Confusion, examples: Examples) -> Path:
    """Write evaluation.html and evaluation.json into a folder, and return the page's path."""
    score = score_sentence(confusion.accuracy, confusion.total, len(confusion.classes))
    verdict = with_warning(f"The model classifies {score}", confusion.total)
    body = f'<div class="card panel">{class_panel(confusion, examples)}</div>'
    sections = [("classes", "Classes", "Accuracy by class", CLASS_SENTENCE, body)]
    page = make_folder(out) / "evaluation.html"
    lines = document(heading=title, verdict=verdict, lede=description, sections=sections)
    page.write_text("\n".join(lines), encoding="utf-8")
    write_json(out / "evaluation.json", {"title": title, "verdict": verdict, **confusion.as_json()})
    return page


def score_sentence(accuracy: float, images: int, classes: int | None) -> str:
    """Say which share of some test images is classified correctly, and how that compares with guessing."""
    sentence = f"{100 * accuracy:.1f} % of {plural(images, 'test image')}"
    if not classes:
        return f"{sentence} correctly"
    ratio = accuracy * classes
    times = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
    chance = f"{times} times chance" if ratio >= 1.05 else "no more than by chance"
    return f"{sentence} of {plural(classes, 'class')} correctly, {chance}"


def with_warning(sentence: str, images: int) -> str:
    """Return a sentence about an accuracy, and another one if it was measured on few test images."""
    warning = few_tests_warning(images)
    return f"{sentence}. {warning[0].upper()}{warning[1:]}." if warning else f"{sentence}."


def class_panel(confusion: Confusion, examples: Examples) -> str:
    """Return the table by class, folded after ten rows, and the mistakes that cost most."""
    rows = confusion.by_class()
    table = _table(rows[:_ROWS])
    if further := rows[_ROWS:]:
        table += folded(f"Show {plural(len(further), 'more class')}", _table(further))
    return f'<div class="grid two"><div>{table}</div><div>{"".join(_mistakes(confusion, examples))}</div></div>'


def _table(rows: list[ClassRow]) -> str:
    head = '<th>Class</th><th>Right</th><th>Of</th><th>Accuracy</th><th class="text">Most often taken for</th>'
    body = ""
    for row in rows:
        share, mistake = f"{100 * row.accuracy:.1f}", row.taken_for
        taken = f"{escape(mistake.predicted)} <i>{mistake.count:,} ×</i>" if mistake else ""
        body += f'<tr><th scope="row">{escape(row.name)}</th><td>{row.right:,}</td><td>{row.total:,}</td>'
        body += f'<td><span class="share" style="--share:{share}%"></span>{share} %</td>'
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
