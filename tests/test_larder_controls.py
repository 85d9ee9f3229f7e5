"""The controls of Larder and DietCL: each differs from its method in one part, and only the oracle is told labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.checked_options import plain_values
from dietcl.engine.loop import advance, learn
from dietcl.errors import UserError
from dietcl.methods import METHODS, larder, method_config
from dietcl.methods.base import Part
from dietcl.methods.dietcl import DietCL
from dietcl.methods.pieces.guessing import Guesser
from dietcl.process_pool import attempt, in_processes
from dietcl.streams.assign_steps import TRAIN, assign_steps
from dietcl.streams.index import open_manifest
from dietcl.streams.normalize import normalize
from dietcl.streams.stream import reveal
from helpers.larder_runs import configured, truth_of
from helpers.recording import equal, hand_over, paid, run_through, segments, updates_of, weights
from helpers.scored_study import RuledStudy
from helpers.tiny import tiny_config, tiny_learner
from reproduction import larder_suites as ls
from reproduction.controls import (
    CONTROLS,
    Certainty,
    OwnWord,
    RidgeAlone,
    SpreadAlone,
    UncorrectedGuesses,
    known_controls,
)
from reproduction.oracle import ORACLE, LarderOracle, telling_oracle
from reproduction.run_cache import Cell, RunCache, run_cells
from reproduction.tried import TRIED

EVERY = [*CONTROLS, *TRIED]
TOLD_NOTHING = [name for name in EVERY if name != ORACLE]


@pytest.fixture(autouse=True)
def controls():
    """Let this test know the controls, as nobody else does."""
    assert not METHODS.keys() & {*EVERY}
    with known_controls():
        yield
    assert not METHODS.keys() & {*EVERY}


def config_of(blobs, method, **options):
    threshold = {"threshold": "4"} if method.startswith("dietcl") else {}
    return configured(blobs, method=method, **threshold | options)


def learner_of(blobs, method, **options):
    config = config_of(blobs, method, **options)
    with telling_oracle(config):
        return tiny_learner(config)


def scores_of(learner):
    """Return what the method and what the network itself answers on the test images."""
    images = normalize(learner.loader.read(learner.stream.tests[0].rows))
    with learner.ledger.free(), torch.no_grad():
        return learner.method.predict(learner.net, images), learner.net.scores(images, "test")


# The suite.


def test_the_suite_has_every_control_at_the_rates_of_its_method(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 10 * cell.config.training.lr if "peak" not in cell.key else 0.5)
    (point,) = ls.LARDER_SUITES["larder-parts"].points
    cells = {arm.title: study.cell(arm, point, 20) for arm in ls.LARDER_PARTS}
    assert {cell.config.method for cell in cells.values()} == {"larder", "dietcl", *CONTROLS}
    assert len({cell.hash for cell in cells.values()}) == len({cell.key for cell in cells.values()}) == len(cells)
    assert {cell.key.partition(" as ")[2].partition("/")[0] for cell in cells.values()} == {"larder", "dietcl"}
    assert {arm.rates_of for arm in ls.LARDER_CONTROLS} == {"larder"}
    assert cells["Larder without guesses"].config.method_config.guessed == 0
    whole = cells["DietCL"].config.method_config
    assert cells["DietCL, averaged"].config.method_config == whole
    assert cells["DietCL, unbroken"].config.method_config == replace(whole, restart=False)
    assert cells["Larder, guesses of FixMatch"].config.method_config == method_config("fixmatch")


@pytest.mark.parametrize("name", TOLD_NOTHING)
def test_permuting_hidden_labels_changes_nothing(blobs, name):
    config, index = config_of(blobs, name), open_manifest(blobs)
    assignment = assign_steps(index, config.recipe, config.seed)
    hidden = np.flatnonzero((index.split == TRAIN) & ~assignment.labeled)
    label = index.label.copy()
    label[hidden] = np.random.default_rng(5).permutation(label[hidden])
    one, other = (
        run_through(tiny_learner(config, reveal("s", i, config.recipe, config.seed, assignment), i))
        for i in (index, replace(index, label=label))
    )
    assert equal(one.method.state(), other.method.state())
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()


@pytest.mark.parametrize("name", EVERY)
def test_a_run_handed_over_at_every_moment_ends_with_the_same_bits(blobs, tmp_path, name):
    whole, learner, number = run_through(learner_of(blobs, name, budget="5")), learner_of(blobs, name, budget="5"), 0
    while next(advance(learner), None):
        resumed, number = learner_of(blobs, name, budget="5"), number + 1
        hand_over(learner, resumed, tmp_path / str(number))
        learner = resumed
    assert equal(weights(learner), weights(whole))
    assert equal(learner.method.state(), whole.method.state())
    assert learner.ledger.receipts() == whole.ledger.receipts()


# What is learned of a guess.


def test_hard_guesses_are_labels(blobs):
    learner = learner_of(blobs, "larder_hard")
    losses, seen = learner.method.losses, []

    def watched(net, phase, batch):
        (term,) = losses(net, phase, batch)
        with learner.ledger.free(), torch.no_grad():
            seen.append((batch.larder, term.value.item(), batch.cross_entropy(net.logits(*batch.supervised)).item()))
        return [term]

    learner.method.losses = watched
    next(learn(learner))
    held = learner.method.larder
    guessed = dict(zip(held.rows.tolist(), held.labels.tolist(), strict=True))
    assert len(seen) > 1
    for part, found, wanted in seen:
        assert part.labels.tolist() == [guessed[row] for row in part.rows.tolist()]
        assert found == pytest.approx(wanted, abs=1e-6)


def uncorrected(trust):
    held = UncorrectedGuesses()
    held.add(torch.tensor([7, 5, 6]), torch.tensor([1, 0, 1]), torch.tensor(trust), torch.tensor([0, 1]))
    return held


def part_of(smoothing=0.1):
    labels = torch.tensor([0, 1, 1])
    mixed = {"partners": labels.flip(0), "weight": torch.full((3,), 0.7), "smoothing": smoothing}
    return Part("larder", torch.zeros(3, 1), labels=labels, rows=torch.tensor([5, 6, 7]), **mixed)


def test_guesses_that_are_not_corrected_have_beliefs_for_targets_whatever_the_network_answers():
    held, part = uncorrected([0.5, 0.8, 0.2]), part_of(smoothing=0.0)
    logits = torch.tensor([[0.3, -1.0, 2.0], [5.0, 0.0, 0.0], [0.0, 1.0, -4.0]], requires_grad=True)
    held.cross_entropy(part, logits).backward()
    # Trust for the one guessed, and half of the rest for each of the two possible ones.
    beliefs = torch.tensor([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0], [0.25, 0.75, 0.0]])
    wanted = logits.softmax(1) - (0.7 * beliefs + 0.3 * beliefs.flip(0))
    torch.testing.assert_close(3 * logits.grad, wanted.detach())


def test_guesses_that_are_sure_are_labels_if_they_are_not_corrected(blobs):
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    part = part_of()
    torch.testing.assert_close(uncorrected([1.0, 1.0, 1.0]).cross_entropy(part, logits), part.cross_entropy(logits))
    assert isinstance(learner_of(blobs, "larder_uncorrected").method.larder, UncorrectedGuesses)


# How labels are guessed.


def test_a_guesser_alone_answers_as_it_does_beside_the_other():
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(40) < 8, torch.arange(40) % 4, -1)
    both = Guesser(features).shares(labels, 4)
    assert not torch.equal(*both)
    for kind, wanted in zip((SpreadAlone, RidgeAlone), both, strict=True):
        for found in kind(features).shares(labels, 4):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["larder_spread", "larder_ridge"])
def test_only_one_guesser_is_asked(blobs, monkeypatch, name):
    kind, asked = CONTROLS[name].guesser, []
    shares = kind.shares
    monkeypatch.setattr(kind, "shares", lambda *given: asked.append(kind) or shares(*given))
    monkeypatch.setattr(Guesser, "shares", None)
    learner = run_through(learner_of(blobs, name))
    assert len(learner.method.larder) > 0
    assert len(asked) > 3
    assert larder.Guesser is Guesser


def test_without_labels_that_tell_a_guesser_alone_is_right_as_often_as_it_is_confident():
    confidence = torch.tensor([0.3, 0.5, 0.9], dtype=torch.float64)
    assert OwnWord().chance_of_right(confidence, 0.99).tolist() == pytest.approx(confidence.tolist(), abs=1e-6)


# What is remembered.


def test_every_guess_is_remembered_and_trusted_alike(blobs):
    learner = learner_of(blobs, "larder_alike")
    for t in learn(learner):
        held = learner.method.larder
        assert len(held) == 32 * t  # all that arrive
        assert set(held.trust.tolist()) == {1.0}
    assert Certainty().chance_of_right(torch.tensor([0.1]), 0.2).tolist() == [1.0]


def test_guesses_of_earlier_time_steps_are_forgotten(blobs):
    learner, whole = learner_of(blobs, "larder_forgetful"), learner_of(blobs, "larder")
    for t, _ in zip(learn(learner), learn(whole), strict=True):
        held = learner.method.larder
        assert len(held) > 0
        assert set(held.rows.tolist()) <= set(learner.stream.step(t).unlabeled.tolist())
        assert equal(weights(learner), weights(whole)) == (t == 1)
    assert len(whole.method.larder) > len(held)


# Under which weights it answers.


def test_without_averages_larder_learns_the_same_and_answers_otherwise(blobs):
    learner, whole = (run_through(learner_of(blobs, name)) for name in ("larder_last_weights", "larder"))
    assert equal(weights(learner), weights(whole))
    assert equal(learner.method.state(), whole.method.state())
    found, own = scores_of(learner)
    assert torch.equal(found, own)
    assert not torch.equal(found, scores_of(whole)[0])
    assert learner.method.predict_weights() is None


def test_dietcl_with_averages_learns_the_same_and_answers_otherwise(blobs):
    learner, whole = (run_through(learner_of(blobs, name)) for name in ("dietcl_averaged", "dietcl"))
    assert equal(weights(learner), weights(whole))
    assert learner.ledger.receipts() == whole.ledger.receipts()
    found, own = scores_of(learner)
    assert torch.equal(own, scores_of(whole)[0])
    assert not torch.equal(found, own)
    values = learner.method.predict_weights()
    assert values.keys() == learner.net.copy().keys()
    assert learner.method.predict_state() == {}


# FixMatch's guesses.


def test_without_unlabeled_images_fixmatch_s_guesses_leave_larder_without_guesses(blobs):
    one = run_through(learner_of(blobs, "larder_fixmatch", unlabeled=0.0))
    other = run_through(learner_of(blobs, "larder", guessed=0.0))
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()
    assert torch.equal(scores_of(one)[0], scores_of(other)[0])


def test_fixmatch_s_guesses_cost_what_they_cost_in_fixmatch_and_are_not_remembered(blobs):
    learner, own = (run_through(learner_of(blobs, name)) for name in ("larder_fixmatch", "fixmatch"))
    for found, wanted in zip(learner.ledger.closed, own.ledger.closed, strict=True):
        assert found.spent == pytest.approx(wanted.spent)
        for key in (("guess", "forward"), ("unlabeled", "train")):
            assert paid(found)[key] == paid(wanted)[key]
        images = paid(found)["memory", "train"].images
        assert images == 2 * paid(found)["unlabeled", "train"].images
    assert len(learner.method.remembered().rows) == 0


# The oracle.


def test_the_oracle_holds_what_larder_holds_with_true_labels(blobs):
    learner, whole = learner_of(blobs, ORACLE, rate=0.1), learner_of(blobs, "larder", rate=0.1)
    next(learn(whole))
    for t in learn(learner):
        held = learner.method.larder
        assert held.labels.tolist() == truth_of(learner, held.rows.numpy()).tolist()
        assert set(held.trust.tolist()) == {1.0}
        if t == 1:
            assert held.rows.tolist() == whole.method.larder.rows.tolist()
    guessed = whole.method.larder
    assert guessed.labels.tolist() != truth_of(whole, guessed.rows.numpy()).tolist()  # else it would show nothing


def test_the_oracle_leaves_out_images_whose_class_has_no_label(blobs):
    held = learner_of(blobs, ORACLE).method.larder
    rows = torch.arange(len(held._truth))
    held.add(rows, torch.zeros_like(rows), torch.full((len(rows),), 0.5), torch.tensor([1, 3]))
    assert set(held.labels.tolist()) == {1, 3}
    assert len(held) == int(((held._truth == 1) | (held._truth == 3)).sum())


def test_nobody_is_told_labels_but_the_oracle_and_only_for_its_run(blobs):
    with telling_oracle(config_of(blobs, "larder")):
        assert LarderOracle.truth is None
    config = config_of(blobs, ORACLE)
    with telling_oracle(config):
        assert len(LarderOracle.truth) == len(open_manifest(blobs))
    assert LarderOracle.truth is None
    with pytest.raises(UserError), telling_oracle(config):
        raise UserError("stopped")
    assert LarderOracle.truth is None
    with pytest.raises(RuntimeError, match="telling_oracle"):
        tiny_learner(config)


# DietCL under one cosine.


def cosine(fraction):
    """The rate written out for a peak of 1e-3 and a floor of 1e-4."""
    return 1e-4 + 9e-4 * (1 + math.cos(math.pi * fraction)) / 2


@pytest.mark.parametrize("threshold", ["6", "60%"])
def test_unbroken_dietcl_has_one_cosine_and_one_optimizer(blobs, threshold):
    learner = learner_of(blobs, "dietcl", budget="10", threshold=threshold, restart=False)
    after, seen = learner.method.after_update, []

    def watched(net, phase):
        seen.append((learner.position.finished, phase.name, next(iter(learner.optimizers.values()))))
        after(net, phase)

    learner.method.after_update = watched
    events = updates_of(learner)
    for t in (1, 2, 3):
        rates = [event["lr"] for event in events if event["t"] == t]
        assert rates == pytest.approx([cosine(k / 10) for k in range(10)])
        names = [name for finished, name, _ in seen if finished == t - 1]
        assert names == (["joint"] * 10 if t == 1 else ["joint"] * 6 + ["balance"] * 4)
        assert len({id(optimizer) for finished, _, optimizer in seen if finished == t - 1}) == 1


def test_phases_of_unbroken_dietcl_meet_where_the_first_one_ends(blobs):
    step = learner_of(blobs, "dietcl").stream.steps[1]
    for threshold, remaining, place in (("300", 500.0, 0.6), ("80%", 500.0, 0.8), ("80%", math.inf, 0.8), ("9", 3, 1)):
        method = DietCL(DietCL.Config(threshold=threshold, restart=False))
        joint = method.next_phase(step, (), remaining)
        balance = method.next_phase(step, (joint,), remaining / 5)
        assert (joint.schedule, balance.schedule) == ((0.0, pytest.approx(place)), (pytest.approx(place), 1.0))
        assert joint.lr_scale == balance.lr_scale == 1
        assert method.next_phase(step, (joint, balance), 0.0) is None


def test_dietcl_starts_anew_unless_it_is_told_otherwise(blobs):
    learner = learner_of(blobs, "dietcl")
    joint, balance = segments(learner.method, learner.stream.steps[1])
    assert joint.schedule == balance.schedule == (0.0, 1.0)
    assert balance.lr_scale == 0.1
    assert "restart" not in plain_values(method_config("dietcl"))
    assert plain_values(method_config("dietcl:unbroken")) == {**plain_values(method_config("dietcl")), "restart": False}
    assert tiny_config(blobs, "dietcl").hash() != tiny_config(blobs, "dietcl", restart=False).hash()


# Cells.


def one_by_one(work, items, progress):
    """Carry runs out in this process."""
    for number, item in enumerate(items):
        yield attempt(work, item, number, lambda done, number=number: progress(number, done))


def in_a_process(work, items, progress):
    """Carry runs out in another process, which knows only what it imports."""
    return in_processes(work, items, 1, progress)


@pytest.mark.parametrize("pool", [one_by_one, pytest.param(in_a_process, marks=pytest.mark.long)])
def test_cells_of_controls_are_carried_out_and_the_oracle_is_right(blobs, tmp_path, pool):
    names = ("larder_hard", ORACLE)
    cells = [Cell(name, replace(config_of(blobs, name, rate=0.1), first_time_steps=2), name) for name in names]
    store = RunCache(tmp_path / "cells.jsonl")
    run_cells(cells, store, tmp_path / "scratch", pool, lambda *told: None)
    hard, true = (store.result(cell).facts["guesses"] for cell in cells)
    assert all(right == total > 0 for total, right in true)
    assert any(right < total for total, right in hard)
    assert LarderOracle.truth is None
