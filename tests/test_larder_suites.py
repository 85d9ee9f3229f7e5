"""The suites about Larder: what they run, on which seeds and streams, and how their tables judge it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dietcl import Recipe, Run
from dietcl.errors import UserError
from dietcl.process_pool import attempt
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs
from helpers.scored_study import RuledStudy, entry_of
from helpers.tiny import tiny_config
from reproduction import command as reproduce
from reproduction import larder_suites as ls
from reproduction import study as studies
from reproduction import suites as s
from reproduction.catalog import ALL_SUITES, suites_named
from reproduction.command import main
from reproduction.datasets import DATASETS, Dataset, dataset_named
from reproduction.run_cache import Cell, RunCache, run_cells
from reproduction.show.claim_tables import with_claims
from reproduction.show.figures import draw
from reproduction.show.lead_tables import search_sheets
from reproduction.show.plot_style import is_strong, style_of
from reproduction.show.publish import all_sheets, markdown, publish, scale_of
from reproduction.show.results import stream_text
from reproduction.show.results import studies as found_studies
from reproduction.show.tables import guesses_right, images_kept, sheets_of
from reproduction.study import Missing, Study
from reproduction.trials import SEARCH_AT_BUDGET, SHORT_SEARCH

LEVELS = {"larder": 0.34, "dietcl": 0.3, "er": 0.28}
(USUAL,) = ls.LARDER_SUITES["methods"].points


class KeepingStudy(RuledStudy):
    """Makes runs of Larder keep 800 images after the last time step, of which 600 are guessed rightly."""

    def _run(self, cells, store, title):
        for cell in cells:
            if cell not in store:
                self.asked.append(cell)
                entry = entry_of(cell, self.accuracy(cell))
                kept = {"guesses": [[100, 90], [800, 600]]} if cell.config.method == "larder" else {}
                store.add({**entry, "facts": {**entry["facts"], "state_bytes": 2_500_000, **kept}})


def by_level(cell):
    """Score a peak at 40 updates, methods by their level, and later seeds better, Larder the more so."""
    if cell.key.startswith("peak/"):
        return {10: 0.2, 20: 0.3, 40: 0.4}.get(int(cell.config.budget), 0.4)
    step = 0.002 if cell.config.method == "larder" else 0.001
    return LEVELS.get(cell.config.method, 0.2) + step * (cell.config.seed % 10)


@pytest.fixture
def study(tmp_path):
    return KeepingStudy("glyphs", tmp_path, by_level)


def small(name, *arms, seeds=3):
    """Return a suite with few arms, which is quick to measure."""
    return replace(ALL_SUITES[name], arms=arms or ALL_SUITES[name].arms, seeds=seeds)


# What is run.


def test_the_suites_are_as_planned():
    assert list(ls.LARDER_SUITES) == [
        *("methods", "methods-at-rates", "larder-parts", "larder-regimes", "larder-label-rate", "larder-stream-length"),
        *("larder-many-classes", "larder-wide", "larder-frozen", "larder-tried"),
    ]
    assert [suite.seeds for suite in ls.LARDER_SUITES.values()] == [8, 4, 4, 4, 3, 3, 5, 5, 5, 4]
    assert list(ALL_SUITES) == [*s.SUITES, *ls.LARDER_SUITES]
    for suite in ls.LARDER_SUITES.values():
        assert suite.arms[0] == ls.LARDER
        assert {point.accounting for point in suite.points} == {"flops"}
        wanted = ls.TRYING if suite is ls.LARDER_SUITES["larder-tried"] else ls.POWER
        assert {point.protocol for point in suite.points} == {wanted}
        titles = [arm.title for arm in suite.arms]
        assert len({*titles}) == len(titles)
    assert not any(suite.judges_leader for suite in s.SUITES.values())
    assert {suite.seeds for suite in s.SUITES.values()} == {3}


def test_runs_have_seeds_of_their_own_and_all_test_images_at_the_end(study):
    suite = small("methods", ls.LARDER, s.ER_UNIFORM)
    measured = study.measure(suite, 2)
    assert [[result.seed for result in entry.results] for entry in measured] == [[20, 21], [20, 21]]
    reported = [cell.config for cell in study.asked if cell.config.stream == "glyphs"]
    assert {
        (config.accounting, config.evaluation.all_at_end, config.evaluation.test_images) for config in reported
    } == {("flops", True, 2000)}
    # What the paper's suites run is left as it was, and none is taken for the other.
    earlier = study.cell(s.ER_UNIFORM, s.Point(), 0)
    assert (earlier.config.evaluation.all_at_end, earlier.config.accounting) == (False, "images")
    with pytest.raises(Missing):
        Study("glyphs", study.cells.path.parents[1]).finished(s.ER_UNIFORM, s.Point(accounting="flops"))
    found, measured = Study("glyphs", study.cells.path.parents[1]).found(ALL_SUITES["methods"])
    assert [arm.title for arm in found.arms] == ["Larder", "ER uniform"]


def test_arms_take_the_rates_that_they_are_named_after(tmp_path):
    lowest, highest = (choose(SEARCH_AT_BUDGET.trials, key=lambda trial: trial.lr) for choose in (min, max))

    def rule(cell):
        if cell.key.startswith("peak/"):
            return by_level(cell)
        rate = 10 * cell.config.training.lr
        return rate if cell.config.method == "larder" else 0.5 - rate

    study = RuledStudy("glyphs", tmp_path, rule)
    rates = {
        arm.title: study.cell(arm, USUAL, 20).config.training.lr for arm in (*ls.AT_RATES, ls.LARDER_SMALL, s.FROZEN)
    }
    at_larders = {"Larder", "Larder small", "ER uniform at Larder's rates", "ER balanced at Larder's rates"}
    solved = {"Frozen, solved head"}
    assert {title for title, rate in rates.items() if rate == highest.lr} == at_larders
    assert {title for title, rate in rates.items() if rate == lowest.lr} == rates.keys() - at_larders - solved


def test_one_phase_controls_are_dietcl_s(study):
    whole, bare = (study.cell(arm, USUAL, 20).config.method_config for arm in (ls.ONE_PHASE, ls.ONE_PHASE_REPLAY))
    assert (whole.threshold, bare.threshold) == ("100%", "100%")
    assert whole.unlabeled > 0
    assert (bare.unlabeled, bare.labeled, bare.memory) == (0.0, 0.5, 0.5)


# Streams.


def test_a_dataset_like_another_has_its_budget_and_rates_and_searches_nothing(study, tmp_path):
    suite = ALL_SUITES["larder-many-classes"]
    like = RuledStudy("glyphs1000", tmp_path, by_level)
    with pytest.raises(Missing, match="trial/er:uniform"):
        like.measure(suite, 1)  # glyphs has not been searched
    study.search(["er:uniform"])
    study.search([arm.method for arm in suite.arms], SEARCH_AT_BUDGET)
    like = RuledStudy("glyphs1000", tmp_path, by_level)
    measured = like.measure(suite, suite.seeds)
    assert like.budget == study.budget == 50
    assert {cell.config.stream for cell in like.asked} == {"glyphs1000"}
    assert not (tmp_path / "glyphs1000" / "search.jsonl").exists()
    cell = like.cell(ls.LARDER, suite.points[0], 20)
    assert cell.config.training.lr == study.chosen("larder", SEARCH_AT_BUDGET).lr
    assert (cell.config.budget, cell.config.recipe.time_steps, cell.config.recipe.label_rate) == ("10", 10, 0.02)
    assert [len(entry.results) for entry in measured] == [5, 5]
    assert stream_text(Study("glyphs1000", tmp_path), tmp_path, "") == "S = 50 updates of 64 images, as on glyphs.\n"
    assert dataset_named("glyphs1000@micro").like == "glyphs@micro"


def test_a_study_of_a_dataset_like_another_searches_that_one_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(studies.Study, "_run", RuledStudy._run)
    monkeypatch.setattr(studies.Study, "accuracy", lambda self, cell: by_level(cell), raising=False)
    monkeypatch.setattr(studies.Study, "asked", [], raising=False)
    Study("glyphs1000", tmp_path).measure(ALL_SUITES["larder-many-classes"], 1)
    assert {path.name for path in tmp_path.iterdir()} == {"glyphs", "glyphs1000"}
    assert {path.name for path in (tmp_path / "glyphs").iterdir()} == {"search.jsonl"}
    assert {path.name for path in (tmp_path / "glyphs1000").iterdir()} == {"cells.jsonl"}


def test_a_given_peak_is_not_searched_though_rates_are(tmp_path):
    wide = RuledStudy("cifar100-wide", tmp_path, by_level)
    wide.measure(small("larder-wide", ls.LARDER, s.ER_UNIFORM), 1)
    assert (wide.peak, wide.budget, wide.batch) == (512, 640, 16)
    assert {cell.key.partition("/")[0] for cell in wide.asked if cell.config.stream != wide.name} == {"at-budget"}
    config = wide.cell(s.DIETCL, USUAL, 20).config
    assert (config.budget, config.method_config.threshold, config.recipe.time_steps) == ("640", "512", 5)
    text = stream_text(Study("cifar100-wide", tmp_path), tmp_path, "")
    assert text == "S* = 512 updates of 16 images, set beforehand; S = 640.\n"
    at_another_size = dataset_named("cifar100-wide@nano")
    assert (at_another_size.peak, at_another_size.weights) == (None, "shipped")


def test_weights_of_a_dataset_make_other_cells(tmp_path, monkeypatch):
    study = RuledStudy("glyphs", tmp_path, by_level)
    before = study.cell(s.ER, s.Point(), 0)
    assert before.config.weights == "shipped"
    monkeypatch.setitem(DATASETS, "glyphs", replace(DATASETS["glyphs"], weights="longer.safetensors"))
    after = study.cell(s.ER, s.Point(), 0)
    assert after.config.weights == "longer.safetensors"
    assert after.key == before.key
    assert after.hash != before.hash


def test_a_suite_for_one_stream_is_refused_on_others_and_left_out_of_all():
    with pytest.raises(UserError, match=r"larder-wide: is for other streams; choose --stream cifar100-wide"):
        suites_named("larder-wide", stream="glyphs")
    assert list(suites_named("larder-wide", stream="cifar100-wide@nano")) == ["larder-wide"]
    for_one = {"larder-wide", "larder-many-classes", "larder-frozen"}
    assert {*ALL_SUITES} - {*suites_named("all", stream="glyphs")} == for_one
    of_others = for_one - {"larder-many-classes"} | {"larder-tried"}
    assert {*ALL_SUITES} - {*suites_named("all", stream="glyphs1000")} == of_others


def test_streams_without_a_claim_are_no_column_of_the_claims(study, tmp_path):
    study.measure(s.SUITES["sampling"], 2)
    RuledStudy("cifar100-wide", tmp_path, by_level).measure(small("larder-wide", s.ER_UNIFORM), 1)
    every = found_studies(tmp_path)
    assert [each.name for each in every] == ["glyphs", "cifar100-wide"]
    assert [each.name for each in with_claims(every)] == ["glyphs"]
    assert with_claims(every[1:]) == every[1:]  # so that it is said that nothing was run


# Tables.


def sheets(study, suite, name):
    return sheets_of(name, suite, study.measure(suite, suite.seeds), scale_of(study))


def test_larder_is_judged_against_every_arm_in_both_measures(study):
    levels, leads, _ = sheets(study, small("methods", ls.LARDER, s.DIETCL, s.FIXMATCH, seeds=4), "methods")
    assert "differences together, at 5 % by Holm's method" in leads.title
    assert "all 4 differences" in leads.title
    assert leads.header == ("difference", "A(T)", "verdict on A(T)", "A", "verdict on A", "seeds")
    # By hand: 4 points at the first seed and a tenth more at every further one.
    lead = "+4.2 [+3.9, +4.4]"  # 4.15 and a half width of 3.182 * 0.129 / 2 = 0.205
    assert leads.rows[0] == ("Larder less DietCL", lead, "above", lead, "above", "4")
    assert [row[0] for row in levels.rows] == ["Larder", "DietCL", "FixMatch"]


def test_a_difference_that_is_open_says_how_many_seeds_would_tell(tmp_path):
    leads = {20: 0.0, 21: 0.01, 22: 0.02}
    study = RuledStudy(
        "glyphs", tmp_path, lambda cell: 0.3 + (cell.config.method == "larder") * leads.get(cell.config.seed, 0)
    )
    _, judged, _ = sheets(study, small("methods", ls.LARDER, s.DIETCL), "methods")
    # Mean 1 and standard deviation 1, twice: 97.5 %, as in the tests of the words.
    assert judged.rows[0][1:3] == ("+1.0 [-1.5, +3.5]", "cannot tell (about 9 seeds would)")


def test_what_arms_keep_is_shown_where_some_keep_images(study):
    levels, *_ = sheets(study, small("larder-parts", ls.LARDER, s.DIETCL), "larder-parts")
    assert levels.header[-4:] == ("seeds", "images kept", "guesses right", "state, kB")
    assert levels.rows[0][-3:] == ("800", "75.0 ± 0.0", "2,500")
    assert levels.rows[1][-3:] == ("", "", "2,500")
    levels, *_ = sheets(study, small("larder-parts", s.DIETCL), "larder-parts")
    assert levels.header[-1] == "seeds"


@pytest.mark.parametrize(("known", "right"), [(None, "75.0"), (640, "93.8"), (0, "–")])
def test_the_share_of_right_guesses_is_of_those_whose_truth_is_known(known, right):
    facts = {"guesses": [[100, 90], [800, 600 if known != 0 else 0]]}
    facts |= {} if known is None else {"guesses_known": [100, known]}
    entry = SimpleNamespace(results=[SimpleNamespace(facts=facts)])
    assert images_kept(entry) == "800"
    assert guesses_right(entry) == right


def test_the_best_other_arm_is_found_at_every_point(tmp_path):
    def rule(cell):
        if cell.key.startswith("peak/"):
            return by_level(cell)
        levels = {"10": {"larder": 0.4, "dietcl": 0.3}, "160": {"larder": 0.1, "er": 0.5}}.get(cell.config.budget, {})
        return levels.get(cell.config.method, 0.2) + 0.001 * (cell.config.seed % 10)

    study = RuledStudy("glyphs", tmp_path, rule)
    *_, differences, places, _ = sheets(study, small("larder-regimes"), "larder-regimes")
    assert len(differences.rows) == 3 * 3
    assert places.header == ("at", "measure", "best other arm", "Larder less it", "seeds", "verdict")
    told = {(at.partition(" (")[0], measure): cells for at, measure, *cells in places.rows}
    assert told["S = 10", "A(T)"] == ["DietCL", "+10.0 [+10.0, +10.0]", "3", "best"]
    assert told["S = 160", "A"] == ["ER uniform", "-40.0 [-40.0, -40.0]", "3", "below"]
    assert told["S = 50", "A(T)"][1:] == ["+0.0 [+0.0, +0.0]", "3", "within the interval of the best"]
    assert "on all differences of the suite together" in places.title


def test_the_search_is_shown_with_its_rates_its_ties_and_its_noise(study):
    suite = small("methods", ls.LARDER, ls.ER_AS_LARDER, s.DIETCL, s.FROZEN)
    study.measure(suite, 1)
    (sheet,) = search_sheets(study, suite)
    choice = study.choice("dietcl", SEARCH_AT_BUDGET)
    assert [row[0] for row in sheet.rows] == ["Larder", "DietCL"]
    assert sheet.rows[1][1:3] == (f"{choice.trial.lr:g}", f"{choice.trial.head_lr:g}")
    assert sheet.rows[1][3] == f"alpha = {choice.trial.options('dietcl')['alpha']:g}"
    assert sheet.rows[1][4:] == ("8", "0.00")  # all trials scored alike
    assert "8 trials of every method" in sheet.title
    assert not search_sheets(study, s.SUITES["sampling"])  # of the earlier search nothing is shown
    assert sheet in all_sheets(study, "methods", suite, study.measure(suite, 1))


def test_every_suite_is_published_and_fits(tmp_path, study):
    for name, suite in ls.LARDER_SUITES.items():
        own = study if not suite.streams else KeepingStudy(suite.streams[0], tmp_path, by_level)
        measured = own.measure(suite, 2)
        text = markdown(own, name, suite, measured, all_sheets(own, name, suite, measured))
        assert f"`python -m reproduction {name} --stream {own.name}" in text
        assert "--seeds 2`" in text
        assert "Holm" in text
        assert "paper, A(T)" not in text
        figure = draw(suite, measured, scale_of(own), f"Stream: {suite.title}")
        figure.draw_without_rendering()
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert figure.bbox.x0 <= box.x0, name
            assert box.x1 <= figure.bbox.x1, name
    publish(
        study, "methods", ls.LARDER_SUITES["methods"], study.measure(ls.LARDER_SUITES["methods"], 2), tmp_path / "p"
    )
    assert "verdict on A(T)" in (tmp_path / "p" / "methods.html").read_text()


def test_larder_and_dietcl_stand_out_from_the_others():
    assert [arm.title for arm in ls.METHODS if is_strong(arm)] == ["Larder", "DietCL"]
    assert style_of(ls.LARDER)["color"] != style_of(s.DIETCL)["color"]
    for suite in ls.LARDER_SUITES.values():
        if suite.view != "table":  # whose rows have names
            looks = [style_of(arm) for arm in suite.arms]
            assert len({(look["color"], str(look["ls"])) for look in looks}) == len(looks)


# Runs.


def one_by_one(work, items, progress):
    """Carry runs out in this process."""
    for number, item in enumerate(items):
        yield attempt(work, item, number, lambda done, number=number: progress(number, done))


@pytest.mark.parametrize(("known", "kept"), [({}, None), ({"guesses_known": 4}, None), ({"guesses_known": 3}, [3, 3])])
def test_what_a_run_notes_of_its_guesses_is_kept(blobs, tmp_path, monkeypatch, known, kept):
    cells = [Cell("tiny", replace(tiny_config(blobs, "er", budget="1"), first_time_steps=2), "0")]
    plain, store = RunCache(tmp_path / "plain.jsonl"), RunCache(tmp_path / "cells.jsonl")
    run_cells(cells, plain, tmp_path / "scratch", one_by_one, lambda *told: None)
    facts = plain.result(cells[0]).facts
    assert facts["state_bytes"] > 0
    assert "guesses" not in facts
    events = Run.of

    def with_guesses(run, kind):
        noted = {"guesses": 4, "guesses_right": 3, **known} if kind == "step_end" else {}
        return [{**event, **noted} for event in events(run, kind)]

    monkeypatch.setattr(Run, "of", with_guesses)
    run_cells(cells, store, tmp_path / "scratch", one_by_one, lambda *told: None)
    facts = store.result(cells[0]).facts
    assert facts["guesses"] == [[4, 3], [4, 3]]
    assert facts.get("guesses_known") == kept


def test_a_suite_says_its_own_number_of_seeds_and_the_user_another(tmp_path, monkeypatch, capsys):
    few = Dataset(
        title="Four characters",
        recipe=Recipe(time_steps=2, label_rate=0.1),
        reader=Glyphs(classes=4, per_class=20, test_per_class=5),
        test_images=None,
        peak=2,
    )
    monkeypatch.setitem(DATASETS, "few", few)
    for search in (SHORT_SEARCH, SEARCH_AT_BUDGET):
        monkeypatch.setitem(vars(search), "number", 1)
        monkeypatch.setitem(vars(search), "time_steps", 2)
    monkeypatch.setitem(ALL_SUITES, "larder-parts", small("larder-parts", s.FROZEN, s.DIETCL, seeds=2))
    monkeypatch.setattr(reproduce, "_pool", lambda options, console: one_by_one)
    command = ["larder-parts", "--stream", "few", "--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "runs")]
    assert main(command) == 0
    found = json.loads((tmp_path / "out/few/larder-parts.json").read_text())
    assert {key.partition("/seed ")[2] for row in found["rows"] for key in row["keys"]} == {"20", "21"}
    searched = (tmp_path / "out/few/search.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"].partition("/")[0] for line in searched] == ["at-budget"] * 3
    assert main([*command, "--seeds", "3"]) == 0
    found = json.loads((tmp_path / "out/few/larder-parts.json").read_text())
    assert [len(row["keys"]) for row in found["rows"]] == [3, 3]
    assert found["command"].endswith("--seeds 3")
