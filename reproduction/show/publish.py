"""What a suite measured, as files: JSON, Markdown, LaTeX, PNG, SVG and one HTML page."""

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dietcl import __version__
from dietcl.files import write_bytes, write_json
from dietcl.metrics import known
from dietcl.report.style import MATPLOTLIB, page_css
from reproduction.catalog import ALL_SUITES
from reproduction.measures import average, current, final, old, pooled, solved
from reproduction.show.claim_tables import suite_claims
from reproduction.show.figures import draw
from reproduction.show.lead_tables import search_sheets
from reproduction.show.scale import Scale
from reproduction.show.table_formats import Sheet
from reproduction.show.tables import sheets_of
from reproduction.study import Measured, Study, seeds_of
from reproduction.suites import PAPER_RATE, PAPER_TIME_STEPS, PAPER_UPDATES, Suite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MEASURES = {
    "A(T)": final,
    "A": average,
    "current": current,
    "old": old,
    "A(T) pooled": pooled,
    "solved head, pooled": solved,
}


def scale_of(study: Study) -> Scale:
    """Return how the paper's numbers become those of a study."""
    recipe = study.dataset.recipe
    return Scale(
        updates=study.budget / PAPER_UPDATES,
        label_rate=recipe.label_rate / PAPER_RATE,
        time_steps=recipe.time_steps / PAPER_TIME_STEPS,
        batch=study.batch,
    )


def publish(study: Study, name: str, suite: Suite, measured: Sequence[Measured], folder: Path) -> list[Sheet]:
    """Write every file of a suite, and return its tables."""
    scale = scale_of(study)
    sheets = all_sheets(study, name, suite, measured)
    heading = _heading(study, suite)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", _plain(study, name, suite, measured, scale))
    _write(folder / f"{name}.md", markdown(study, name, suite, measured, sheets))
    _write(folder / f"{name}.tex", "\n".join(sheet.latex() for sheet in sheets))
    figure = draw(suite, measured, scale, heading)
    pictures = {suffix: picture(figure, suffix) for suffix in ("png", "svg")}
    for suffix, content in pictures.items():
        write_bytes(folder / f"{name}.{suffix}", content)
    _write(folder / f"{name}.html", _page(_command(study, name, suite, measured), suite, sheets, heading, pictures))
    return sheets


def all_sheets(study: Study, name: str, suite: Suite, measured: Sequence[Measured]) -> list[Sheet]:
    """Return the tables of a suite, what they say of the claims that it tests, and what its search found."""
    sheets = sheets_of(name, suite, measured, scale_of(study))
    return [*sheets, *suite_claims(study, name), *search_sheets(study, suite)]


def markdown(study: Study, name: str, suite: Suite, measured: Sequence[Measured], sheets: Sequence[Sheet]) -> str:
    """Return the tables of a suite as a Markdown page."""
    intro = f"# {_heading(study, suite)}\n\n{suite.question} ({suite.place}.)\n"
    command = f"`{_command(study, name, suite, measured)}`\n"
    return "\n".join([intro, command, *(sheet.markdown() for sheet in sheets)])


def _heading(study: Study, suite: Suite) -> str:
    return f"{study.dataset.title}: {suite.title[0].lower()}{suite.title[1:]}"


def _write(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def _command(study: Study, name: str, suite: Suite, measured: Sequence[Measured]) -> str:
    command = f"python -m reproduction {name} --stream {study.name}"
    if study.dataset.pack:
        command += " --data FOLDER"
    elif study.dataset.reader is None:
        command += " --data MANIFEST.parquet"
    if len(suite.arms) < len(ALL_SUITES[name].arms):
        command += " --methods " + ",".join(dict.fromkeys(arm.method for arm in suite.arms))
    # Other suites may have brought an arm more seeds.
    asked = min(len(study.finished(item.arm, item.point)) - seeds_of(suite, item.arm, 0) for item in measured)
    return f"{command} --seeds {max(1, asked)}"


def _plain(study: Study, name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> dict[str, Any]:
    """Return every figure of a suite by arm, point and seed; unknown ones are null."""
    return {
        "suite": name,
        "stream": study.name,
        "command": _command(study, name, suite, measured),
        "updates": study.budget,
        "batch": study.batch,
        "rows": [
            {
                "arm": entry.arm.title,
                "method": entry.arm.method,
                "point": scale.describe(suite, entry.point),
                "regime": scale.regime(entry),
                "keys": [result.key for result in entry.results],
                **{
                    measure: [known(value(result)) for result in entry.results]
                    for measure, value in _MEASURES.items()
                    if measure != "A" or entry.arm.group != "reference"  # that one learns the stream at once
                },
            }
            for entry in measured
        ],
    }


def picture(figure: "Figure", suffix: str) -> bytes:
    """Return a figure as a file of a kind, png or svg."""
    import matplotlib

    content = io.BytesIO()
    # Without the day and with names of its own that do not change, the same numbers make the same file.
    with matplotlib.rc_context({**MATPLOTLIB, "svg.hashsalt": "dietcl"}):
        figure.savefig(content, format=suffix, metadata={"Date": None} if suffix == "svg" else {"Software": None})
    return content.getvalue()


def _page(command: str, suite: Suite, sheets: Sequence[Sheet], heading: str, pictures: dict[str, bytes]) -> str:
    style = page_css()
    data = base64.b64encode(pictures["svg"]).decode()
    image = f'<img alt="{escape(suite.question)}" src="data:image/svg+xml;base64,{data}" style="width: 100%">'
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)} – dietcl</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">',
            f"<style>{style} td:last-child {{ white-space: normal }}</style></head><body><header>",
            f'<p class="kicker">{escape(suite.place)}</p><h1>{escape(heading)}</h1>',
            f'<p class="lede">{escape(suite.question)}</p></header><main>',
            f'<section><figure class="card panel" style="background: white">{image}</figure></section>',
            *(f"<section>{sheet.html()}</section>" for sheet in sheets),
            f"</main><footer>Written by dietcl {__version__}: <code>{escape(command)}</code></footer>",
            "</body></html>\n",
        ]
    )
