"""RESULTS.md from the committed counts: the verdict on every claim, and the tables that stand in it."""

from pathlib import Path

from dietcl.experiments.claims import CLAIMS, contrasts_of
from dietcl.experiments.evidence import Contrast, judge
from dietcl.experiments.setups import SETUPS
from dietcl.experiments.show.publish import scale_of
from dietcl.experiments.show.sheets import Sheet, put_between
from dietcl.experiments.show.views import sheets_of
from dietcl.experiments.study import Study
from dietcl.experiments.suites import SUITES

SHOWN = ("table1", "regimes")
"""Suites whose tables stand in RESULTS.md; the others are linked."""


def studies(out: Path) -> list[Study]:
    """Return the studies that have counts in a folder, in the order of the setups."""
    return [Study(name, out) for name in SETUPS if (out / name / "cells.jsonl").is_file()]


def claim_sheet(out: Path) -> Sheet:
    """Return the verdict on every claim by setup, with the differences that decide it."""
    found = studies(out)
    rows = tuple(
        (claim.text, claim.paper, claim.suite, *(_cell(contrasts_of(claim, study)) for study in found))
        for claim in CLAIMS
    )
    title = "Differences in points, paired by seed, with 95 % intervals; of several, the deciding one."
    return Sheet(title, ("claim", "in the paper", "suite", *(study.setup.title for study in found)), rows)


def _cell(contrasts: list[Contrast]) -> str:
    measured = [contrast for contrast in contrasts if contrast.values]
    if not measured:
        return "not run"
    hold = sum(contrast.verdict == "holds" for contrast in measured)
    verdict = judge(contrasts)
    deciding = [contrast for contrast in measured if contrast.verdict == verdict] or measured
    worst = min(deciding, key=lambda contrast: contrast.support)
    many = f"; {hold} of {len(contrasts)} hold" if len(contrasts) > 1 else ""
    if len(measured) < len(contrasts):
        many += f", {len(contrasts) - len(measured)} not run"
    return f"{verdict} ({worst}; {len(worst.values)} seeds{many})"


def write_results(path: Path, out: Path) -> None:
    """Put the verdicts and every stream's tables between their marks in a Markdown file."""
    put_between(path, "claims", claim_sheet(out).markdown())
    for study in studies(out):
        put_between(path, study.name, stream_text(study, out))


def stream_text(study: Study, out: Path) -> str:
    """Return a stream's regime and tables, and links to all suites that were published."""
    peaks = ", ".join(f"{budget}: {100 * score:.1f} %" for budget, score in study.peaks.items())
    lines = [
        f"S* = {study.peak} updates of {study.batch} images, S = {study.budget}. Replay by budget on the search seeds: "
        f"{peaks}.\n"
    ]
    links = []
    for name in SUITES:
        if not (out / study.name / f"{name}.json").is_file():
            continue
        links.append(f"[`{name}`]({out.name}/{study.name}/{name}.md)")
        if name in SHOWN:
            suite, measured = study.found(SUITES[name])
            lines.append(f"![{suite.title}]({out.name}/{study.name}/{name}.png)\n")
            lines += [sheet.markdown() for sheet in sheets_of(name, suite, measured, scale_of(study))]
    return "\n".join([*lines, f"All: {', '.join(links)}.\n"])
