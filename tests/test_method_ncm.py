"""Nearest class mean: prototypes by hand, in any order, and one cheap look at every label."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from dietcl.methods.base import Sweep
from helpers.fixed_batch import fixed_learner, part
from helpers.recording import run_through, take_in, weights
from helpers.reference_losses import plain_encoder
from helpers.tiny import tiny_config, tiny_learner

SWEEP = Sweep(name="means", pool="labeled")


def gathered(blobs, *parts):
    learner = fixed_learner(blobs, "ncm")
    learner.method.begin_step(learner.net, learner.stream.steps[1])
    for each in parts:
        take_in(learner, SWEEP, each)
    return learner


def plain_features(learner, images):
    return plain_encoder(images, learner.network.state_dict())[:, 1:].mean(1)


def test_scores_are_ten_times_the_cosine_with_the_mean_of_every_class(blobs):
    one, two = part("labeled", [1, 3, 3, 4], 1), part("labeled", [0, 2, 4, 1, 1], 2)
    learner = gathered(blobs, one, two)
    query = part("labeled", [0, 0, 0], 3).images
    scores = learner.method.predict(learner.net, query)
    features = torch.cat([plain_features(learner, p.images) for p in (one, two)])
    labels = [1, 3, 3, 4, 0, 2, 4, 1, 1]
    for i, seen in enumerate(plain_features(learner, query)):
        for c in range(5):
            own = [features[j] for j in range(9) if labels[j] == c]
            mean = sum(own) / len(own)
            cosine = (seen * mean).sum() / (seen * seen).sum().sqrt() / (mean * mean).sum().sqrt()
            assert scores[i, c].item() == pytest.approx(10 * cosine.item(), abs=1e-6)


def test_two_images_by_hand(blobs):
    learner = gathered(blobs)
    features = {"a": [3.0, 4.0], "b": [5.0, 0.0], "query": [1.0, 0.0]}

    def feature(name):
        return torch.tensor([features[name] + [0.0] * 94], dtype=torch.float64)

    learner.net.features = lambda images, purpose: torch.cat([feature(name) for name in images])
    take_in(learner, SWEEP, replace(part("labeled", [2, 2], 1), images=["a", "b"]))
    # The mean is (4, 2), so the cosine with (1, 0) is 4 / √20.
    scores = learner.method.predict(learner.net, ["query"])
    assert scores[0].tolist() == pytest.approx([-10, -10, 10 * 4 / 20**0.5, -10, -10])


def test_the_order_of_time_steps_does_not_matter(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    prototypes = []
    for order in permutations(stream.steps):
        steps = tuple(replace(step, t=t, seen_classes=6) for t, step in enumerate(order, start=1))
        method = run_through(tiny_learner(tiny_config(blobs, "ncm"), replace(stream, steps=steps))).method
        prototypes.append(method.sums / method.counts[:, None])
    for other in prototypes[1:]:
        torch.testing.assert_close(other, prototypes[0], rtol=1e-6, atol=1e-6)


def test_every_label_is_looked_at_once_for_a_third_of_a_pass(blobs):
    learner = tiny_learner(tiny_config(blobs, "ncm", budget="3"))
    before = weights(learner)
    run_through(learner)
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        (item,) = [item for item in receipt.items if item.purpose != "evaluation"]
        assert (item.purpose, item.operation, item.images) == ("features", "forward", len(step.labeled))
        assert receipt.spent == pytest.approx(len(step.labeled) / 3)
    assert learner.method.counts.tolist() == [4.0] * 6
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))


def test_a_small_budget_buys_the_means_of_some_labels(blobs):
    # 0.1 updates of 12 images are 1.2 passes: three labels of a time step.
    learner = run_through(tiny_learner(tiny_config(blobs, "ncm", budget="0.1")))
    assert learner.method.counts.sum() == 9
    assert all(receipt.spent == pytest.approx(1) for receipt in learner.ledger.closed)


def test_a_class_without_a_label_yet_is_never_preferred(blobs):
    learner = gathered(blobs, part("labeled", [1, 3, 3, 4], 1))
    scores = learner.method.predict(learner.net, part("labeled", [0, 0, 0], 3).images)
    assert (scores[:, [0, 2]] == -10).all()
    assert set(scores.argmax(1).tolist()) <= {1, 3, 4}
    assert gathered(blobs).method.predict(learner.net, torch.zeros(2, 3, 16, 16)).tolist() == [[-10] * 5] * 2
