"""CCIC term by term against plain loops, its limits, its phases and its neighbors."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.phases import backward
from dietcl.errors import UserError
from dietcl.methods.base import Phase, Sweep
from dietcl.methods.ccic import CCIC
from dietcl.methods.pieces.store import vote
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Mix
from dietcl.streams.sampler import pools_of
from helpers.fixed_batch import CLASSES, compare, fixed_batch, fixed_learner, losses_of, part
from helpers.recording import Notes, paid, run_through, segments, updates_of
from helpers.reference_losses import (
    plain_batch_hard,
    plain_cross_entropy,
    plain_distance,
    plain_embeddings,
    plain_features,
    plain_logits,
    plain_mixmatch,
)
from helpers.tiny import tiny_config, tiny_learner

POOLS = ("labeled", "memory", "unlabeled")


def mixmatch_term(batch, pool, **options):
    def loss(weights):
        images, targets = plain_mixmatch(batch, weights, **options)[pool]
        total = 0.0
        for logits, target in zip(plain_logits(torch.stack(images), weights), targets, strict=True):
            p = logits.exp() / logits.exp().sum()
            if pool == "unlabeled":
                total = total + sum((p[c] - target[c]) ** 2 for c in range(CLASSES)) / CLASSES
            else:
                total = total - sum(target[c] * p[c].log() for c in range(CLASSES))
        return total / len(images)

    return loss


def triplet_term(batch):
    parts = [p for p in (batch.labeled, batch.memory) if p is not None]
    labels = [label for p in parts for label in p.labels.tolist()]
    return lambda weights: plain_batch_hard(plain_embeddings(parts, "triplet", weights), labels)


def cross_term(batch):
    def loss(weights):
        new = plain_embeddings([batch.unlabeled], "cross", weights)
        past = plain_embeddings([batch.memory], "cross", weights)
        losses = [1 - min(plain_distance(u, m) for m in past) for u in new]
        return sum(max(value, 0 * value) for value in losses) / len(losses)

    return loss


def expected_terms(batch, **options):
    return {
        "labeled": (1.0, mixmatch_term(batch, "labeled", **options)),
        "memory": (1.0, mixmatch_term(batch, "memory", **options)),
        "unlabeled": (0.5, mixmatch_term(batch, "unlabeled", **options)),
        "triplet": (1.0, triplet_term(batch)),
        "cross": (0.5, cross_term(batch)),
    }


@pytest.mark.parametrize(
    ("phase", "missing", "left"),
    [
        ("mixmatch", None, {*POOLS, "triplet", "cross"}),
        ("mixmatch", "labeled", {"memory", "unlabeled", "triplet", "cross"}),
        ("mixmatch", "memory", {"labeled", "unlabeled", "triplet"}),
        ("mixmatch", "unlabeled", {"labeled", "memory", "triplet"}),
        # The past and the present are left where they are.
        ("settle", None, {*POOLS, "triplet"}),
    ],
)
def test_ccic_equals_the_plain_implementation(blobs, phase, missing, left):
    batch = fixed_batch(**({missing: None} if missing else {}))
    expected = {name: term for name, term in expected_terms(batch).items() if name in left}
    compare(fixed_learner(blobs, "ccic"), batch, expected, phase=phase)


@pytest.mark.parametrize("options", [{"augmentations": 1}, {"augmentations": 2, "temperature": 1.0}, {"beta": 0.0}])
def test_views_temperature_and_mixing_can_be_chosen(blobs, options):
    batch = fixed_batch(unlabeled=part("unlabeled", [0, 0, 0, 0], 5))
    learner = fixed_learner(blobs, "ccic", triplet=False, cross=0.0, memory_weight=0.3, **options)
    expected = expected_terms(batch, **options)
    expected = {name: expected[name] for name in POOLS} | {"memory": (0.3, expected["memory"][1])}
    compare(learner, batch, expected, phase="mixmatch")


def test_the_views_of_one_image_are_averaged_and_not_those_of_different_images(blobs):
    # Each of four images is told by a class of its own, so that a mean across images would be seen.
    learner = fixed_learner(blobs, "ccic", temperature=1.0)
    four = part("unlabeled", [0, 0, 0, 0], 5)
    scores = torch.full((12, CLASSES), 0.0)
    for view in range(3):
        for image in range(4):
            scores[4 * view + image, image] = 5.0 + view
    shown = []

    class Known:
        def scores(self, images, purpose):
            shown.append((images, purpose))
            return scores

    views, guesses = learner.method._guess(Known(), four)
    assert shown[0][1] == "guess"
    assert torch.equal(views, torch.cat([four.view(f"guess {i}") for i in range(3)]))
    assert guesses.argmax(1).tolist() == [0, 1, 2, 3] * 3
    sure = sum(math.exp(5 + view) / (math.exp(5 + view) + CLASSES - 1) for view in range(3)) / 3
    for row, image in zip(guesses, [0, 1, 2, 3] * 3, strict=True):
        assert float(row[image]) == pytest.approx(sure)


def test_a_guess_stays_finite_at_any_temperature(blobs):
    learner = fixed_learner(blobs, "ccic", temperature=1e-4)
    terms = losses_of(learner, fixed_batch(), "mixmatch")
    assert all(bool(term.value.isfinite()) for term in terms.values())


# Limits.


def test_without_its_own_parts_it_is_the_sum_of_two_means_of_replay_on_plain_crops(blobs):
    batch = fixed_batch()

    def replay(drawn):
        plain = replace(drawn, partners=drawn.labels, weight=torch.ones(len(drawn), dtype=torch.float64))
        return lambda weights: plain_cross_entropy(plain_logits(drawn.view("mixmatch"), weights), plain)

    learner = fixed_learner(blobs, "ccic", strength=0.0, cross=0.0, beta=0.0, triplet=False)
    expected = {"labeled": (1.0, replay(batch.labeled)), "memory": (1.0, replay(batch.memory))}
    compare(learner, batch, expected, phase="mixmatch")
    # The gradient is that of replay, whose one mean weighs both parts by their images, if it is weighed back.
    other = fixed_learner(blobs, "er")
    for drawn in (batch.labeled, batch.memory):
        plain = replace(drawn, images=drawn.view("mixmatch"), partners=None, weight=None)
        alone = replace(batch, **{"labeled": None, "memory": None, "unlabeled": None, drawn.pool: plain})
        backward(other, Phase(name="replay", mix=Mix()), alone, 1)
    for name, parameter in other.network.named_parameters():
        if parameter.grad is not None:
            found = learner.network.get_parameter(name).grad
            torch.testing.assert_close(found, parameter.grad, rtol=1e-9, atol=1e-12)


def test_what_is_switched_off_is_neither_drawn_nor_run(blobs):
    def names(phase, **options):
        return [*losses_of(fixed_learner(blobs, "ccic", **options), fixed_batch(), phase)]

    assert names("mixmatch", strength=0.0) == ["labeled", "memory", "triplet", "cross"]
    assert names("mixmatch", cross=0.0) == ["labeled", "memory", "unlabeled", "triplet"]
    assert names("settle", triplet=False, strength=0.0) == ["labeled", "memory"]
    learner = fixed_learner(blobs, "ccic", triplet=False, strength=0.0)
    learner.method.begin_step(learner.net, learner.stream.steps[1])
    for step, shares in zip(learner.stream.steps, ([0, 0], [1 / 3, 0]), strict=False):
        assert [phase.mix.unlabeled for phase in segments(learner.method, step)[:2]] == shares


# Phases, neighbors, receipts.


@pytest.fixture(scope="module")
def run(blobs):
    learner = tiny_learner(tiny_config(blobs, "ccic", budget="30"))
    return learner, updates_of(learner)


def test_a_time_step_is_mixed_then_settled_then_embedded(blobs):
    learner = tiny_learner(tiny_config(blobs, "ccic"))
    steps = learner.stream.steps
    assert segments(learner.method, steps[0]) == ()  # no label has been revealed
    for t, counts in ((1, {"unlabeled": 4, "labeled": 8}), (2, {"unlabeled": 4, "labeled": 4, "memory": 4})):
        learner.method.begin_step(learner.net, steps[t - 1])
        mixmatch, settle, embed = segments(learner.method, steps[t - 1])
        assert (mixmatch.name, mixmatch.share, settle.name, settle.share) == ("mixmatch", 0.9, "settle", 1.0)
        assert embed == Sweep(name="embed", pool="memory")
        for phase in (mixmatch, settle):
            assert phase.reserve.forward == 8 * t
            assert phase.mix.counts(12, pools_of(learner.stream, t, phase.mix)) == counts
        past = set(pools_of(learner.stream, t, mixmatch.mix)["memory"].rows)
        assert past == {row for step in steps[: t - 1] for row in step.labeled}


def test_receipts_have_ten_passes_for_three_images(run):
    learner, events = run
    made = Counter((event["t"], event["phase"]) for event in events)
    for receipt in learner.ledger.closed:
        mixmatch, settle = (made[receipt.t, name] for name in ("mixmatch", "settle"))
        both = mixmatch + settle
        assert min(mixmatch, settle) > 0
        expected = {
            ("guess", "forward"): both * 3 * 4 / 3,
            ("unlabeled", "train"): both * 3 * 4,
            ("labeled", "train"): both * (4 if receipt.t > 1 else 8),
            ("memory", "train"): both * 4,
            ("triplet", "train"): both * 8,
            ("cross", "train"): mixmatch * 8,
            ("embed", "forward"): receipt.t * 8 / 3,
        }
        if receipt.t == 1:
            expected = {key: value for key, value in expected.items() if key[0] not in ("memory", "cross")}
        found = {key: item.passes for key, item in paid(receipt).items() if item.passes}
        assert found == {key: pytest.approx(value) for key, value in expected.items()}
        price = 12 * ((10 if receipt.t > 1 else 8) * mixmatch + 8 * settle) / 3
        assert receipt.spent == pytest.approx(price + receipt.t * 8 / 3)


def test_all_labels_so_far_are_embedded_by_the_last_encoder(run):
    learner, _ = run
    store = learner.method.store
    rows = np.concatenate([step.labeled for step in learner.stream.steps])
    labels = np.concatenate([step.labels for step in learner.stream.steps])
    assert sorted(store.rows.tolist()) == sorted(rows.tolist())
    assert dict(zip(store.rows.tolist(), store.labels.tolist(), strict=True)) == dict(zip(rows, labels, strict=True))
    state = learner.network.state_dict()
    images = learner.loader.read(store.rows.numpy()).float().div(255).sub(0.5).div(0.25)
    torch.testing.assert_close(store.values, plain_features(images, state), rtol=1e-3, atol=1e-4)


def test_the_nearest_remembered_labels_decide(run):
    learner, _ = run
    images = normalize(learner.loader.read(learner.stream.tests[1].rows))
    with torch.no_grad(), learner.ledger.free():
        features = learner.net.features(images, "predict")
        # How three of them vote is held against brute force in test_pieces.py.
        expected = vote(features, learner.method.store, 3, learner.net.classes)
        assert torch.equal(learner.method.predict(learner.net, images), expected)


def test_without_embeddings_the_head_decides(blobs):
    learner = fixed_learner(blobs, "ccic")
    images = fixed_batch().memory.images
    with torch.no_grad(), learner.ledger.free():
        assert torch.equal(learner.method.predict(learner.net, images), learner.net.scores(images))


def test_a_budget_too_small_for_all_labels_embeds_as_many_as_fit(blobs):
    learner = tiny_learner(tiny_config(blobs, "ccic", budget="0.5"))  # six passes, an update costs more
    learner.recorder = notes = Notes()
    run_through(learner)
    assert notes.of("update") == []
    assert [event["images"] for event in notes.of("sweep")] == [8, 16, 18]
    assert len(learner.method.store) == 18
    assert [receipt.spent for receipt in learner.ledger.closed] == pytest.approx([8 / 3, 16 / 3, 6])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"augmentations": 0}, "--augmentations 0"),
        ({"neighbors": 0}, "--neighbors 0"),
        ({"temperature": 0.0}, "--temperature 0.0"),
        ({"temperature": math.nan}, "--temperature nan"),
        ({"beta": -0.1}, "--beta -0.1"),
        ({"strength": math.inf}, "--strength inf"),
        ({"cross": -1.0}, "--cross -1.0"),
        ({"memory_weight": -1.0}, "--memory-weight -1.0"),
    ],
)
def test_impossible_options_are_refused(options, named):
    with pytest.raises(UserError, match=named):
        CCIC.Config(**options)
