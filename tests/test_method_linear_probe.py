"""The linear probe: a head solved from stored features, or learned on features that carry no gradient."""

from collections import Counter
from dataclasses import replace
from math import floor

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods.pieces.ridge import PENALTIES, solve_flops
from dietcl.models.flops import cost_model
from dietcl.streams.normalize import normalize
from helpers.fixed_batch import compare, fixed_batch, fixed_learner
from helpers.recording import equal, run_through, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_encoder
from helpers.tiny import MODEL, tiny_config, tiny_learner


def double_learner(config):
    learner = tiny_learner(config)
    learner.network.double()
    return learner


def plain_features(learner, rows):
    images = normalize(learner.loader.read(rows)).double()
    return plain_encoder(images, learner.network.state_dict())[:, 1:].mean(1).detach().numpy()


def plain_probe(x, y, scale):
    """Return a function of features: scaled ridge at the penalty that predicts each label from all others."""
    mean, spread = x.mean(0), x.std(0) + 1e-6
    if scale == "half":
        spread = np.sqrt(x.var(0) + x.var(0).mean())

    def table(features):
        return np.hstack([(features - mean) / spread, np.ones((len(features), 1))])

    def solve(rows, penalty):
        a = table(x)[rows]
        return np.linalg.solve(a.T @ a + penalty * np.eye(a.shape[1]), a.T @ y[rows])

    def error(penalty):
        total = 0.0
        for i in range(len(x)):
            others = np.arange(len(x)) != i
            total += ((table(x[i : i + 1])[0] @ solve(others, penalty) - y[i]) ** 2).sum()
        return total

    best = solve(np.ones(len(x), bool), min(PENALTIES, key=error))
    return lambda features: table(features) @ best


@pytest.mark.parametrize("scale", ["each", "half"])
def test_the_head_is_the_ridge_solution_of_all_labels_so_far(blobs, scale):
    learner = double_learner(tiny_config(blobs, "linear_probe", scale=scale))
    tests = np.concatenate([test.rows for test in learner.stream.tests])
    for t in learn(learner):
        steps = learner.stream.steps[:t]
        labels = np.concatenate([step.labels for step in steps])
        x = plain_features(learner, np.concatenate([step.labeled for step in steps]))
        wanted = plain_probe(x, np.eye(2 * t)[labels], scale)(plain_features(learner, tests))
        with learner.ledger.free(), torch.no_grad():
            scores = learner.method.predict(learner.net, normalize(learner.loader.read(tests)))
        np.testing.assert_allclose(scores, wanted, atol=1e-6)


def test_the_order_of_time_steps_does_not_matter_in_the_end(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    solutions = []
    for order in (stream.steps, stream.steps[::-1]):
        steps = tuple(replace(step, t=t, seen_classes=6) for t, step in enumerate(order, start=1))
        learner = tiny_learner(tiny_config(blobs, "linear_probe"), replace(stream, steps=steps))
        learner.network.double()
        solutions.append(run_through(learner).method)
    torch.testing.assert_close(solutions[0].weight, solutions[1].weight, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(solutions[0].bias, solutions[1].bias, rtol=1e-6, atol=1e-8)


def test_ridge_pays_a_third_for_every_label_and_the_solve(blobs):
    learner = tiny_learner(tiny_config(blobs, "linear_probe", budget="9"))
    before = weights(learner)
    run_through(learner)
    labels = 0
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        labels += len(step.labeled)
        items = {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}
        assert items.keys() == {("features", "forward"), ("solve", "solve")}
        assert items["features", "forward"].images == len(step.labeled)
        assert items["features", "forward"].passes == pytest.approx(len(step.labeled) / 3)
        assert items["solve", "solve"].flops == solve_flops(labels, 96, step.seen_classes)
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))


def test_a_solve_that_does_not_fit_leaves_the_former_solution_and_is_made_up_for(blobs):
    learner, whole = (tiny_learner(tiny_config(blobs, "linear_probe", budget="9")) for _ in range(2))
    run_through(whole)
    pay, method = learner.net.pay, learner.method
    learner.net.pay = lambda purpose, flops: learner.ledger._t != 2 and pay(purpose, flops)
    images = normalize(learner.loader.read(learner.stream.tests[1].rows))
    fitted = []
    for t in learn(learner):
        fitted.append(method.fitted)
        with learner.ledger.free(), torch.no_grad():
            scores = method.predict(learner.net, images)
        assert scores.shape == (len(images), 2 * t)
        assert scores.isfinite().all()
        if t == 2:  # of the four classes the solution knows two
            assert set(scores.argmax(1).tolist()) <= {0, 1}
    assert fitted == [8, 8, 24]
    assert equal(method.state(), whole.method.state())


def test_before_anything_is_solved_all_classes_are_equal(blobs):
    learner = run_through(tiny_learner(tiny_config(blobs, "linear_probe", budget="0.02")))  # a quarter of a pass
    assert [receipt.spent for receipt in learner.ledger.closed] == [0, 0, 0]
    with learner.ledger.free():
        assert learner.method.predict(learner.net, torch.zeros(2, 3, 16, 16)).tolist() == [[0] * 6] * 2


def test_the_loss_of_sgd_reaches_the_head_alone(blobs):
    learner = fixed_learner(blobs, "linear_probe", head="sgd")
    batch = fixed_batch(labeled=None, unlabeled=None)

    def head(weights):
        features = plain_encoder(batch.memory.images, weights)[:, 1:].mean(1).detach()
        return plain_cross_entropy(features @ weights["head.weight"].T + weights["head.bias"], batch.memory)

    compare(learner, batch, {"head": (1.0, head)}, phase="head")
    moved = {name for name, value in learner.network.named_parameters() if value.grad is not None}
    assert moved == {"head.weight", "head.bias"}


def test_sgd_leaves_every_bit_of_the_encoder_alone_and_pays_a_third_and_the_head(blobs):
    learner = tiny_learner(tiny_config(blobs, "linear_probe", budget="3", head="sgd"))
    before = weights(learner)
    made = Counter(event["t"] for event in updates_of(learner))
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))
    cost = cost_model(MODEL)
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        price = 1 / 3 + cost.head_train(step.seen_classes) / cost.pass_flops(step.seen_classes)
        assert made[step.t] == floor(36 / (12 * price))
        items = {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}
        assert items.keys() == {("features", "forward"), ("head", "head_train")}
        assert items["features", "forward"].images == items["head", "head_train"].images == 12 * made[step.t]
        assert receipt.spent == pytest.approx(12 * made[step.t] * price)
    assert learner.method.state() == {}
    with learner.ledger.free(), torch.no_grad():
        images = torch.zeros(2, 3, 16, 16)
        assert torch.equal(learner.method.predict(learner.net, images), learner.net.scores(images))
