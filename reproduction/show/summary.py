"""RESULTS.md from the committed counts: a figure, and how Larder compares on every stream."""

from collections.abc import Sequence
from pathlib import Path

from dietcl.files import write_bytes
from reproduction.larder_suites import LARDER, LARDER_SMALL
from reproduction.leads import bare_words
from reproduction.measures import average, final
from reproduction.show.larder_figure import draw_larder
from reproduction.show.lead_tables import PLACE_RULE, pairs_of, places
from reproduction.show.publish import picture, scale_of
from reproduction.show.results import linked
from reproduction.show.summary_data import Compared, Section, placed
from reproduction.show.summary_figure import draw_summary
from reproduction.show.table_formats import Sheet, put_between
from reproduction.show.tables import guesses_right, images_kept, seeds_text, spread, state_size
from reproduction.study import Study
from reproduction.suites import ER_UNIFORM, FROZEN, Arm

PICTURE = "summary.png"
LARDER_PICTURE = "larder.png"
"""Shown by docs/larder.md."""
_NONE = "–"
_LEVELS = "A(T) / A in percent, mean ± standard deviation over seeds"
_LEADS = (
    "Larder less each in A(T): points, paired by seed, with 95 % intervals. Verdicts are on all differences of a "
    "stream together, those in A and to further arms too, at 5 % by Holm's method"
)
_KEPT = "What Larder keeps, and the state that is carried from one time step to the next"
_PLACES = (
    "Larder's A(T) in percent at other budgets, label rates and lengths, and its difference to the best other arm "
    f"there in points, paired by seed, with 95 % intervals; {PLACE_RULE}"
)
_STATES = (LARDER, LARDER_SMALL, FROZEN, ER_UNIFORM)


def summary_sheets(found: Sequence[Section], out: Path) -> list[Sheet]:
    """Return all tables of the summary."""
    tables = [sheet for section in found for sheet in section_sheets(section)]
    own = places_sheet(out)
    return [*tables, *([own] if own.rows else []), kept_sheet(found)]


def section_sheets(section: Section) -> list[Sheet]:
    """Return the levels of a section's arms and Larder's lead over each, a column for each stream; none without any."""
    if not section.found:
        return []
    names = [f"{compared.title}, {seeds_text(compared.measured)}" for compared in section.found]
    levels = [(arm.title, *(_level(compared, arm) for compared in section.found)) for arm in section.arms]
    leads = [_leads(compared) for compared in section.found]
    others = [arm.title for arm in section.arms if arm != LARDER]
    rows = [(title, *(lead.get(title, _NONE) for lead in leads)) for title in others]
    absent = f"; {_NONE}: not measured" if any(_NONE in row for row in levels) else ""
    return [
        Sheet(f"{_LEVELS}{absent}.", ("method", *names), tuple(levels)),
        Sheet(f"{_LEADS}{absent}.", ("Larder less", *(compared.title for compared in section.found)), tuple(rows)),
    ]


def _level(compared: Compared, arm: Arm) -> str:
    entry = compared.of(arm)
    return _NONE if entry is None else f"{spread(entry, final)} / {spread(entry, average)}"


def _leads(compared: Compared) -> dict[str, str]:
    """Return Larder's lead in A(T) over every other arm by its title, with the verdict of the suite's own page."""
    pairs = list(pairs_of(compared.suite, compared.measured))
    words = bare_words([pair.less(measure) for pair in pairs for measure in (final, average)])[::2]
    return {pair.other.arm.title: f"{pair.text(final)} {word}" for pair, word in zip(pairs, words, strict=True)}


def kept_sheet(found: Sequence[Section]) -> Sheet:
    """Return what Larder keeps of unlabeled images on every stream, and the size of its state beside others'."""
    rows = []
    for compared in (compared for section in found for compared in section.found):
        states = [state_size(entry) if entry else "" for entry in map(compared.of, _STATES)]
        rows.append((compared.title, images_kept(compared.leader), guesses_right(compared.leader), *states))
    header = ("stream", "unlabeled images kept", "guesses right, %", *(f"{arm.title}, kB" for arm in _STATES))
    return Sheet(f"{_KEPT}.", header, tuple(rows))


def places_sheet(out: Path) -> Sheet:
    """Return Larder's place at every point of the suites that vary budget, label rate or length."""
    rows = []
    for compared in placed(out):
        scale = scale_of(Study(compared.stream, out))
        for place in places(compared.suite, compared.measured, {"A(T)": final, "A": average}):
            if place.measure == "A(T)":
                where = scale.describe(compared.suite, place.point)
                level, best = spread(place.pair.ours, final), place.pair.other.arm.title
                rows.append((compared.title, where, place.pair.seeds, level, best, place.text, place.verdict))
    header = ("stream", "at", "seeds", "Larder", "best other arm", "Larder less it", "verdict")
    return Sheet(f"{_PLACES}.", header, tuple(rows))


def missing_words(section: Section) -> str:
    """Say on which streams a section was not measured, if there are any."""
    return f"Without counts of `{section.name}` yet: {', '.join(section.missing)}." if section.missing else ""


def write_summary(page: Path, out: Path, found: Sequence[Section]) -> None:
    """Put the figure and all tables between their marks in a Markdown file; the picture lies beside the counts."""
    link = linked(out, page)
    figure = f"![Accuracy after the last time step by method and stream]({link}/{PICTURE})\n"
    texts = {section.name: _text(section, out, link) for section in found}
    put_between(page, {"figure": figure, **texts, "places": _places(out), "kept": kept_sheet(found).markdown()})
    write_bytes(out / PICTURE, picture(draw_summary(found), "png"))
    for section in found:
        if section.name == "methods" and section.found:
            write_bytes(out / LARDER_PICTURE, picture(draw_larder(section), "png"))


def _places(out: Path) -> str:
    sheet = places_sheet(out)
    return sheet.markdown() if sheet.rows else "Not measured yet.\n"


def _text(section: Section, out: Path, link: str) -> str:
    pages = [
        f"[{compared.title}]({link}/{compared.stream}/{section.name}.md)"
        for compared in section.found
        if (out / compared.stream / f"{section.name}.md").is_file()
    ]
    whole = f"All arms, and the verdicts on A: {' · '.join(pages)}." if pages else ""
    words = " ".join(filter(None, (missing_words(section), whole)))
    return "\n".join([*(sheet.markdown() for sheet in section_sheets(section)), *([f"{words}\n"] if words else [])])
