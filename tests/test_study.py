"""A study: equal trials for all, nothing chosen on what is reported, and the paper's terms scaled to a stream."""

import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest

from dietcl import hold_out
from dietcl.errors import UserError
from dietcl.methods import METHODS, every_method, method_config
from dietcl.models.presets import MODELS
from dietcl.process_pool import in_processes
from dietcl.streams.index import open_manifest
from dietcl.streams.options import Recipe
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs
from dietcl.streams.stream import build_stream
from helpers.recording import updates_of
from helpers.scored_study import RuledStudy
from helpers.tiny import AMPLE, tiny_config, tiny_learner
from reproduction import suites as s
from reproduction.controls import known_controls
from reproduction.datasets import DATASETS, Dataset, manifest_of
from reproduction.run_cache import Cell, RunCache, run_cells
from reproduction.show.claim_tables import claim_sheet
from reproduction.show.publish import scale_of
from reproduction.show.results import stream_text, studies
from reproduction.show.tables import sheets_of
from reproduction.study import Missing, Study, seeds_of
from reproduction.suites import Arm, Point
from reproduction.trials import COEFFICIENTS, SHORT_SEARCH, SOLVED

LENGTHS = ((2, 10), (4, 20), (10, 50), (20, 100))
PEAKS = {10: 0.2, 20: 0.4, 40: 0.5, 80: 0.501}


def by_rule(cell):
    """Score a peak at 40 updates, trials best at the lowest rate, and later seeds better."""
    if cell.key.startswith("peak/"):
        return PEAKS[int(cell.config.budget)]
    return 0.5 - 10 * cell.config.training.lr + 0.01 * (cell.config.seed % 100)


@pytest.fixture
def study(tmp_path):
    return RuledStudy("glyphs", tmp_path, by_rule)


def test_every_method_gets_the_same_trials_on_other_seeds_of_held_out_images(study):
    methods = [arm.method for arm in s.EVERY if arm.method not in SOLVED]
    study.search(methods)
    lowest = min(SHORT_SEARCH.trials, key=lambda trial: trial.lr)
    for method in methods:
        own = [cell for cell in study.asked if cell.key.startswith(f"trial/{method}/")]
        assert len(own) == len(SHORT_SEARCH.trials) * len(SHORT_SEARCH.seeds)
        assert {(c.config.training.lr, c.config.training.head_lr) for c in own} == {
            (trial.lr, trial.head_lr) for trial in SHORT_SEARCH.trials
        }
        assert study.chosen(method) == lowest
    for cell in study.asked:
        assert cell.config.first_time_steps == SHORT_SEARCH.time_steps
        assert cell.config.seed in SHORT_SEARCH.seeds
        assert cell.config.stream == "glyphs/held-out"
    reported = study.cell(s.DIETCL, Point(), 0).config
    assert reported.stream == "glyphs"
    assert reported.training.lr == lowest.lr


def test_trials_differ_and_reach_a_method_s_own_coefficient():
    assert len(set(SHORT_SEARCH.trials)) == SHORT_SEARCH.number
    for name, (option, middle) in COEFFICIENTS.items():
        values = {trial.options(name)[option] for trial in SHORT_SEARCH.trials}
        assert min(values) < middle / 2
        assert max(values) > 2 * middle
        with known_controls():
            replace(method_config(name), **{option: middle})
    assert SHORT_SEARCH.trials[0].options("er") == {}


@pytest.mark.parametrize("name", every_method())
def test_only_methods_that_make_no_update_are_spared_the_search(blobs, name):
    base = name.partition(":")[0]
    config = replace(tiny_config(blobs, base, budget=AMPLE.get(base, "2")), method_config=method_config(name))
    assert (not updates_of(tiny_learner(config))) == (name in SOLVED)


def test_table1_has_every_method_of_the_registry():
    # OneStage is ER uniform under another name, and Larder has suites of its own.
    assert {arm.method.partition(":")[0] for arm in s.EVERY} == set(METHODS) - {"one_stage", "larder"}


def test_the_budget_is_a_quarter_above_where_doubling_stops_gaining_more_than_its_error(study):
    assert study.peaks == pytest.approx(PEAKS)
    assert (study.peak, study.budget, study.still_gains) == (40, 50, False)


def test_replay_that_never_stops_gaining_gets_the_last_budget_and_it_is_said(tmp_path):
    endless = RuledStudy("glyphs", tmp_path, lambda cell: int(cell.config.budget) / 4000)
    assert list(endless.peaks) == [10, 20, 40, 80, 160, 320]  # its gain past the last one is shown
    assert (endless.peak, endless.budget, endless.still_gains) == (160, 200, True)
    endless.measure(s.SUITES["sampling"], seeds=1)
    assert "S* = 160 updates of 64 images, where the search ends, though Replay still gains; S = 200." in stream_text(
        endless, tmp_path, ""
    )


def test_points_are_scaled_from_the_paper_s_terms(study):
    def config(arm=s.DIETCL, **point):
        return study.cell(arm, Point(**point), 0).config

    usual = config()
    assert (usual.budget, usual.method_config.threshold) == ("50", "40")
    assert (usual.recipe.label_rate, usual.recipe.time_steps) == (0.02, 20)
    assert config(updates=2500).budget == "250"
    assert config(updates=2500).method_config.threshold == "40"  # the joint phase does not grow
    assert config(threshold=450).method_config.threshold == "45"
    assert config(label_rate=0.005).recipe.label_rate == 0.01
    assert [config(updates=p.updates, time_steps=p.time_steps).budget for p in s.SUITES["stream-length"].points] == [
        *("100", "50", "20", "10")
    ]
    assert config(s.JOINT_ONLY).method_config.threshold == "100%"
    assert config(s.FIXMATCH).method_config.threshold == 0.95


def test_an_arm_takes_the_rates_of_the_method_it_is_tuned_as(tmp_path):
    def accuracy(cell):
        rate = 10 * cell.config.training.lr
        return rate if cell.config.method == "dietcl" else 0.5 - rate

    study = RuledStudy("glyphs", tmp_path, lambda cell: by_rule(cell) if "peak" in cell.key else accuracy(cell))
    highest = max(SHORT_SEARCH.trials, key=lambda trial: trial.lr)
    lowest = min(SHORT_SEARCH.trials, key=lambda trial: trial.lr)
    assert study.cell(s.REPLAY, Point(), 0).config.training.lr == highest.lr
    assert study.cell(s.ER, Point(), 0).config.training.lr == lowest.lr


def test_suites_share_the_runs_that_they_have_in_common(study):
    study.measure(s.SUITES["ablation"], seeds=2)
    before = len(study.asked)
    study.measure(s.SUITES["ablation-orders"], seeds=2)
    added = {cell.key.partition("/")[0] for cell in study.asked[before:]}
    assert len(added) == 2  # the balanced memory alone, and with reconstruction
    assert study.cell(s.WHOLE, Point(), 0) == study.cell(s.DIETCL, Point(), 0)


def test_seeds_come_one_after_the_other_and_decisive_arms_get_two_more(study):
    measured = study.measure(s.SUITES["table1"], seeds=1)
    assert {len(entry.results) for entry in measured if entry.arm.is_decisive} == {3}
    assert {len(entry.results) for entry in measured if not entry.arm.is_decisive} == {1}
    seeds = [cell.config.seed for cell in study.asked if cell.config.stream == "glyphs"]
    assert seeds == sorted(seeds)
    assert seeds_of(s.SUITES["ablation"], s.DIETCL, 3) == 3


def test_a_study_without_jobs_looks_up_and_never_runs(study, tmp_path):
    study.measure(s.SUITES["sampling"], seeds=1)
    reader = Study("glyphs", tmp_path)
    assert len(reader.finished(s.ER, Point())) == 3
    # Other suites compare all arms on the same seeds.
    suite = replace(s.SUITES["regimes"], points=(Point(),), arms=(s.ER, s.ER_UNIFORM, s.NAIVE))
    study.measure(replace(suite, arms=(s.NAIVE,)), seeds=2)
    found, measured = Study("glyphs", tmp_path).found(suite)
    assert [len(entry.results) for entry in measured] == [2, 2, 2]
    assert found.arms == suite.arms
    with pytest.raises(Missing, match=r"er as er/S 250"):
        reader.finished(s.ER, Point(updates=2500))
    with pytest.raises(Missing, match="trial/cassle"):
        reader.finished(s.CASSLE, Point())


def test_a_trial_that_diverged_scores_nothing(study, tmp_path):
    study.search(["naive"])
    study.searched.add(
        {
            "key": (cell := study.asked[0]).key,
            "hash": cell.hash,
            "correct": [[0]],
            "count": [[0]],
            "loss_sum": [[0]],
            "facts": {},
            "failure": "the loss is not finite",
        }
    )
    scores = study.scores("naive")
    assert scores[SHORT_SEARCH.trials[0]] == pytest.approx([0, by_rule(study.asked[1])])


def test_cells_are_run_once_and_kept_as_counts(blobs, tmp_path):
    config = replace(tiny_config(blobs, "naive", budget="1"), first_time_steps=2)
    cells = [Cell(f"tiny/seed {seed}", replace(config, seed=seed), str(seed)) for seed in (0, 1)]
    store = RunCache(tmp_path / "cells.jsonl")
    said = []
    pool = partial(in_processes, jobs=2)
    run_cells(cells, store, tmp_path / "scratch", pool, lambda *told: said.append(told))
    assert said[0] == (0, 2)
    assert said[-1] == (2, 2)
    assert said == sorted(said)
    assert not list((tmp_path / "scratch").iterdir())
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in lines} == {"tiny/seed 0", "tiny/seed 1"}
    again = RunCache(tmp_path / "cells.jsonl")
    run_cells(cells, again, tmp_path / "nowhere", pool, lambda *told: said.append(told))
    assert said[-1] == (2, 2)
    assert not (tmp_path / "nowhere").exists()
    # Another configuration under the same key is not done; a line torn by a crash is not either.
    assert replace(cells[0], hash="another") not in again
    assert cells[1] in again
    (tmp_path / "torn.jsonl").write_text((tmp_path / "cells.jsonl").read_text()[:-10])
    whole = json.loads(lines[0])["key"]  # whichever was finished first
    torn = RunCache(tmp_path / "torn.jsonl")
    assert [cell.key for cell in cells if cell in torn] == [whole]
    torn.add(json.loads(lines[1]))
    assert (tmp_path / "torn.jsonl").read_text() == (tmp_path / "cells.jsonl").read_text()
    torn.add({**json.loads(lines[1]), "hash": "another"})
    assert len((tmp_path / "torn.jsonl").read_text().splitlines()) == 2
    result = again.result(cells[0])
    assert result.summary.learned == 2
    assert result.facts["labels"] == 16
    assert result.facts["updates"] == 2
    assert set(result.facts["flops"]) == {"labeled"}  # evaluation is free


def test_a_cell_that_fails_stops_no_other_and_leaves_a_log(blobs, tmp_path):
    good = tiny_config(blobs, "naive", budget="1")
    cells = [Cell("bad", replace(good, first_time_steps=99), "0"), Cell("good", replace(good, first_time_steps=1), "1")]
    store = RunCache(tmp_path / "cells.jsonl")
    with pytest.raises(UserError, match="1 of 2 runs failed, the others are done; the first: bad: --first-time"):
        run_cells(cells, store, tmp_path / "scratch", partial(in_processes, jobs=1), lambda *told: None)
    assert cells[1] in store
    assert "the stream has only" in (tmp_path / "scratch" / "bad-0.failed.log").read_text()


def test_held_out_images_are_training_images_and_no_test_image_is_left(monkeypatch):
    monkeypatch.setitem(
        DATASETS,
        "few",
        Dataset(title="few", recipe=Recipe(time_steps=2), reader=Glyphs(classes=4, per_class=50, test_per_class=5)),
    )
    manifest = manifest_of("few", None)
    whole, held = pq.read_table(manifest).to_pylist(), pq.read_table(hold_out(manifest)).to_pylist()
    tests = {row["id"] for row in whole if row["split"] == "test"}
    assert len(tests) == 20
    assert len(held) == 200
    assert not tests & {row["id"] for row in held}
    judged = [row for row in held if row["split"] == "test"]
    assert 8 <= len(judged) <= 36
    stream = build_stream("few", open_manifest(hold_out(manifest)), Recipe(time_steps=2, label_rate=0.1), 0)
    assert sum(len(test.rows) for test in stream.tests) == len(judged)


def test_held_out_images_follow_their_manifest(cache, tmp_path):
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    table = pq.read_table(Glyphs(classes=2, per_class=20, test_per_class=5).prepare(cache))
    pq.write_table(table, one)
    pq.write_table(table.slice(0, 20), other)
    assert len(pq.read_table(hold_out(one))) > len(pq.read_table(hold_out(other)))  # side by side
    before = len(pq.read_table(hold_out(other)))
    pq.write_table(table.slice(0, 10), other)
    os.utime(other, ns=(2**62, 2**62))
    assert len(pq.read_table(hold_out(other))) < before


def test_the_paper_s_own_streams_have_a_regime_without_a_search(tmp_path):
    study = RuledStudy("cglm", tmp_path, lambda cell: 0.2)
    study.measure(replace(s.SUITES["sampling"], points=(Point(),)), seeds=1)
    assert stream_text(Study("cglm", tmp_path), tmp_path, "").startswith(
        "S = 600 updates of 1024 images, as in the paper."
    )


def test_a_stream_at_another_size_is_a_study_of_its_own(tmp_path):
    suite = replace(s.SUITES["sampling"], points=(Point(),))
    own, larger = (RuledStudy(name, tmp_path, by_rule) for name in ("glyphs", "glyphs@micro"))
    for study in (larger, own):
        study.measure(suite, seeds=1)
    assert [study.dataset.title for study in studies(tmp_path)] == ["glyphs", "glyphs (micro)"]
    cells = [study.cell(s.ER, Point(), 0) for study in (own, larger)]
    assert [cell.config.model for cell in cells] == [MODELS["nano"], MODELS["micro"]]
    assert [cell.config.training.batch for cell in cells] == [64, 16]
    assert cells[1] not in own.cells


def test_a_stream_of_another_length_is_named_and_judged(tmp_path, monkeypatch):
    few = replace(DATASETS["glyphs"], recipe=Recipe(recipe="class", time_steps=4, label_rate=0.02))
    monkeypatch.setitem(DATASETS, "short", few)
    study = RuledStudy("short", tmp_path, by_rule)
    for name in ("curves", "stream-length"):
        study.measure(s.SUITES[name], seeds=1)
    suite, measured = study.found(s.SUITES["stream-length"])
    lengths, *_ = sheets_of("stream-length", suite, measured, scale_of(study))
    assert lengths.header[1:] == tuple(f"{ours} time steps (paper: {paper})" for ours, paper in LENGTHS)
    told = {row[0]: row[3] for row in claim_sheet(studies(tmp_path)).rows}
    assert told["EWC, MAS and CaSSLe drop early"] == "not run"  # by the fifth time step, of four
    assert told["DietCL is stable over stream lengths, by A"].startswith("holds")


def test_missing_data_is_said_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"cifar100_32_webp.zip: no such file; give the folder"):
        manifest_of("cifar100", tmp_path)
    with pytest.raises(UserError, match=r"--stream cloc: give its manifest"):
        manifest_of("cloc", None)
    with pytest.raises(UserError, match=r"--stream cifar: no such dataset; choose from cifar100"):
        manifest_of("cifar", None)


def test_a_stream_and_a_method_join_by_one_value_each(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "mine", replace(DATASETS["glyphs"], title="mine"))
    suite = replace(s.SUITES["sampling"], arms=(*s.SUITES["sampling"].arms, Arm(title="ER small", method="er_ace")))
    measured = RuledStudy("mine", tmp_path, by_rule).measure(suite, seeds=1)
    assert [entry.arm.title for entry in measured] == ["ER uniform", "ER balanced", "ER small"]
    assert np.isfinite([entry.results[0].summary.final_mean for entry in measured]).all()


def test_an_arm_with_an_option_that_its_method_lacks_is_named(study):
    wrong = Arm(title="ER, small memory", method="er", options={"memoryy": 200})
    with pytest.raises(UserError, match="the arm ER, small memory: er has no option memoryy; see `dietcl train"):
        study.cell(wrong, Point(), 0)
