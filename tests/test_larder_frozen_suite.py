"""The suite on the features of a frozen encoder: what it runs, that nothing is searched, and what its tables show."""

import json
from dataclasses import replace

import pytest

from dietcl import Recipe, train_config
from dietcl.process_pool import attempt
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs
from helpers.scored_study import RuledStudy, entry_of
from reproduction import command as reproduce
from reproduction import larder_suites as ls
from reproduction import run_cache
from reproduction import suites as s
from reproduction.catalog import ALL_SUITES, suites_named
from reproduction.command import main
from reproduction.datasets import DATASETS, Dataset
from reproduction.show.lead_tables import search_sheets
from reproduction.show.publish import scale_of
from reproduction.show.results import stream_text
from reproduction.show.tables import sheets_of
from reproduction.study import Study

SUITE = ls.LARDER_SUITES["larder-frozen"]
(POINT,) = SUITE.points
STREAMS = pytest.mark.parametrize("name", SUITE.streams)


class FrozenStudy(RuledStudy):
    """Makes runs know nothing of a head solved on an encoder that learned, as there is none."""

    def _run(self, cells, store, title):
        for cell in (cell for cell in cells if cell not in store):
            self.asked.append(cell)
            entry = entry_of(cell, self.accuracy(cell))
            store.add({**entry, "facts": {name: fact for name, fact in entry["facts"].items() if name != "ridge"}})


# What is run.


def test_the_suite_is_as_planned():
    methods = ["larder", "linear_probe", "linear_probe", "ncm", "acm", "ranpac:frozen", "larder:small"]
    assert [arm.method for arm in SUITE.arms] == methods
    assert [arm.options for arm in SUITE.arms if arm.options] == [{"scale": "half"}]
    assert SUITE.streams == ("cifar100-lite", "fruits360-lite", "yearbook-lite")
    assert list(POINT.protocol.seeds(SUITE.seeds)) == [20, 21, 22, 23, 24]
    assert list(suites_named("larder-frozen", stream="cifar100-lite")) == ["larder-frozen"]


@STREAMS
def test_the_encoder_of_photos_is_frozen_and_the_stream_is_that_of_the_dataset(name, tmp_path):
    study = RuledStudy(name, tmp_path, lambda cell: 0.5)
    dataset, usual = study.dataset, DATASETS[name.removesuffix("-lite")]
    assert (dataset.recipe, dataset.reader, dataset.pack) == (usual.recipe, usual.reader, usual.pack)
    assert (dataset.is_even, dataset.is_binary) == (usual.is_even, usual.is_binary)
    for arm in SUITE.arms:
        config = study.cell(arm, POINT, 20).config
        assert (config.model.encoder, config.model.train, config.weights) == ("lite", "head", "shipped")
        assert (config.budget, config.accounting, config.seed) == ("200", "flops", 20)
        assert (config.recipe, config.evaluation.all_at_end) == (usual.recipe, True)


def test_other_datasets_learn_the_whole_encoder(tmp_path):
    assert {name for name, dataset in DATASETS.items() if dataset.train != "full"} == {*SUITE.streams}
    assert Study("cifar100-wide", tmp_path).dataset.train == "full"


@STREAMS
def test_nothing_is_searched(name, tmp_path):
    study = FrozenStudy(name, tmp_path, lambda cell: 0.5)
    study.measure(SUITE, 2)
    assert len(study.asked) == 2 * len(SUITE.arms)
    assert {cell.config.stream for cell in study.asked} == {name}
    assert not (tmp_path / name / "search.jsonl").exists()
    assert not search_sheets(study, SUITE)


# Tables.


def test_a_head_solved_on_an_encoder_that_did_not_learn_is_no_column(tmp_path):
    study = FrozenStudy("cifar100-lite", tmp_path, lambda cell: 0.5)
    levels, *_ = sheets_of("larder-frozen", SUITE, study.measure(SUITE, 2), scale_of(study))
    assert levels.header == ("method", "A(T)", "A", "current", "old", "seeds")
    assert {len(row) for row in levels.rows} == {len(levels.header)}
    usual = RuledStudy("cifar100", tmp_path, lambda cell: 0.5)
    suite = replace(s.SUITES["sampling"], arms=(s.FROZEN,))
    levels, *_ = sheets_of("sampling", suite, usual.measure(suite, 2), scale_of(usual))
    assert levels.header[5] == "solved head"
    assert levels.rows[0][5] == "50.0 ± 0.0"


def test_the_budget_is_not_said_to_be_the_paper_s(tmp_path):
    told = stream_text(FrozenStudy("yearbook-lite", tmp_path, lambda cell: 0.5), tmp_path, "")
    assert told == "S = 200 updates of 64 images, more than any head on a frozen encoder spends.\n"


# Runs.


def test_cells_look_at_all_arriving_images_and_measure_no_encoder(tmp_path, monkeypatch):
    few = Dataset(
        title="Four characters",
        recipe=Recipe(time_steps=2, label_rate=0.1),
        train="head",
        reader=Glyphs(classes=4, per_class=20, test_per_class=5),
        test_images=None,
        updates=200,
    )
    arms = (ls.LARDER, s.FROZEN, ls.LARDER_SMALL)
    monkeypatch.setitem(DATASETS, "few", few)
    monkeypatch.setitem(ALL_SUITES, "larder-frozen", replace(SUITE, arms=arms, streams=("few",), seeds=1))
    swept = set()

    def one_by_one(work, items, progress):
        for number, item in enumerate(items):
            yield attempt(work, item, number, lambda done, number=number: progress(number, done))

    def noting(config, folder, **options):
        run = train_config(config, folder, **options)
        swept.update((event["name"], event["images"], event["of"]) for event in run.of("sweep"))
        return run

    monkeypatch.setattr(reproduce, "_pool", lambda options, console: one_by_one)
    monkeypatch.setattr(run_cache, "train_config", noting)
    monkeypatch.setattr(run_cache, "solved_head_accuracy", None)
    command = ["larder-frozen", "--stream", "few", "--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "runs")]
    assert main(command) == 0
    assert swept == {("labels", 4, 4), ("guess", 36, 36), ("features", 4, 4)}
    lines = [json.loads(line) for line in (tmp_path / "out/few/cells.jsonl").read_text().splitlines()]
    facts = {line["key"].partition(" ")[0]: line["facts"] for line in lines}
    assert list(facts) == [arm.method for arm in arms]
    assert {("ridge" in own, own["updates"], own["flops"]["solve"] > 0) for own in facts.values()} == {(False, 0, True)}
    assert facts["larder"]["guesses"][-1][0] > facts["larder:small"]["guesses"][-1][0] > 0
    found = json.loads((tmp_path / "out/few/larder-frozen.json").read_text())
    assert [row["solved head, pooled"] for row in found["rows"]] == [[None]] * 3
