"""Cross-validation of an option: held-out revealed labels only, paid by the search account, done once."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

import dietcl.engine.option_search
import dietcl.run
from dietcl.engine.learner import Equipment
from dietcl.engine.option_search import FOLDS, TIME_STEPS, Found, choose_value, hold_out
from dietcl.errors import Stopped, UserError
from dietcl.execution import Execution
from dietcl.methods import method_config
from dietcl.methods.method_options import requested_search
from dietcl.methods.semi_supervised_options import DietCLOptions
from dietcl.run import execute
from dietcl.streams.index import open_manifest
from helpers.tiny import tiny_config, tiny_learner

SEARCH = DietCLOptions.searched


def nothing(*_):
    pass


@pytest.fixture(scope="module")
def index(blobs):
    return open_manifest(blobs)


@pytest.fixture(scope="module")
def stream(blobs):
    return tiny_learner(tiny_config(blobs)).stream


def searching(blobs, **options):
    """A configuration with a threshold to be found, in updates of three images."""
    config = tiny_config(blobs, threshold="auto", **options)
    return replace(config, training=replace(config.training, batch=3, micro_batch=3))


def choose(config, stream, index):
    return choose_value(config, SEARCH, stream, Equipment(index), nothing)


def test_every_label_is_held_out_in_one_fold_and_learned_in_the_others(stream):
    for number, step in enumerate(stream.steps[:TIME_STEPS]):
        held = []
        for fold in range(FOLDS):
            part = hold_out(stream, fold)
            kept, test = part.steps[number], part.tests[number]
            held.append(test.rows)
            assert set(kept.labeled) | set(test.rows) == set(step.labeled)
            assert not set(kept.labeled) & set(test.rows)
            label_of = dict(zip(step.labeled, step.labels, strict=True))
            assert [label_of[row] for row in test.rows] == test.labels.tolist()
            assert [label_of[row] for row in kept.labeled] == kept.labels.tolist()
            assert (kept.unlabeled == step.unlabeled).all()
            # Every class has four labels here: none is held out whole, none is kept whole.
            assert set(kept.labels) == set(test.labels) == set(step.labels)
        assert sorted(np.concatenate(held)) == sorted(step.labeled)


def test_only_the_first_time_steps_are_searched(stream):
    steps = tuple(replace(step, t=t) for t, step in enumerate((*stream.steps, *stream.steps), start=1))
    tests = tuple(replace(test, t=t) for t, test in enumerate((*stream.tests, *stream.tests), start=1))
    part = hold_out(replace(stream, steps=steps, tests=tests), 0)
    assert [step.t for step in part.steps] == [test.t for test in part.tests] == [1, 2, 3]


@pytest.fixture(scope="module")
def watched(blobs, stream, index):
    """A search whose trials are kept: their thresholds, and every row they read."""
    trials = []
    assemble = dietcl.engine.option_search.assemble

    def watch(config, part, *others):
        learner = assemble(config, part, *others)
        fetch, rows, numbers = learner.loader.storage.fetch, [], np.argsort(part.index_row)

        def remember(wanted):
            rows.append(numbers[wanted])
            return fetch(wanted)

        learner.loader.storage.fetch = remember
        trials.append((config, part, learner, rows))
        return learner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dietcl.engine.option_search, "assemble", watch)
        found = choose(searching(blobs, budget="10"), stream, index)
    return found, trials


def test_the_candidates_are_shares_of_the_budget(watched):
    found, trials = watched
    assert [round(share * 10) for share in SEARCH.shares] == [6, 7, 8, 9]
    assert sorted(config.method_config.threshold for config, *_ in trials) == list("66778899")
    assert found.scores.keys() == {"6", "7", "8", "9"}
    assert found.value == min(c for c, score in found.scores.items() if score == max(found.scores.values()))


def test_scores_are_held_out_accuracies(watched):
    found, trials = watched
    for candidate, score in found.scores.items():
        accuracies = [
            learner.counts.correct[-1].sum() / learner.counts.count[-1].sum()
            for config, _, learner, _ in trials
            if config.method_config.threshold == candidate
        ]
        assert len(accuracies) == FOLDS
        assert score == pytest.approx(np.mean(accuracies))


def test_no_test_image_is_read_and_no_held_out_one_is_trained_on(watched, stream):
    _, trials = watched
    hidden = {row for test in stream.tests for row in test.rows.tolist()}
    for _, part, _, rows in trials:
        seen = {row for batch in rows for row in batch.tolist()}
        assert not seen & hidden
        held = {row for test in part.tests for row in test.rows.tolist()}
        trained = {row for s in part.steps for pool in (s.labeled, s.unlabeled) for row in pool.tolist()}
        assert not trained & held
        assert seen <= trained | held


def test_the_search_pays_for_every_trial(watched):
    found, _ = watched
    spent = sum(item.passes for item in found.spent)
    assert spent == len(SEARCH.shares) * FOLDS * TIME_STEPS * 10 * 3


def test_shares_that_round_to_one_candidate_are_tried_once(blobs, stream, index):
    found = choose(searching(blobs, budget="2"), stream, index)
    assert found.scores.keys() == {"1", "2"}
    assert all(0 <= score <= 1 for score in found.scores.values())
    assert sum(item.passes for item in found.spent) == 2 * FOLDS * TIME_STEPS * 2 * 3


def test_a_run_books_the_search_apart_and_does_it_once(blobs, tmp_path, monkeypatch):
    config = searching(blobs, budget="5")
    calls = []

    def found(*arguments):
        calls.append(arguments)
        return Found("3", {"3": 0.5}, tiny_items)

    learner = tiny_learner(tiny_config(blobs, budget="5"))
    learner.ledger.open(1, 2)
    learner.ledger.charge("memory", "train", 30)
    tiny_items = learner.ledger.close().items

    def interrupt(t, fraction):
        if t == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(dietcl.run, "choose_value", found)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        execute(config, folder, Execution(device="cpu"), progress=interrupt)
    execute(config, folder, Execution(device="cpu"))
    assert len(calls) == 1
    receipts = json.loads((folder / "receipts.json").read_text())
    assert [(item["purpose"], item["images"]) for item in receipts["search"]] == [("memory", 30)]
    assert [step["spent"] for step in receipts["steps"]] == [15, 15, 15]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    # Three updates of the joint phase and two of the memory; only the first of each phase is written down.
    spent = {(e["t"], e["phase"]): e["spent"] for e in events if e["event"] == "update"}
    assert spent[2, "balance"] == (3 + 1) * 3


def test_the_whole_of_it_through_a_run(blobs, tmp_path):
    execute(
        searching(blobs, budget="2"),
        tmp_path / "run",
        Execution(device="cpu"),
    )
    saved = json.loads((tmp_path / "run/search.json").read_text())
    receipts = json.loads((tmp_path / "run/receipts.json").read_text())
    assert saved["threshold"] in ("1", "2")
    assert sum(item["passes"] for item in receipts["search"]) == sum(item["passes"] for item in saved["spent"]) > 0


def test_a_search_that_was_stopped_goes_on_with_its_next_trial(blobs, stream, index, monkeypatch):
    config, kept, asked, made = searching(blobs, budget="2"), {}, [], []
    whole = choose(config, stream, index)

    def is_stopping():
        asked.append(1)
        return len(asked) == 30  # amid a trial, whose time steps have four moments each

    def stopped_or_found():
        return choose_value(config, SEARCH, stream, Equipment(index), nothing, dict(kept), kept.update, is_stopping)

    assert stopped_or_found() is None
    assert 0 < len(kept) < 2 * FOLDS
    assemble = dietcl.engine.option_search.assemble
    monkeypatch.setattr(dietcl.engine.option_search, "assemble", lambda *a: made.append(a) or assemble(*a))
    before = len(kept)
    assert stopped_or_found() == whole
    assert len(made) == 2 * FOLDS - before


def test_a_signal_in_a_search_leaves_its_trials(blobs, tmp_path):
    config, folder = searching(blobs, budget="2"), tmp_path / "run"

    def interrupt(t, fraction):
        if t == 0 and fraction > 0.2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="run the same command to resume"):
        execute(config, folder, Execution(device="cpu"), progress=interrupt)
    assert list(json.loads((folder / "search.json").read_text())["trials"]) == ["1, fold 0"]
    execute(config, folder, Execution(device="cpu"))
    execute(config, tmp_path / "whole", Execution(device="cpu"))
    for name in ("search.json", "receipts.json"):
        assert (folder / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_only_a_method_that_declares_it_has_its_option_searched():
    assert requested_search(DietCLOptions(threshold="auto")) == SEARCH
    assert requested_search(DietCLOptions()) is None
    assert requested_search(method_config("fixmatch")) is None  # whose threshold is a probability


@pytest.mark.parametrize("budget", ["90s", "1e12flops"])
def test_a_budget_that_is_not_in_updates_is_refused(blobs, stream, index, budget):
    with pytest.raises(UserError, match="--threshold auto"):
        choose(searching(blobs, budget=budget), stream, index)


def test_too_few_labels_are_refused(blobs, stream, index):
    steps = tuple(replace(step, labeled=step.labeled[:1], labels=step.labels[:1]) for step in stream.steps)
    with pytest.raises(UserError, match="too few labels"):
        choose(searching(blobs), replace(stream, steps=steps), index)


def test_a_class_that_nothing_is_left_to_learn_from_tests_nothing(blobs, stream, index):
    # One label of each class: whoever holds it out cannot have learned it.
    firsts = [np.unique(step.labels, return_index=True)[1] for step in stream.steps]
    steps = tuple(
        replace(step, labeled=step.labeled[first], labels=step.labels[first])
        for step, first in zip(stream.steps, firsts, strict=True)
    )
    lonely = replace(stream, steps=steps)
    for fold in range(FOLDS):
        part = hold_out(lonely, fold)
        assert not any(len(test.rows) for test in part.tests)
        assert [step.labels.tolist() for step in part.steps] == [step.labels.tolist() for step in steps]
    with pytest.raises(UserError, match="too few labels"):
        choose(searching(blobs), lonely, index)
    # A label of the same class in a later time step is enough: what is scored is the last time step.
    again = replace(stream, steps=(steps[0], replace(steps[0], t=2), steps[2]))
    assert sum(len(test.rows) for fold in range(FOLDS) for test in hold_out(again, fold).tests) > 0
