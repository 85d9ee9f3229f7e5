"""Larder on a frozen encoder: guesses and solves only."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods import larder as larder_method
from dietcl.methods.pieces import solved_head
from dietcl.streams.normalize import normalize
from helpers.larder_runs import AGAIN, FROZEN, configured, learner_of
from helpers.recording import equal, paid, run_through, updates_of, weights
from helpers.tiny import tiny_learner


def accuracy(learner):
    return learner.counts.correct[-1].sum() / learner.counts.count[-1].sum()


def test_a_frozen_run_makes_no_updates_and_changes_no_weight_of_the_encoder(blobs):
    learner = learner_of(blobs, FROZEN)
    before = weights(learner)
    assert updates_of(learner) == []
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))


def test_a_frozen_run_keeps_the_features_of_all_labels(blobs):
    learner = run_through(learner_of(blobs, FROZEN))
    store = learner.method.solved.labeled
    labels = {row: label for s in learner.stream.steps for row, label in zip(s.labeled, s.labels, strict=True)}
    assert dict(zip(store.rows.tolist(), store.labels.tolist(), strict=True)) == labels
    with learner.ledger.free(), torch.no_grad():
        features = learner.net.features(normalize(learner.loader.read(store.rows.numpy())), "test")
    torch.testing.assert_close(store.values, features, rtol=1e-2, atol=1e-2)  # kept in half precision


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_few_labels_a_frozen_run_tells_more_than_labels_alone(blobs, seed):
    larder, alone, probe = (
        run_through(learner_of(blobs, FROZEN, rate=0.1, seed=seed, **options))
        for options in ({}, {"guessed": 0.0}, {"method": "linear_probe"})
    )
    assert larder.method.solved.guess_weight > 0
    assert accuracy(larder) > max(accuracy(alone), accuracy(probe)) + 0.05


def test_without_guesses_a_frozen_run_is_solved_from_the_labels_alone(blobs):
    learner = run_through(learner_of(blobs, FROZEN, guessed=0.0))
    solved = learner.method.solved
    assert not solved.guessed.gram.any()
    before = solved.weight
    solved.solve(6)
    assert torch.equal(solved.weight, before)
    assert {key for receipt in learner.ledger.closed for key in paid(receipt) if key[1] != "read"} == {
        ("labels", "forward"),
        ("solve", "solve"),
    }


def test_a_solve_that_does_not_fit_leaves_the_former_solution_and_is_made_up_for(blobs):
    learner, whole = (learner_of(blobs, FROZEN) for _ in range(2))
    run_through(whole)
    pay = learner.net.pay
    learner.net.pay = lambda purpose, flops: (purpose, learner.ledger._t) != ("solve", 2) and pay(purpose, flops)
    images = normalize(learner.loader.read(learner.stream.tests[1].rows))
    for t in learn(learner):
        with learner.ledger.free(), torch.no_grad():
            scores = learner.method.predict(learner.net, images)
        assert scores.shape == (len(images), 2 * t)
        if t == 2:
            assert set(scores.argmax(1).tolist()) <= {0, 1}
    assert equal(learner.method.state(), whole.method.state())


def test_a_time_step_without_labels_changes_nothing_in_the_head(blobs):
    learner = learner_of(blobs, FROZEN, rate=0.1)
    steps = learner.stream.steps
    nothing = np.zeros(0, np.int64)
    last = replace(steps[2], labeled=nothing, labels=nothing, seen_classes=4, new_classes=())
    learner.stream = replace(learner.stream, steps=(*steps[:2], last))
    found = {}
    for t in learn(learner):
        solved = learner.method.solved
        found[t] = (solved.weight, solved.bias, solved.guess_weight)
    assert found[2][2] > 0
    assert found[3] is not found[2]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(found[2], found[3], strict=True))


def test_a_head_that_cannot_be_solved_with_guesses_is_solved_from_labels(blobs):
    learner = learner_of(blobs, FROZEN, rate=0.1)
    pay, full = learner.net.pay, learner.method.solved.flops
    dear = {"solve": 0.0}
    learner.net.pay = lambda purpose, flops: flops != dear.get(purpose) and pay(purpose, flops)
    for t in learn(learner):
        solved = learner.method.solved
        if t == 1:
            assert solved.guess_weight > 0
            labels = len(learner.stream.steps[0].labeled) + len(learner.stream.steps[1].labeled)
            dear["solve"] = full(labels, 4)
        if t == 2:
            assert solved.guess_weight == 0
            assert solved.weight.shape == (96, 4)
    assert solved.guess_weight > 0


def test_new_labels_are_in_the_head_though_guesses_did_not_help_and_no_class_is_new(blobs, monkeypatch):
    monkeypatch.setattr(solved_head, "WEIGHTS", (0.0,))
    monkeypatch.setattr(larder_method, "trust", lambda chance, classes: torch.ones_like(chance))
    learner = learner_of(blobs, FROZEN, AGAIN, rate=0.3)
    pay, solved, steps = learner.net.pay, learner.method.solved, learner.stream.steps
    dear = []
    learner.net.pay = lambda purpose, flops: flops not in dear and pay(purpose, flops)
    for t in learn(learner):
        labels = sum(len(step.labeled) for step in steps[:t])
        assert (solved.solved_labels, len(solved.labeled)) == (labels, labels)
        assert solved.has_guesses
        dear.append(solved.flops(labels + len(steps[min(t, 2)].labeled), 6))  # the next solve with guesses


def odd_stream(blobs, labels, unlabeled):
    """Return the stream with a first time step of so many labels and other images."""
    stream = learner_of(blobs, FROZEN).stream
    first = stream.steps[0]
    seen = len(set(first.labels[:labels]))
    assert seen == labels <= 1
    first = replace(
        first,
        labeled=first.labeled[:labels],
        labels=first.labels[:labels] * 0,
        unlabeled=first.unlabeled[:unlabeled],
        seen_classes=seen,
        new_classes=first.new_classes[:seen],
    )
    return replace(stream, steps=(first, *stream.steps[1:]))


@pytest.mark.parametrize(
    ("labels", "unlabeled"),
    [
        (1, 5),
        pytest.param(1, 0),
        pytest.param(0, 5),
        pytest.param(0, 0),
    ],
)
def test_a_frozen_run_may_begin_with_hardly_any_label(blobs, labels, unlabeled):
    learner = tiny_learner(configured(blobs, FROZEN), odd_stream(blobs, labels, unlabeled))
    run_through(learner)
    assert learner.method.solved.weight.shape == (96, 6)
