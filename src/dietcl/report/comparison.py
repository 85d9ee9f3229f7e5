"""The comparison of the runs as a section of the page: one table, paired differences, and what the words mean."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

from dietcl.plural import plural
from dietcl.report.document import folded, table_element
from dietcl.report.groups import Entry
from dietcl.report.panels import swatch
from dietcl.report.style import FEW
from dietcl.report.tables import COLUMNS, MEANINGS, cell, comparison_rows, paired_rows, where_it_went

_WHERE = "Where it went"
# Replaced images are rare: a notice says so where there are any.
_SHOWN = tuple(column for column in COLUMNS if column.key != "substituted")
_FIRST = ("final_mean", "final_pooled", "average_mean", "forgetting", "spent", "seconds")
_WORDS = {
    "Stream": "the sequence of all images, few of which have a label; it arrives in time steps",
    "Time step": "one arrival of data; each may spend the same budget",
    "Update": "one change of the model's weights, computed from one batch of images",
    "Pass": "one image forward and backward through the full network: the unit in which computation is counted",
    **{column.title: MEANINGS[column.key] for column in _SHOWN},
    _WHERE: "the passes by purpose, in percent of all that were spent; the largest three",
}


def comparison(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the section that compares the runs."""
    runs = [entry.run for entry in entries]
    for entry in entries:
        done, steps, why = entry.run.summary.learned, entry.run.due, entry.run.stopped
        if why is not None:
            where = f"after {done} of {steps} time steps" if done else "before its first time step was over"
            yield f'<p class="notice"><b>{escape(entry.label)}</b> ended {where}: {escape(why)}</p>'
        if entry.run.total("substituted") > 0:
            count = f"{entry.run.total('substituted'):,.0f}"
            yield f'<p class="notice"><b>{escape(entry.label)}</b>: {count} {MEANINGS["substituted"]}</p>'
    rows = comparison_rows(runs)
    several = any(len(row["runs"]) > 1 for row in rows)
    yield _table(rows, entries, several)
    spread = "one standard deviation over seeds (a single run: one standard error)" if several else "one standard error"
    yield f'<p class="small">Accuracies in percent, forgetting and backward transfer in points, ± {spread}.</p>'
    if read := sum(run.receipts.features_read for run in runs if run.receipts is not None):
        note = f"Features of {read:,} images came from the cache, which saves time; the charges are as without it."
        yield f'<p class="small">{note}</p>'
    yield folded(f"Show all {len(_SHOWN) + 1} columns", _table(rows, entries, several, is_complete=True))
    yield from _differences(paired_rows(runs), rows)
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in _WORDS.items())
    yield folded("What the words mean", f'<dl class="words">{words}</dl>')


def _table(rows: list[dict[str, Any]], entries: Sequence[Entry], several: bool, is_complete: bool = False) -> str:
    columns = [column for column in _SHOWN if is_complete or column.key in _FIRST]
    # What all share is written above the table already.
    differing = [key for key in ("stream", "budget") if len({row[key] for row in rows}) > 1]
    head = "<th>Method</th>" + "".join(f'<th class="text">{key.title()}</th>' for key in differing)
    head += "<th>Seeds</th>" if several else ""
    terms = {title: f'<abbr title="{escape(text)}">{title}</abbr>' for title, text in _WORDS.items()}
    head += "".join(f"<th>{terms[column.title]}</th>" for column in columns)
    head += f'<th class="text">{terms[_WHERE]}</th>' if is_complete else ""
    body = ""
    firsts = {entry.place: entry for entry in reversed(entries)}
    for place, row in enumerate(rows):
        body += f'<tr><th scope="row">{swatch(firsts[place])}{escape(row["label"])}</th>'
        body += "".join(f'<td class="text">{escape(row[key])}</td>' for key in differing)
        body += f"<td>{len(row['runs'])}</td>" if several else ""
        for column in columns:
            value, sign, spread = cell(row, column).partition(" ± ")
            body += f"<td>{value} <i>± {spread}</i></td>" if sign else f"<td>{value}</td>"
        if is_complete:  # a line breaks only between the spans
            parts = " ".join(f"<span>{escape(part)}</span>" for part in where_it_went(row["purposes"]))
            body += f'<td class="text where">{parts}</td>'
        body += "</tr>"
    return table_element("Comparison of the runs", head, body, style="dense" if is_complete else "first")


def _differences(differences: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Iterator[str]:
    if not differences:
        return
    titles = list(dict.fromkeys(row["title"] for row in differences))
    by_pair = groupby(differences, lambda row: (row["a"], row["b"], len(row["seeds"])))
    pairs = {pair: {row["title"]: row for row in some} for pair, some in by_pair}
    # Many methods have hundreds of pairs: those of the first method are in view.
    chosen = [pair for pair in pairs if len(rows) <= FEW or rows[0]["label"] in pair[:2]]
    others = [pair for pair in pairs if pair not in chosen]
    chance = f" Even between equals one in twenty misses it by chance, and these are {len(pairs)} pairs."
    yield '<h3 class="apart">Differences, seed by seed</h3><p class="small">In percentage points, with the 95 % '
    yield f"interval of Student's t; an interval that spans 0 decides nothing.{chance if others else ''}</p>"
    head = f"<th>Pair</th><th>Seeds</th>{''.join(f'<th>{title}</th>' for title in titles)}"
    tables = [
        table_element("Paired differences", head, "".join(_difference_line(pair, pairs[pair], titles) for pair in some))
        for some in (chosen, others)
    ]
    yield tables[0] if chosen else ""
    yield folded(f"Show {plural(len(others), 'more pair')}", tables[1]) if others else ""


def _difference_line(pair: tuple[str, str, int], values: dict[str, dict[str, Any]], titles: Sequence[str]) -> str:
    first, second, seeds = pair
    line = f'<th scope="row">{escape(first)} − {escape(second)}</th><td>{seeds}</td>'
    for row in map(values.get, titles):
        if row:
            numbers = (f"{100 * row[key]:+.1f}".replace("-", "−") for key in ("difference", "low", "high"))
            line += "<td>{} <i>[{}, {}]</i></td>".format(*numbers)
        else:
            line += "<td>–</td>"
    return f"<tr>{line}</tr>"
