"""RanPAC: sums that grow are the solution of all labels at once, whatever the order and whatever a solve costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods.base import Phase, Sweep
from dietcl.methods.pieces.ridge import WIDE_PENALTIES, fit_flops
from dietcl.methods.ranpac import RanPAC
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Mix
from helpers.fixed_batch import compare, fixed_batch, fixed_learner, part
from helpers.recording import equal, run_through, take_in, weights
from helpers.reference_losses import plain_cross_entropy, plain_encoder, plain_logits
from helpers.tiny import tiny_config, tiny_learner

SWEEP = Sweep(name="features", pool="labeled")
PARTS = (([1, 3, 3, 4], 1), ([0, 2, 4, 1, 1], 2), ([0, 0, 2], 4))


def double_learner(blobs, stream=None, **options):
    learner = tiny_learner(tiny_config(blobs, "ranpac", budget="4", **options), stream)
    learner.network.double()
    learner.method.projection.double()
    return learner


def plain_rows(learner, images):
    """Return random features, one image after the other."""
    features = plain_encoder(images.double(), learner.network.state_dict())[:, 1:].mean(1).detach().numpy()
    weight = learner.method.projection[0].weight.numpy()
    return np.array([[max(0.0, float(w @ f)) for w in weight] for f in features])


def plain_ridge(rows, labels, classes, penalty):
    gram, cross = np.zeros((rows.shape[1], rows.shape[1])), np.zeros((rows.shape[1], classes))
    for row, label in zip(rows, labels, strict=True):
        gram += np.outer(row, row)
        cross[:, label] += row
    return gram, cross, np.linalg.solve(gram + penalty * np.eye(len(gram)), cross)


# The solution.


@pytest.mark.parametrize("random_features", [3, 6, 10, 40])
def test_what_is_learned_in_turn_is_the_ridge_solution_of_all_labels_at_once(blobs, random_features):
    # 4, 9 and 12 labels: always more than features, from the second or the third time step on, or never.
    learner = fixed_learner(blobs, "ranpac", random_features=random_features)
    method = learner.method
    method.projection.double()
    seen, labels = [], []
    for classes, seed in PARTS:
        each = part("labeled", classes, seed)
        take_in(learner, SWEEP, each.take(slice(0, 2)))
        take_in(learner, SWEEP, each.take(slice(2, None)))
        method.end_step(learner.net, learner.stream.steps[1])
        seen.append(plain_rows(learner, each.images))
        labels += classes
        rows = np.concatenate(seen)
        gram, cross, wanted = plain_ridge(rows, labels, 5, method.penalty)
        np.testing.assert_allclose(method.weight, wanted, rtol=1e-5, atol=1e-9)
        assert (method.sums is None) == (len(rows) < random_features)
        if method.sums is not None:
            np.testing.assert_allclose(method.sums.gram, gram, rtol=1e-9)
            np.testing.assert_allclose(method.sums.cross, cross, rtol=1e-9, atol=1e-12)
            assert len(method.store) == 0
    query = part("labeled", [0, 0, 0], 3).images
    with torch.no_grad():
        scores = method.predict(learner.net, query)
    np.testing.assert_allclose(scores, plain_rows(learner, query) @ wanted, rtol=1e-5, atol=1e-8)


def error_at(penalty, rows, labels, held_out):
    fit = len(rows) - held_out
    *_, weight = plain_ridge(rows[:fit], labels[:fit], 5, penalty)
    return ((rows[fit:] @ weight - np.eye(5)[labels[fit:]]) ** 2).mean()


@pytest.mark.parametrize("random_features", [7, 40])
def test_the_penalty_is_chosen_on_a_fifth_of_the_stored_labels(blobs, random_features):
    learner = fixed_learner(blobs, "ranpac", random_features=random_features)
    method = learner.method
    method.projection.double()
    first, second = part("labeled", [0, 1, 2, 3, 4, 0, 1, 2], 1), part("labeled", [4, 3, 2, 1, 0, 4, 3], 2)
    rows, labels = np.zeros((0, random_features)), []
    for each, held_out in ((first, 2), (second, 2)):  # of eight and of seven
        take_in(learner, SWEEP, each)
        method.end_step(learner.net, learner.stream.steps[1])
        rows = np.concatenate([rows, plain_rows(learner, each.images)])
        labels += each.labels.tolist()
        errors = {penalty: error_at(penalty, rows, labels, held_out) for penalty in WIDE_PENALTIES}
        assert errors[method.penalty] == pytest.approx(min(errors.values()), rel=1e-6)


@pytest.mark.parametrize("random_features", [12, 50])
def test_the_order_of_time_steps_does_not_matter(blobs, random_features):
    stream = tiny_learner(tiny_config(blobs)).stream
    methods = []
    for order in (stream.steps, stream.steps[::-1]):
        steps = tuple(replace(step, t=t, seen_classes=6) for t, step in enumerate(order, start=1))
        learner = double_learner(blobs, replace(stream, steps=steps), random_features=random_features, adapt=False)
        methods.append(run_through(learner).method)
    one, other = methods
    assert one.weight.shape == other.weight.shape == (random_features, 6)
    if random_features == 12:
        torch.testing.assert_close(one.sums.gram, other.sums.gram, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.sums.cross, other.sums.cross, rtol=1e-9, atol=1e-9)
    else:
        order, again = one.store.rows.argsort(), other.store.rows.argsort()
        torch.testing.assert_close(one.store.values[order], other.store.values[again], rtol=1e-9, atol=1e-9)
        assert torch.equal(one.store.labels[order], other.store.labels[again])


@pytest.mark.parametrize("random_features", [12, 50])
def test_a_whole_run_ends_with_the_joint_solution(blobs, random_features):
    learner = run_through(double_learner(blobs, random_features=random_features))
    images = normalize(learner.loader.read(np.concatenate([step.labeled for step in learner.stream.steps])))
    labels = np.concatenate([step.labels for step in learner.stream.steps])
    *_, wanted = plain_ridge(plain_rows(learner, images), labels, 6, learner.method.penalty)
    np.testing.assert_allclose(learner.method.weight, wanted, rtol=1e-5, atol=1e-9)


def test_the_seed_decides_the_random_features(blobs):
    made = [tiny_learner(tiny_config(blobs, "ranpac", random_features=2000, seed=seed)).method for seed in (0, 0, 1)]
    first, same, other = (method.projection[0].weight for method in made)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.mean().item() == pytest.approx(0, abs=0.02)
    assert first.std().item() == pytest.approx(1, abs=0.02)


# Adaptation.


def test_the_adaptation_is_plain_fine_tuning(blobs):
    batch = fixed_batch(memory=None, unlabeled=None)

    def labeled(weights):
        return plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled)

    compare(fixed_learner(blobs, "ranpac", random_features=10), batch, {"labeled": (1.0, labeled)}, phase="adapt")


def phases_of(method, step):
    done = ()
    while segment := method.next_phase(step, done, 100.0):
        done += (segment,)
    return done


def test_the_first_time_step_with_labels_adapts_and_no_other(blobs):
    learner = tiny_learner(tiny_config(blobs, "ranpac", random_features=50))
    first, second, _ = learner.stream.steps
    adapt, sweep = phases_of(learner.method, first)
    assert isinstance(adapt, Phase)
    assert adapt.mix == Mix(labeled=1)
    assert adapt.reserve.forward == len(first.labeled)
    assert sweep.pool == "labeled"
    assert [segment.name for segment in phases_of(learner.method, second)] == ["features"]
    none = np.zeros(0, np.int64)
    assert phases_of(learner.method, replace(first, labeled=none, labels=none, seen_classes=0, new_classes=())) == ()
    late = replace(second, seen_classes=len(second.new_classes))  # nothing was revealed before
    assert [segment.name for segment in phases_of(learner.method, late)] == ["adapt", "features"]
    frozen = RanPAC(RanPAC.Config(adapt=False))
    frozen.setup(learner.net)
    assert [segment.name for segment in phases_of(frozen, first)] == ["features"]


@pytest.mark.parametrize("adapt", [True, False])
def test_the_encoder_changes_in_the_first_time_step_only_if_at_all(blobs, adapt):
    learner = tiny_learner(tiny_config(blobs, "ranpac", random_features=50, adapt=adapt))
    states = [weights(learner)]
    for _ in learn(learner):
        states.append(weights(learner))
    encoders = [{name: value for name, value in state.items() if name.startswith("encoder")} for state in states]
    assert equal(encoders[0], encoders[1]) == (not adapt)
    assert equal(encoders[1], encoders[2])
    assert equal(encoders[1], encoders[3])


# What it costs.


@pytest.mark.parametrize("random_features", [12, 50])
def test_it_pays_for_features_projection_and_solve(blobs, random_features):
    learner = tiny_learner(tiny_config(blobs, "ranpac", budget="4", random_features=random_features))
    run_through(learner)
    stored, has_sums = 0, False
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        items = {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}
        own = {("features", "forward"), ("project", "module"), ("solve", "solve")}
        assert items.keys() == own | ({("labeled", "train")} if step.t == 1 else set())
        new = len(step.labeled)
        assert items["features", "forward"].images == new
        assert items["features", "forward"].passes == pytest.approx(new / 3)
        stored += new
        assert items["project", "module"].flops == 2 * stored * 96 * random_features
        held_out = -(-stored // 5)
        assert items["solve", "solve"].flops == fit_flops(stored, random_features, has_sums, held_out, 2 * step.t)
        if has_sums or stored >= random_features:
            stored, has_sums = 0, True
    assert has_sums == (random_features == 12)
    # Four updates less what the sweep and the solve need.
    assert {item.purpose: item.images for item in learner.ledger.closed[0].items}["labeled"] == 36


def test_a_penalty_that_cannot_be_chosen_stays(blobs):
    learner = fixed_learner(blobs, "ranpac", random_features=40)
    method, net, pay = learner.method, learner.net, learner.net.pay
    method.projection.double()
    choice = fit_flops(4, 40, False, 1, 5)
    net.pay = lambda purpose, flops: flops < choice and pay(purpose, flops)
    each = part("labeled", [1, 3, 3, 4], 1)
    take_in(learner, SWEEP, each)
    method.end_step(net, learner.stream.steps[1])
    assert method.penalty == 1.0
    *_, wanted = plain_ridge(plain_rows(learner, each.images), [1, 3, 3, 4], 5, 1.0)
    np.testing.assert_allclose(method.weight, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("random_features", [6, 40])
def test_a_solve_that_does_not_fit_leaves_the_former_head_and_is_made_up_for(blobs, random_features):
    learners = [fixed_learner(blobs, "ranpac", random_features=random_features) for _ in range(2)]
    for poor, learner in enumerate(learners):
        method, net, ledger = learner.method, learner.net, learner.ledger
        method.projection.double()
        for number, (classes, seed) in enumerate(PARTS):
            take_in(learner, SWEEP, part("labeled", classes, seed))
            before = method.weight
            if poor and number == 1:  # nothing is left after the features
                ledger.charge("elsewhere", "train", int(ledger.remaining))
                net.pay("elsewhere", ledger.remaining * ledger.pass_flops)
            method.end_step(net, learner.stream.steps[1])
            if poor and number == 1:
                assert method.weight is before
                assert len(method.store) == 9
                assert ledger.close().unused == pytest.approx(0, abs=1e-6)
                ledger.open(3, 5)
    rich, poor = (learner.method for learner in learners)
    assert poor.fitted == rich.fitted
    rows = plain_rows(learners[0], torch.cat([part("labeled", *each).images for each in PARTS]))
    *_, wanted = plain_ridge(rows, [label for classes, _ in PARTS for label in classes], 5, poor.penalty)
    np.testing.assert_allclose(poor.weight, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("budget", ["0.05", "0.2", "0.5", "1.3", "4"])
def test_no_budget_is_too_small_for_ten_thousand_features(blobs, budget):
    learner = run_through(tiny_learner(tiny_config(blobs, "ranpac", budget=budget, random_features=10_000)))
    for receipt in learner.ledger.closed:
        assert receipt.spent <= receipt.budget
    with learner.ledger.free(), torch.no_grad():
        scores = learner.method.predict(learner.net, torch.zeros(2, 3, 16, 16))
    assert scores.shape == (2, 6)
    assert scores.isfinite().all()


def test_a_single_label_is_enough(blobs):
    learner = fixed_learner(blobs, "ranpac", random_features=30)
    learner.method.projection.double()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    with learner.ledger.free(), torch.no_grad():
        assert learner.method.predict(learner.net, images).tolist() == [[0] * 5] * 2
    take_in(learner, SWEEP, part("labeled", [3], 1))
    learner.method.end_step(learner.net, learner.stream.steps[1])
    with learner.ledger.free(), torch.no_grad():
        assert learner.method.predict(learner.net, images).argmax(1).tolist() == [3, 3]
