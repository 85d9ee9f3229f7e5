"""One stage, two stages, and the two stages on everything at once."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.methods.dietcl import TwoStage
from dietcl.models.flops import cost_model
from helpers.fixed_batch import KEY, compare, fixed_batch, fixed_learner
from helpers.recording import equal, run_through, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_logits, plain_reconstruction
from helpers.tiny import MODEL, tiny_config, tiny_learner

NONE = np.zeros(0, np.int64)


def end(blobs, method, stream=None, budget="5", **options):
    return weights(run_through(tiny_learner(tiny_config(blobs, method, budget=budget, **options), stream)))


@pytest.fixture(scope="module")
def stream(blobs):
    return tiny_learner(tiny_config(blobs)).stream


@pytest.mark.parametrize("method", ["one_stage", "two_stage", "joint"])
def test_fine_tuning_equals_the_plain_implementation(blobs, method):
    batch = fixed_batch(labeled=None, unlabeled=None)
    expected = {"memory": (1.0, lambda w: plain_cross_entropy(plain_logits(batch.memory.images, w), batch.memory))}
    compare(fixed_learner(blobs, method), batch, expected, phase="fine-tune")


@pytest.mark.parametrize("method", ["two_stage", "joint"])
def test_reconstruction_equals_the_plain_implementation(blobs, method):
    batch = fixed_batch(labeled=None, memory=None)
    expected = {"reconstruct": (1.0, lambda w: plain_reconstruction(batch.unlabeled.images, w, KEY))}
    compare(fixed_learner(blobs, method), batch, expected, phase="reconstruct")


def test_one_stage_is_uniform_replay(blobs):
    assert equal(end(blobs, "one_stage"), end(blobs, "er", sampling="uniform"))


def test_two_stages_without_the_first_are_one(blobs):
    assert equal(end(blobs, "two_stage", pretrain=0.0, fine_tune_lr=1.0), end(blobs, "one_stage"))


def test_of_one_time_step_everything_at_once_is_two_stages(blobs, stream):
    single = replace(stream, steps=stream.steps[:1], tests=stream.tests[:1])
    runs = [run_through(tiny_learner(tiny_config(blobs, m, budget="5"), single)) for m in ("joint", "two_stage")]
    assert equal(*map(weights, runs))
    assert (runs[0].counts.loss_sum == runs[1].counts.loss_sum).all()
    assert runs[0].ledger.receipts() == runs[1].ledger.receipts()


def test_the_budget_is_divided_and_each_stage_has_its_rate(blobs):
    learner = tiny_learner(tiny_config(blobs, "two_stage", budget="5"))
    events = updates_of(learner)
    made = Counter((event["t"], event["phase"]) for event in events)
    assert made == {(t, phase): n for t in (1, 2, 3) for phase, n in (("reconstruct", 4), ("fine-tune", 1))}
    for event in events:
        if event["update"] == 0:
            scale = 5 if event["phase"] == "fine-tune" else 1
            assert event["lr"] == pytest.approx(scale * learner.config.training.lr)
    cost = cost_model(MODEL)
    for receipt in learner.ledger.closed:
        paid = {item.purpose: item for item in receipt.items if item.passes}
        assert {purpose: item.passes for purpose, item in paid.items()} == {"reconstruct": 48, "memory": 12}
        assert paid["reconstruct"].flops == 48 * (cost.masked_pass + cost.decoder_pass)
        assert paid["memory"].flops == 12 * cost.pass_flops(receipt.classes)


def test_priced_by_flops_the_first_stage_makes_more_updates(blobs):
    learner = tiny_learner(replace(tiny_config(blobs, "two_stage", budget="10"), accounting="flops"))
    made = Counter((event["t"], event["phase"]) for event in updates_of(learner))
    cost = cost_model(MODEL)
    for receipt in learner.ledger.closed:
        price = (cost.masked_pass + cost.decoder_pass) / cost.pass_flops(receipt.classes)
        assert price < 1
        # The first update is begun only if a pass an image fits, which it does here; the later ones cost less.
        assert made[receipt.t, "reconstruct"] == math.floor(8 / price)
        assert made[receipt.t, "fine-tune"] == math.floor(10 - price * made[receipt.t, "reconstruct"])


def test_fine_tuning_draws_uniformly_from_all_labels(stream):
    phases = [TwoStage(TwoStage.Config()).next_phase(stream.steps[2], done, 5.0) for done in ((), (None,), (None,) * 2)]
    assert phases[0].mix.unlabeled == phases[1].mix.memory == 1
    assert not phases[1].mix.past_only
    assert not phases[1].mix.by_time_step
    assert phases[2] is None


def test_without_unlabeled_images_all_goes_to_fine_tuning(blobs, stream):
    bare = replace(stream, steps=tuple(replace(step, unlabeled=NONE) for step in stream.steps))
    assert equal(end(blobs, "two_stage", bare), end(blobs, "two_stage", bare, pretrain=0.0))
    for method, made in (("two_stage", {1: 5, 2: 5, 3: 5}), ("joint", {3: 15})):
        events = updates_of(tiny_learner(tiny_config(blobs, method, budget="5"), bare))
        assert {event["phase"] for event in events} == {"fine-tune"}
        assert Counter(event["t"] for event in events) == made


@pytest.mark.parametrize("method", ["two_stage", "joint"])
def test_without_any_label_all_goes_to_reconstruction(blobs, stream, method):
    steps = [replace(s, labeled=NONE, labels=NONE, seen_classes=0, new_classes=()) for s in stream.steps]
    tests = [replace(test, labels=np.full(len(test.rows), -1)) for test in stream.tests]
    blank = replace(stream, steps=tuple(steps), tests=tuple(tests), classes=())
    events = updates_of(tiny_learner(tiny_config(blobs, method, budget="5"), blank))
    assert Counter(event["phase"] for event in events) == {"reconstruct": 15}


def test_everything_at_once_spends_all_budgets_and_is_measured_once(blobs, stream):
    learner = tiny_learner(tiny_config(blobs, "joint", budget="5"))
    (whole,) = learner.stream.steps
    assert set(whole.labeled) == {row for step in stream.steps for row in step.labeled}
    assert set(whole.unlabeled) == {row for step in stream.steps for row in step.unlabeled}
    made = Counter((event["t"], event["phase"]) for event in updates_of(learner))
    assert made == {(3, "reconstruct"): 12, (3, "fine-tune"): 3}
    (receipt,) = learner.ledger.closed
    assert (receipt.budget, receipt.spent, receipt.classes) == (180, 180, 6)
    assert not learner.counts.count[:2].any()
    assert learner.counts.count[2].tolist() == [len(test.rows) for test in stream.tests]


@pytest.mark.parametrize(
    "options",
    [{"pretrain": -0.1}, {"pretrain": 1.1}, {"pretrain": math.nan}, {"fine_tune_lr": 0}, {"fine_tune_lr": math.inf}],
)
def test_impossible_stages_are_refused(options):
    (name,) = options
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} "):
        TwoStage.Config(**options)
