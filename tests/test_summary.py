"""The summary: levels and leads worked out by hand, verdicts of the suites' own pages, and what is missing said so."""

import pytest

from helpers.scored_study import RuledStudy, entry_of
from reproduction.catalog import ALL_SUITES, suites_named
from reproduction.command import main
from reproduction.larder_suites import LARDER, LARDER_SMALL
from reproduction.show.larder_figure import draw_larder, remembered
from reproduction.show.publish import all_sheets, publish
from reproduction.show.summary import (
    kept_sheet,
    missing_words,
    places_sheet,
    section_sheets,
    summary_sheets,
    write_summary,
)
from reproduction.show.summary_data import LEARNED_ARMS, sections
from reproduction.show.summary_figure import draw_summary
from reproduction.show.table_formats import marks
from reproduction.study import Study
from reproduction.suites import DIETCL, RANPAC

BLOCKS = ("figure", "methods", "larder-frozen", "places", "kept")


def by_hand(cell):
    """Larder at 50, 52 and 54 %, NCM always 20 points below, RanPAC at 53, 51 and 55, all others at 30 %."""
    seed = cell.config.seed % 100 % 20
    larder = (0.5, 0.52, 0.54)[seed % 3]
    return {"larder": larder, "ncm": larder - 0.2, "ranpac": (0.53, 0.51, 0.55)[seed % 3]}.get(cell.config.method, 0.3)


class GuessingStudy(RuledStudy):
    """Makes Larder keep 10 guesses of the first seed and 20 of the others, half of them right."""

    def _run(self, cells, store, title):
        for cell in (cell for cell in cells if cell not in store):
            entry = entry_of(cell, self.accuracy(cell))
            kept = 10 if cell.config.seed == 20 else 20
            own = {"state_bytes": 3000, "guesses": [[0, 0], [kept, kept // 2]]}
            store.add({**entry, "facts": {**entry["facts"], **(own if cell.config.method == "larder" else {})}})


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """A folder with three seeds of the frozen suite on one stream, the page of the suite among them."""
    out = tmp_path_factory.mktemp("summary") / "results"
    GuessingStudy("yearbook-lite", out, by_hand).measure(ALL_SUITES["larder-frozen"], 3)
    study = Study("yearbook-lite", out)
    publish(study, "larder-frozen", *study.found(ALL_SUITES["larder-frozen"]), out / study.name)
    return out


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    """What is shown of two seeds of two methods that learn, and on a frozen encoder of methods other than Larder."""
    out = tmp_path_factory.mktemp("summary") / "results"
    RuledStudy("glyphs", out, by_hand).measure(suites_named("methods", "larder,dietcl")["methods"], 2)
    others = suites_named("larder-frozen", "linear_probe,ncm")["larder-frozen"]
    RuledStudy("yearbook-lite", out, by_hand).measure(others, 1)
    return sections(out)


def test_levels_and_leads_by_hand(frozen):
    _, section = sections(frozen)
    levels, leads = section_sheets(section)
    assert levels.header == ("method", "Yearbook (frozen lite), 3 seeds")
    assert dict(levels.rows)["Larder"] == "52.0 ± 2.0 / 52.0 ± 2.0"
    found = dict(leads.rows)
    heads = ["Frozen, solved head", "Frozen, solved head, half whitened"]
    assert list(found) == [*heads, "NCM", "ACM", "RanPAC, frozen", "Larder small"]
    assert found["NCM"] == "+20.0 [+20.0, +20.0] above"
    # -3, +1 and -1: mean -1 and standard deviation 2, so that the half width is 4.303 * 2 / sqrt(3) = 4.97.
    assert found["RanPAC, frozen"] == "-1.0 [-6.0, +4.0] cannot tell"


def test_verdicts_are_those_of_the_suite_s_own_page(frozen):
    study = Study("yearbook-lite", frozen)
    _, verdicts, *_ = all_sheets(study, "larder-frozen", *study.found(ALL_SUITES["larder-frozen"]))
    _, leads = section_sheets(sections(frozen)[1])
    assert [f"Larder less {title}" for title, _ in leads.rows] == [row[0] for row in verdicts.rows]
    for (_, cell), (_, difference, word, *_) in zip(leads.rows, verdicts.rows, strict=True):
        assert cell == f"{difference} {word.partition(' (')[0]}"


def test_what_is_kept_is_told_beside_the_state(frozen):
    sheet = kept_sheet(sections(frozen))
    assert sheet.rows == (("Yearbook (frozen lite)", "17", "50.0 ± 0.0", "3", "3", "", ""),)  # (10 + 20 + 20) / 3
    assert sheet.header[3:5] == ("Larder, kB", "Larder small, kB")


def test_streams_and_methods_without_counts_are_named(partly, tmp_path):
    learned, frozen = partly
    assert [compared.stream for compared in learned.found] == ["glyphs"]
    assert frozen.found == ()  # as there is nothing of Larder
    assert missing_words(learned) == "Without counts of `methods` yet: CIFAR-100, Fruits-360, Yearbook."
    assert missing_words(frozen).endswith(
        ": CIFAR-100 (frozen lite), Fruits-360 (frozen lite), Yearbook (frozen lite)."
    )
    levels, leads = section_sheets(learned)
    assert [title for title, _ in levels.rows] == [arm.title for arm in LEARNED_ARMS]
    assert dict(levels.rows)["RanPAC"] == dict(leads.rows)["RanPAC"] == "–"
    assert levels.title.endswith("; –: not measured.")
    assert section_sheets(frozen) == []
    assert len(summary_sheets(partly, tmp_path)) == 3


def test_one_seed_is_said_to_have_no_interval(tmp_path):
    RuledStudy("yearbook-lite", tmp_path, by_hand).measure(ALL_SUITES["larder-frozen"], 1)
    _, leads = section_sheets(sections(tmp_path)[1])
    assert dict(leads.rows)["NCM"] == "+20.0 cannot tell (one seed has no interval)"


def test_larder_s_place_at_other_budgets_is_told_beside_the_best_other_arm(tmp_path):
    def by_budget(cell):
        """ER uniform leads by 2, 1 and 3 points at a fifth of S = 12; at more updates it lies 12, 13 and 11 below."""
        others = {"er": 0.42 if cell.config.budget == "2" else 0.28, "larder": 0.4}
        noise = (0.0, -0.01, 0.01)[cell.config.seed % 100 % 20 % 3] if cell.config.method == "er" else 0.0
        return others.get(cell.config.method, 0.1) + noise

    out = tmp_path / "results"
    RuledStudy("glyphs", out, by_budget).measure(ALL_SUITES["larder-regimes"], 3)
    starved, *others = places_sheet(out).rows
    assert starved[2:] == ("3", "40.0 ± 0.0", "ER uniform", "-2.0 [-4.5, +0.5]", "within the interval of the best")
    assert [row[2:] for row in others] == [("3", "40.0 ± 0.0", "ER uniform", "+12.0 [+9.5, +14.5]", "best")] * 2
    assert {row[0] for row in (starved, *others)} == {"glyphs"}
    assert summary_sheets(sections(out), out)[-2] == places_sheet(out)


def test_the_figure_has_a_panel_for_each_stream_and_a_row_for_each_method(frozen, partly):
    figure = draw_summary([partly[0], sections(frozen)[1]])
    assert [axes.get_title("left") for axes in figure.axes] == ["glyphs", "Yearbook\n(frozen lite)"]
    for axes, arms in zip(figure.axes, (LEARNED_ARMS, ALL_SUITES["larder-frozen"].arms), strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == [arm.title for arm in arms]
    means = [{line.get_label(): line.get_xydata().tolist() for line in axes.lines} for axes in figure.axes]
    assert means[0][LARDER.title] == [[pytest.approx(51), 0]]
    assert means[0][DIETCL.title] == [[pytest.approx(30), 1]]
    assert RANPAC.title not in means[0]
    assert means[1][LARDER.title] == [[pytest.approx(52), 0]]
    assert means[1][LARDER_SMALL.title] == [[pytest.approx(52), 6]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["%", "51.0", "30.0"]


def test_the_figure_of_larder_counts_labels_and_guesses_by_time_step(frozen, partly):
    (compared,) = sections(frozen)[1].found
    counts, facts = remembered(compared), compared.leader.results[0].facts
    steps = len(compared.leader.results[0].along)
    # Two reports, the first of nothing: in all time steps before the last one there is no guess.
    for kind in ("guesses, right", "guesses, wrong"):
        assert counts[kind].tolist() == [0] * (steps - 1) + [pytest.approx((5 + 10 + 10) / 3)]
    assert counts["labels"].tolist() == [pytest.approx(facts["labels_per_step"] * t) for t in range(1, steps + 1)]
    figure = draw_larder(partly[0])
    lines = {line.get_label(): line.get_xydata()[-1, 1] for line in figure.axes[1].lines}
    assert lines[LARDER.title] == pytest.approx(51)
    assert lines[DIETCL.title] == pytest.approx(30)


def test_a_page_lies_anywhere_and_finds_its_picture_and_the_suites(frozen):
    page = frozen.parent / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("# Mine\n" + "".join(f"{line}\n" for name in BLOCKS for line in marks(name)))
    write_summary(page, frozen, sections(frozen))
    text = page.read_text()
    assert text.startswith("# Mine\n")
    assert "](../results/summary.png)" in text
    assert "[Yearbook (frozen lite)](../results/yearbook-lite/larder-frozen.md)." in text
    before = (frozen / "summary.png").read_bytes()
    write_summary(page, frozen, sections(frozen))
    assert (page.read_text(), (frozen / "summary.png").read_bytes()) == (text, before)


def test_the_command_prints_and_writes(tmp_path, capsys):
    out = tmp_path / "results"
    RuledStudy("yearbook-lite", out, by_hand).measure(ALL_SUITES["larder-frozen"], 2)
    assert main(["summary", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "51.0 ± 1.4 / 51.0 ± 1.4" in said  # of 50 and 52
    assert "Without counts of `methods` yet: CIFAR-100, glyphs, Fruits-360, Yearbook." in said
    assert not (out / "summary.png").exists()
    page = tmp_path / "page.md"
    page.write_text("")
    assert main(["summary", "--out", str(out), "--write", str(page)]) == 2
    assert "page.md: has no lines <!-- figure: begin -->" in capsys.readouterr().err
    assert not (out / "summary.png").exists()
    page.write_text("".join(f"{line}\n" for name in BLOCKS for line in marks(name)))
    assert main(["summary", "--out", str(out), "--write", str(page)]) == 0
    assert f"written: {page}" in capsys.readouterr().out
    assert (out / "summary.png").is_file()
