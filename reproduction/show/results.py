"""docs/paper-claims.md from the committed counts: the verdict on every claim, and its tables."""

import os
from pathlib import Path

from dietcl import UserError
from reproduction.catalog import ALL_SUITES
from reproduction.datasets import AT, DATASETS
from reproduction.show.claim_tables import claim_sheet, tally_sheet, with_claims
from reproduction.show.publish import scale_of
from reproduction.show.table_formats import put_between
from reproduction.show.tables import sheets_of
from reproduction.study import Missing, Study

SHOWN = ("table1", "regimes")
"""Suites whose tables are in that page; of the others it has the pictures."""


def studies(out: Path) -> list[Study]:
    """Return the studies that have counts in a folder, in the order of the datasets, each dataset's own size first."""
    found = sorted(path.parent.name for path in out.glob("*/cells.jsonl"))
    own = [Study(name, out) for dataset in DATASETS for name in found if name.partition(AT)[0] == dataset]
    for study in own:
        try:
            study.budget  # noqa: B018 (it rests on the search)
        except Missing:
            advice = "lacks trials on which the counts rest; run a suite again"
            raise UserError(f"{study.searched.path}: {advice}") from None
    return own


def left_out(study: Study) -> list[str]:
    """Return a sentence on each file of a study with runs that were not counted."""
    notes = []
    for store in (study.cells, study.searched):
        if store.stale:
            runs = "1 run was" if len(store.stale) == 1 else f"{len(store.stale)} runs were"
            example = min(store.stale)
            notes.append(f"{store.path}: not counted, as {runs} of another configuration, such as {example}")
        if not store.is_whole:
            notes.append(f"{store.path}: its last line is torn and does not count; run that suite again")
    return notes


def write_claims(path: Path, out: Path) -> None:
    """Put the verdicts and every stream's tables between their marks in a Markdown file."""
    found = studies(out)
    testing = with_claims(found)
    claims = f"{tally_sheet(testing).markdown()}\n{claim_sheet(testing).markdown()}"
    streams = {study.name: stream_text(study, out, linked(out, path)) for study in found}
    put_between(path, {"claims": claims, **streams})


def linked(out: Path, page: Path) -> str:
    """Return how a page links to a folder: by the way from where the page lies."""
    return Path(os.path.relpath(out, page.parent)).as_posix()


def stream_text(study: Study, out: Path, link: str) -> str:
    """Return a stream's regime and every suite that was published: its picture, and its tables or where they lie."""
    lines = [_regime(study)]
    for name in ALL_SUITES:
        folder = f"{link}/{study.name}"
        if (out / study.name / f"{name}.json").is_file():
            try:
                suite, measured = study.found(ALL_SUITES[name])
            except Missing as run:
                raise UserError(f"{study.cells.path}: lacks {run} of {name}; run that suite again") from None
            lines.append(f"### {suite.title}\n{suite.question} ([`{name}`]({folder}/{name}.md))\n")
            lines.append(f"![{suite.title}]({folder}/{name}.png)\n")
            if name in SHOWN:
                lines += [sheet.markdown() for sheet in sheets_of(name, suite, measured, scale_of(study))]
    return "\n".join(lines)


def _regime(study: Study) -> str:
    if study.dataset.updates is not None:
        why = "as in the paper" if study.dataset.train == "full" else "more than any head on a frozen encoder spends"
        return f"S = {study.budget} updates of {study.batch} images, {why}.\n"
    if study.searcher is not study:
        return f"S = {study.budget} updates of {study.batch} images, as on {study.searcher.dataset.title}.\n"
    if study.dataset.peak is not None:
        return f"S* = {study.peak} updates of {study.batch} images, set beforehand; S = {study.budget}.\n"
    peaks = ", ".join(f"{budget}: {100 * score:.1f} %" for budget, score in study.peaks.items())
    limit = ", where the search ends, though Replay still gains" if study.still_gains else ""
    return (
        f"S* = {study.peak} updates of {study.batch} images{limit}; S = {study.budget}. Replay by budget on the search "
        f"seeds: {peaks}.\n"
    )
