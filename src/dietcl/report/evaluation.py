"""How a model classifies each class: a panel for a page, and the page and numbers of `dietcl evaluate`."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from dietcl.files import make_folder, write_json
from dietcl.metrics import few_tests_warning
from dietcl.plural import plural
from dietcl.report.confusion import ClassRow, Confusion, Examples, Mistake
from dietcl.report.document import Section, document, folded, table_element, thumbnail_element

_ROWS = 10
_MISTAKES = 8
_IMAGES = 6  # of one mistake
CLASS_SENTENCE = (
    "The test images at the end by their true class, the worst class first, and which classes were most often taken "
    "for which others, with some of these images."
)


def write_evaluation(
    out: Path, *, title: str, description: str, confusion: Confusion, examples: Examples | None = None
) -> Path:
    """Write evaluation.html and evaluation.json into a folder, and return the page's path."""
    score = score_sentence(confusion.accuracy, confusion.total, len(confusion.classes))
    verdict = with_warning(f"The model classifies {score}", confusion.total)
    body = f'<div class="card panel">{class_panel(confusion, examples)}</div>'
    sections = [Section("classes", "Classes", "Accuracy by class", CLASS_SENTENCE, body)]
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


def class_panel(confusion: Confusion, examples: Examples | None) -> str:
    """Return the table by class, folded after ten rows, and the mistakes that cost most."""
    rows = confusion.by_class()
    table = _table(rows[:_ROWS])
    if further := rows[_ROWS:]:
        table += folded(f"Show {plural(len(further), 'more class')}", _table(further))
    return f'<div class="grid two"><div>{table}</div><div>{"".join(_mistakes(confusion, examples))}</div></div>'


def _table(rows: list[ClassRow]) -> str:
    head = '<th>Class</th><th>Right</th><th>Of</th><th>Accuracy</th><th class="text">Most often taken for</th>'
    return table_element("Accuracy by class", head, "".join(map(_row, rows)), style="classes", card=False)


def _row(row: ClassRow) -> str:
    taken = "" if row.taken_for is None else f"{escape(row.taken_for.predicted)} <i>{row.taken_for.count:,} ×</i>"
    return (
        f'<tr><th scope="row">{escape(row.name)}</th><td>{row.right:,}</td><td>{row.total:,}</td>'
        f'<td><span class="share" style="--share:{100 * row.accuracy:.1f}%"></span>{100 * row.accuracy:.1f} %</td>'
        f'<td class="text">{taken}</td></tr>'
    )


def _mistakes(confusion: Confusion, examples: Examples | None) -> Iterator[str]:
    mistakes = confusion.mistakes(_MISTAKES)
    if not mistakes:
        return
    wrong = confusion.total - confusion.right
    yield '<h4>Most frequent mistakes</h4><ul class="mistakes">'
    for mistake in mistakes:
        share = f"{100 * mistake.count / wrong:.0f} % of all mistakes"
        yield f"<li><div><b>{escape(mistake.truth)}</b> taken for <b>{escape(mistake.predicted)}</b>"
        yield f"<small>{mistake.count:,} ×, {share}</small></div><span>{_images(mistake, examples)}</span></li>"
    yield "</ul>"


def _images(mistake: Mistake, examples: Examples | None) -> str:
    if examples is None:
        return ""
    answers = zip(examples.label, examples.predicted, strict=True)
    chosen = [i for i, pair in enumerate(answers) if pair == (mistake.truth, mistake.predicted)]
    words = f"{mistake.truth}, taken for {mistake.predicted}"
    return "".join(thumbnail_element(examples.images[i], words) for i in chosen[:_IMAGES])
