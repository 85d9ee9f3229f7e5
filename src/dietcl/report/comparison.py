"""The comparison of the runs as a section of the page: one table, paired differences, and what the words mean."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from dietcl.report.columns import COLUMNS, cell, where_it_went
from dietcl.report.groups import Entry
from dietcl.report.panels import swatch
from dietcl.report.style import FEW
from dietcl.report.tables import comparison_rows, paired_rows

_WHERE = "Where it went"
# Stand-ins are rare: a notice says so where there are any.
_STAND_INS = next(column for column in COLUMNS if column.key == "substituted")
_SHOWN = tuple(column for column in COLUMNS if column is not _STAND_INS)
_WORDS = {
    "Stream": "the whole sequence of images, few of which carry a label; it arrives in time steps",
    "Time step": "one arrival of data; each may spend the same budget",
    "Update": "one change of the model's weights, made from one batch of images",
    "Pass": "one image forward and backward through the whole network: the unit in which computation is counted",
    **{column.title: column.meaning for column in _SHOWN},
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
            yield f'<p class="notice"><b>{escape(entry.label)}</b>: {count} {_STAND_INS.meaning}</p>'
    rows = comparison_rows(runs)
    several = any(len(row["runs"]) > 1 for row in rows)
    heads = "".join(f'<th><abbr title="{escape(column.meaning)}">{column.title}</abbr></th>' for column in _SHOWN)
    yield '<div class="card scroll" tabindex="0" role="region" aria-label="Comparison of the runs">'
    yield '<table class="dense"><thead><tr>'
    # What all share stands above the table already, and the room is needed.
    differing = [key for key in ("stream", "budget") if len({row[key] for row in rows}) > 1]
    settings = "".join(f'<th class="text">{key.title()}</th>' for key in differing)
    yield f"<th>Method</th>{settings}{'<th>Seeds</th>' if several else ''}{heads}"
    yield f'<th class="text"><abbr title="{escape(_WORDS[_WHERE])}">{_WHERE}</abbr></th></tr></thead><tbody>'
    firsts = {entry.place: entry.run for entry in reversed(entries)}
    for place, row in enumerate(rows):
        yield f'<tr><th scope="row">{swatch(place, firsts[place])}{escape(row["label"])}</th>'
        yield "".join(f'<td class="text">{escape(row[key])}</td>' for key in differing)
        yield f"<td>{len(row['runs'])}</td>" if several else ""
        yield "".join(f"<td>{_with_quiet_spread(cell(row, column))}</td>" for column in _SHOWN)
        yield f'<td class="text where">{_unbroken(where_it_went(row["purposes"]))}</td></tr>'
    spread = "one standard deviation over seeds (a single run: one standard error)" if several else "one standard error"
    yield '</tbody></table></div><p class="small">Accuracies in percent, forgetting and backward transfer in points, '
    yield f"± {spread}.</p>"
    yield from _differences(paired_rows(runs), rows)
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in _WORDS.items())
    yield f'<details class="more"><summary>What the words mean</summary><dl class="words">{words}</dl></details>'


def _differences(differences: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Iterator[str]:
    if not differences:
        return
    titles = list(dict.fromkeys(row["title"] for row in differences))
    pairs: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in differences:
        pairs.setdefault((row["a"], row["b"], len(row["seeds"])), {})[row["title"]] = row
    # The pairs of many methods are hundreds: those of the first one are in view.
    chosen = [pair for pair in pairs if len(rows) <= FEW or rows[0]["label"] in pair[:2]]
    others = [pair for pair in pairs if pair not in chosen]
    chance = (
        f" Even between equals one in twenty misses it by chance, and these are {len(pairs)} pairs." if others else ""
    )
    yield '<h3 class="apart">Differences, seed by seed</h3><p class="small">In percentage points, with the 95 % '
    yield f"interval of Student's t; an interval that spans 0 decides nothing.{chance}</p>"
    for some in (chosen, others):
        lines = "".join(_difference_line(pair, pairs[pair], titles) for pair in some)
        heads = "".join(f"<th>{title}</th>" for title in titles)
        table = (
            '<div class="card scroll" tabindex="0" role="region" aria-label="Paired differences"><table><thead><tr>'
            f"<th>Pair</th><th>Seeds</th>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
        )
        if some is others:
            table = f'<details class="more"><summary>Show {len(others)} more pairs</summary>{table}</details>'
        yield table if some else ""


def _difference_line(pair: tuple[str, str, int], values: dict[str, dict[str, Any]], titles: Sequence[str]) -> str:
    one, other, seeds = pair
    cells = [f'<th scope="row">{escape(one)} − {escape(other)}</th><td>{seeds}</td>']
    for row in map(values.get, titles):
        if row is None:
            cells.append("<td>–</td>")
            continue
        difference, low, high = (f"{100 * row[key]:+.1f}".replace("-", "−") for key in ("difference", "low", "high"))
        cells.append(f"<td>{difference} <i>[{low}, {high}]</i></td>")
    return f"<tr>{''.join(cells)}</tr>"


def _unbroken(parts: Sequence[str]) -> str:
    """Join parts so that a line breaks only between them."""
    return " ".join(f"<span>{escape(part)}</span>" for part in parts)


def _with_quiet_spread(text: str) -> str:
    value, sign, error = text.partition(" ± ")
    return f"{value} <i>± {error}</i>" if sign else value
