"""The loop: micro-batches average, odd time steps do no harm, the seed decides, and a bad loss stops the run."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.engine.loop import learn
from dietcl.engine.phases import backward
from dietcl.engine.state import restore_state
from dietcl.errors import NotFinite
from dietcl.execution import Execution
from dietcl.methods import METHODS, method_class
from dietcl.run import execute
from dietcl.streams.augment import make_batch
from dietcl.streams.sampler import pools_of, sample
from helpers.recording import Notes, equal, run_through, updates_of, weights
from helpers.tiny import AMPLE, tiny_config, tiny_learner

# One update.


def test_an_update_is_the_mean_of_its_micro_batches(blobs):
    learner = tiny_learner(tiny_config(blobs))
    step = learner.stream.steps[1]
    learner.network.head.grow(step.seen_classes, torch.Generator().manual_seed(0))
    learner.ledger.open(2, step.seen_classes)
    phase = learner.method.next_phase(step, (), 3.0)
    pools = pools_of(learner.stream, 2, phase.mix)

    def micro_batch(number):
        key = (0, 2, 0, 0, number)
        draws = sample(pools, phase.mix.counts(6, pools), key)
        images = [learner.loader.read(draw.rows) for draw in draws]
        return make_batch(draws, images, torch.from_numpy(step.classes), learner.config.augmentation, key)

    alone, values = [], []
    for number in range(3):
        learner.network.zero_grad()
        terms = list(learner.method.losses(learner.net, phase, micro_batch(number)))
        sum(term.weight * term.value for term in terms).backward()
        alone.append({name: p.grad.clone() for name, p in learner.network.named_parameters()})
        values.append({term.name: term.value.item() for term in terms})
    learner.network.zero_grad()
    reported = Counter()
    for number in range(3):
        for name, value in backward(learner, phase, micro_batch(number), 3).items():
            reported[name] += value.item()
    for name, parameter in learner.network.named_parameters():
        by_hand = sum(gradient[name] for gradient in alone) / 3
        # Sums of another order round otherwise; what rounds is as large as the largest entries.
        torch.testing.assert_close(parameter.grad, by_hand, rtol=1e-5, atol=1e-4 * by_hand.abs().max().item())
    for name, value in reported.items():
        assert value == pytest.approx(sum(each[name] for each in values) / 3)


@pytest.mark.parametrize("micro_batch", [12, 4])
def test_all_micro_batches_of_an_update_are_drawn_apart(blobs, micro_batch):
    config = tiny_config(blobs, "naive", budget="2")
    learner = tiny_learner(replace(config, training=replace(config.training, micro_batch=micro_batch)))
    seen = []
    losses = learner.method.losses

    def watch(net, phase, batch):
        seen.append(batch)
        return losses(net, phase, batch)

    learner.method.losses = watch
    updates_of(learner)
    assert len(seen) == 3 * 2 * (12 // micro_batch)
    assert all(len(batch.labeled) == micro_batch for batch in seen)
    assert len({batch.key for batch in seen}) == len(seen)
    assert len({batch.labeled.images.sum().item() for batch in seen}) == len(seen)


# Odd time steps.


@pytest.fixture(scope="module")
def stream(blobs):
    return tiny_learner(tiny_config(blobs)).stream


def odd(step, kind):
    none = np.zeros(0, np.int64)
    first_class = step.labels == step.labels[0]
    return {
        "no labels": replace(step, labeled=none, labels=none),
        "no unlabeled": replace(step, unlabeled=none),
        "no images": replace(step, labeled=none, labels=none, unlabeled=none),
        "one class": replace(step, labeled=step.labeled[first_class], labels=step.labels[first_class]),
        "one labeled image": replace(step, labeled=step.labeled[:1], labels=step.labels[:1], unlabeled=none),
        "one unlabeled image": replace(step, labeled=none, labels=none, unlabeled=step.unlabeled[:1]),
    }[kind]


PAIRS = [
    ("no images", "no labels"),
    ("one labeled image", "no unlabeled"),
    ("one unlabeled image", "one class"),
]


# Every kind comes first and second; the usual time step after both has a past of either kind.
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kinds", [*PAIRS, *(pytest.param(pair[::-1], marks=pytest.mark.long) for pair in PAIRS)])
def test_odd_time_steps_do_no_harm(blobs, stream, method, kinds):
    steps = (*(odd(step, kind) for step, kind in zip(stream.steps, kinds, strict=False)), *stream.steps[len(kinds) :])
    config = tiny_config(blobs, method, budget=AMPLE.get(method, "1"))
    learner = run_through(tiny_learner(config, replace(stream, steps=steps)))
    assert all(bool(value.isfinite().all()) for value in weights(learner).values())
    assert learner.counts.count[2].sum() == sum(len(test.rows) for test in stream.tests)
    for receipt in learner.ledger.closed:
        assert receipt.spent + receipt.unused == pytest.approx(receipt.budget)


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_without_any_label_or_image_does_no_harm(blobs, stream, method):
    for kind in ("no labels", "no images"):
        steps = tuple(replace(odd(step, kind), seen_classes=0, new_classes=()) for step in stream.steps)
        tests = tuple(replace(test, labels=np.full(len(test.rows), -1)) for test in stream.tests)
        empty = replace(stream, steps=steps, tests=tests, classes=())
        learner = run_through(tiny_learner(tiny_config(blobs, method, budget=AMPLE.get(method, "1")), empty))
        assert learner.counts.correct.sum() == 0 < learner.counts.count.sum()


# Repetition.


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides_every_bit(blobs, method):
    budget = AMPLE.get(method, "1")
    runs = [run_through(tiny_learner(tiny_config(blobs, method, budget=budget, seed=seed))) for seed in (0, 0, 1)]
    assert equal(weights(runs[0]), weights(runs[1]))
    assert (runs[0].counts.loss_sum == runs[1].counts.loss_sum).all()
    assert not equal(weights(runs[0]), weights(runs[2]))


def test_global_generators_play_no_part(blobs):
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        state = torch.get_rng_state()
        runs.append(weights(run_through(tiny_learner(tiny_config(blobs, budget="2")))))
        assert torch.equal(torch.get_rng_state(), state)
    assert equal(*runs)


# Losses that are not finite.


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_time_step(blobs, tmp_path, monkeypatch):
    config = tiny_config(blobs, "dietcl", budget="4")
    reference = tiny_learner(config)
    next(learn(reference))
    losses = method_class("dietcl").losses

    def poisoned(self, net, phase, batch):
        for term in losses(self, net, phase, batch):
            bad = batch.key[1:4] == (2, 0, 3) and term.name == "memory"
            yield replace(term, value=term.value * math.nan) if bad else term

    monkeypatch.setattr(method_class("dietcl"), "losses", poisoned)
    with pytest.raises(NotFinite, match=r"memory.*nan.* at time step 2, phase joint, update 3;.*--lr"):
        execute(config, tmp_path / "run", Execution(device="cpu"))
    *_, stopped = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert stopped["event"] == "stopped"
    assert "time step 2, phase joint, update 3" in stopped["reason"]
    kept = tiny_learner(config)
    saved, _ = Checkpoints(tmp_path / "run/checkpoints", keep=2).load()
    restore_state(kept, saved)
    assert kept.position.finished == 1
    assert equal(weights(kept), weights(reference))
    monkeypatch.undo()
    execute(config, tmp_path / "run", Execution(device="cpu"))
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["t"] for event in events if event["event"] == "step_end"] == [1, 2, 3]
    assert all(event["event"] != "stopped" for event in events)


def test_a_rate_far_too_high_is_stopped(blobs, tmp_path):
    config = tiny_config(blobs, "dietcl", budget="24")
    config = replace(config, training=replace(config.training, lr=100, head_lr=100))
    with pytest.raises(NotFinite, match="time step 1, phase joint"):
        execute(config, tmp_path / "run", Execution(device="cpu"))
    assert not list(tmp_path.glob("run/checkpoints/0*"))


def test_weights_that_are_not_finite_never_become_a_checkpoint(blobs, tmp_path, monkeypatch):
    learner = tiny_learner(tiny_config(blobs, "er", budget="2"))
    made = []

    def poison(net, phase):
        made.append(phase)
        if len(made) == 4:  # the last update of time step 2, whose loss was still finite
            with torch.no_grad():
                learner.network.encoder.vit.norm.weight[0] = math.inf

    learner.method.after_update = poison
    run = learn(learner)
    next(run)
    with pytest.raises(NotFinite, match="time step 2, phase replay, after update 1"):
        next(run)


# What is told.


def test_events_tell_each_time_step_and_the_curves_on_request(blobs):
    config = tiny_config(blobs, "er", budget="4")
    learner = tiny_learner(replace(config, evaluation=replace(config.evaluation, curves=2)))
    learner.recorder = Notes()
    run_through(learner)
    assert [event["t"] for event in learner.recorder.of("step_begin")] == [1, 2, 3]
    begin, end = learner.recorder.of("step_begin")[1], learner.recorder.of("step_end")[1]
    step = learner.stream.steps[1]
    assert (begin["labeled"], begin["unlabeled"], begin["classes"]) == (8, 32, 4)
    assert begin["new_classes"] == step.new_classes
    assert begin["realized_rate"] == pytest.approx(0.2)
    assert (end["spent"], end["unused"]) == (48, 0)
    right, number = learner.counts.correct[1, :2], learner.counts.count[1, :2]
    assert end["accuracy_mean"] == pytest.approx((right / number).mean())
    assert end["accuracy_pooled"] == pytest.approx(right.sum() / number.sum())
    curve = [event for event in learner.recorder.of("curve") if event["t"] == 2]
    assert [event["update"] for event in curve] == [0, 2, 4]
    assert all(len(event["loss"]) == len(event["accuracy"]) == 2 for event in curve)
    assert curve[-1]["accuracy"] == pytest.approx(right / number)


def test_curves_have_every_point_and_the_end(blobs):
    config = tiny_config(blobs, "dietcl", budget="49")
    config = replace(config, evaluation=replace(config.evaluation, curves=49), first_time_steps=1)
    learner = tiny_learner(config)
    learner.recorder = Notes()
    next(learn(learner))
    assert [event["update"] for event in learner.recorder.of("curve")] == list(range(50))
    # Priced by FLOPs the budget leaves a remainder that no update fits into.
    config = replace(config, budget="8", accounting="flops", evaluation=replace(config.evaluation, curves=2))
    learner = tiny_learner(config)
    learner.recorder = Notes()
    next(learn(learner))
    made = learner.recorder.of("step_end")[0]["updates"]
    assert learner.ledger.closed[0].unused > 0
    assert [event["update"] for event in learner.recorder.of("curve")][0::2] == [0, made]


def test_curves_change_nothing_that_is_learned(blobs):
    config = tiny_config(blobs, "dietcl")
    with_curves = replace(config, evaluation=replace(config.evaluation, curves=3))
    one, other = run_through(tiny_learner(config)), run_through(tiny_learner(with_curves))
    assert equal(weights(one), weights(other))
    assert [receipt.spent for receipt in one.ledger.closed] == [receipt.spent for receipt in other.ledger.closed]
