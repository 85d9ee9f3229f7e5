"""Budgets are spent to the last update that fits, in every unit, and what is left is reported."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods import METHODS
from dietcl.methods.base import Method, Phase, Term
from dietcl.models.flops import cost_model
from dietcl.streams.sampler import Mix
from helpers.recording import run_through, updates_of, weights
from helpers.tiny import MODEL, tiny_config, tiny_learner

PLAIN = ("dietcl", "er", "er_ace", "gdumb", "one_stage", "two_stage", "naive")  # a pass an image, and nothing else


@pytest.mark.parametrize("method", PLAIN)
def test_a_budget_in_updates_buys_exactly_so_many(blobs, method):
    learner = tiny_learner(tiny_config(blobs, method, budget="5"))
    per_step = Counter(event["t"] for event in updates_of(learner))
    assert per_step == {1: 5, 2: 5, 3: 5}
    for receipt in learner.ledger.closed:
        assert (receipt.budget, receipt.spent, receipt.unused) == (60, 60, 0)


def test_the_joint_phase_ends_at_the_threshold_and_the_rest_is_memory_at_a_tenth_of_the_rate(blobs):
    learner = tiny_learner(tiny_config(blobs, "dietcl", budget="7", threshold="4.0"))
    events = updates_of(learner)
    assert Counter((event["t"], event["phase"]) for event in events) == {
        (1, "joint"): 7,
        (2, "joint"): 4,
        (2, "balance"): 3,
        (3, "joint"): 4,
        (3, "balance"): 3,
    }
    training = learner.config.training
    for event in events:
        scale = 0.1 if event["phase"] == "balance" else 1.0
        if event["update"] == 0:  # every phase begins its own cosine
            assert event["lr"] == pytest.approx(training.lr * scale)
        assert set(event["loss"]) == ({"memory"} if event["phase"] == "balance" else set(event["loss"]) | {"masked"})


@pytest.mark.parametrize("threshold", ["5", "5.5", "400"])
def test_a_budget_within_the_threshold_has_no_second_phase(blobs, threshold):
    events = updates_of(tiny_learner(tiny_config(blobs, "dietcl", budget="5", threshold=threshold)))
    assert Counter(event["phase"] for event in events) == {"joint": 15}


def test_a_threshold_share_follows_the_budget(blobs):
    events = updates_of(tiny_learner(tiny_config(blobs, "dietcl", budget="5", threshold="80%")))
    assert Counter(e["phase"] for e in events if e["t"] > 1) == {"joint": 8, "balance": 2}


def test_flops_accounting_buys_dietcl_what_its_reconstruction_saves(blobs):
    made = {}
    for method in ("dietcl", "er"):
        config = replace(tiny_config(blobs, method, budget="8"), accounting="flops")
        learner = tiny_learner(config)
        made[method] = Counter(event["t"] for event in updates_of(learner))
        for receipt in learner.ledger.closed:
            assert receipt.spent <= receipt.budget
            assert receipt.spent + receipt.unused == pytest.approx(receipt.budget)
            assert receipt.unused < 12
    assert made["er"] == {1: 8, 2: 8, 3: 8}
    cost = cost_model(MODEL)
    for t, classes in ((1, 2), (2, 4), (3, 6)):
        # A third of the images is reconstructed.
        price = 2 / 3 + 1 / 3 * cost.flops("reconstruct", classes) / cost.pass_flops(classes)
        assert made["dietcl"][t] == math.floor(8 / price)
    assert made["dietcl"][2] > 8


def test_a_flops_budget_is_as_large_as_its_number(blobs):
    passes = 3.5 * 12
    amount = passes * cost_model(MODEL).pass_flops(6)
    learner = tiny_learner(tiny_config(blobs, "er", budget=f"{amount}flops"))
    assert set(Counter(event["t"] for event in updates_of(learner)).values()) == {3}
    assert learner.ledger.closed[2].unused == pytest.approx(6)


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_below_one_update_buys_none_and_leaves_the_weights_alone(blobs, method):
    spans = 3 if method == "joint" else 1
    learner = tiny_learner(tiny_config(blobs, method, budget=str(0.9 / spans)))
    before = weights(learner)
    # CaSSLe's classifier is learned on a frozen encoder, at a third of a pass an image.
    assert [event for event in updates_of(learner) if event["phase"] != "classifier"] == []
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))
    for receipt in learner.ledger.closed:
        if method in PLAIN:  # others may still walk through some labels
            assert receipt.spent == 0
        assert receipt.spent + receipt.unused == pytest.approx(0.9 * 12)
    assert learner.counts.count[-1].sum() > 0


def test_a_budget_in_seconds_buys_updates_until_the_time_is_over(blobs):
    learner = tiny_learner(tiny_config(blobs, "dietcl", budget="0.3s"))
    events = updates_of(learner)
    assert set(Counter(event["t"] for event in events)) == {1, 2, 3}
    rates = [event["lr"] for event in events if event["t"] == 2]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0]
    for receipt in learner.ledger.closed:
        assert receipt.passes > 0
        assert receipt.budget == 0.3
        assert receipt.spent < 3  # the machine may be slow, the clock is real


def test_evaluation_takes_no_seconds_of_the_budget(blobs):
    clock = iter(np.arange(0, 1e6))
    learner = tiny_learner(tiny_config(blobs, "er", budget="30s"))
    learner.ledger.clock = lambda: float(next(clock))
    read = learner.loader.read

    def slow_read(rows):
        if set(rows.tolist()) <= {row for test in learner.stream.tests for row in test.rows.tolist()}:
            for _ in range(1000):
                next(clock)
        return read(rows)

    learner.loader.read = slow_read
    run_through(learner)
    assert all(receipt.spent < 100 for receipt in learner.ledger.closed)


class Greedy(Method):
    """Runs every labeled part twice, so that the first guess of an update's cost is half of the truth."""

    def next_phase(self, step, done, remaining):
        return None if done else Phase(name="greedy", mix=Mix(labeled=1))

    def losses(self, net, phase, batch):
        for name in ("once", "twice"):
            (logits,) = net.logits(batch.labeled)
            yield Term(name, batch.labeled.cross_entropy(logits))


def test_half_an_update_is_paid_but_not_applied(blobs):
    learner = tiny_learner(tiny_config(blobs, budget="1.5"))
    learner.method = Greedy(None)
    before = weights(learner)
    assert updates_of(learner) == []
    assert [receipt.spent for receipt in learner.ledger.closed] == [18, 18, 18]
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))


def test_later_updates_are_not_begun_if_they_cannot_be_finished(blobs):
    learner = tiny_learner(tiny_config(blobs, budget="3"))
    learner.method = Greedy(None)
    assert len(updates_of(learner)) == 3
    assert [(receipt.spent, receipt.unused) for receipt in learner.ledger.closed] == [(24, 12)] * 3


class Idle(Greedy):
    def losses(self, net, phase, batch):
        return iter(())


def test_a_method_that_runs_nothing_is_stopped(blobs):
    learner = tiny_learner(tiny_config(blobs))
    learner.method = Idle(None)
    with pytest.raises(RuntimeError, match="would never end"):
        next(learn(learner))
