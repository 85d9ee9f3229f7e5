"""Neighbors' votes: nothing stored is forgotten, and a look at every label is all that is paid."""

import numpy as np
import pytest
import torch

from dietcl.methods.base import Sweep
from dietcl.streams.normalize import normalize
from helpers.fixed_batch import fixed_learner, part
from helpers.recording import run_through, take_in, weights
from helpers.reference_losses import plain_encoder
from helpers.tiny import tiny_config, tiny_learner


def test_one_neighbor_recalls_every_label_of_the_stream(blobs):
    learner = run_through(tiny_learner(tiny_config(blobs, "acm", neighbors=1)))
    rows = np.concatenate([step.labeled for step in learner.stream.steps])
    with learner.ledger.free(), torch.no_grad():
        scores = learner.method.predict(learner.net, normalize(learner.loader.read(rows)))
    assert (scores.argmax(1).numpy() == np.concatenate([step.labels for step in learner.stream.steps])).all()


@pytest.mark.parametrize("neighbors", [1, 2, 3])
def test_predictions_equal_a_plain_vote(blobs, neighbors):
    learner = fixed_learner(blobs, "acm", neighbors=neighbors)
    parts = [part("labeled", [1, 3, 3, 4], 1), part("labeled", [0, 2, 4, 1, 1], 2)]
    for each in parts:
        take_in(learner, Sweep(name="features", pool="labeled"), each)
    labels = [label for each in parts for label in each.labels.tolist()]
    query = part("labeled", [0] * 8, 3).images

    def features(images):
        rows = plain_encoder(images, learner.network.state_dict())[:, 1:].mean(1).detach()
        return [row / (row * row).sum().sqrt() for row in rows]

    stored = [row for each in parts for row in features(each.images)]
    scores = learner.method.predict(learner.net, query)
    for own, seen in zip(scores, features(query), strict=True):
        order = sorted(range(9), key=lambda i: -float((seen * stored[i]).sum()))
        near = [labels[i] for i in order[:neighbors]]
        most = max(near.count(label) for label in near)
        assert int(own.argmax()) == next(label for label in near if near.count(label) == most)
        # A fifth of a vote for each of five classes beforehand; ranks count a thousandth.
        shares = [(near.count(c) + 1 / 5) / (neighbors + 1) for c in range(5)]
        assert own.exp().tolist() == pytest.approx(shares, abs=2e-3)


def test_every_label_is_looked_at_once_for_a_third_of_a_pass(blobs):
    learner = tiny_learner(tiny_config(blobs, "acm", budget="3"))
    before = weights(learner)
    run_through(learner)
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        (item,) = [item for item in receipt.items if item.purpose != "evaluation"]
        assert (item.purpose, item.operation, item.images) == ("features", "forward", len(step.labeled))
        assert receipt.spent == pytest.approx(len(step.labeled) / 3)
    stored = sorted(learner.method.store.rows.tolist())
    assert stored == sorted(np.concatenate([step.labeled for step in learner.stream.steps]))
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))
