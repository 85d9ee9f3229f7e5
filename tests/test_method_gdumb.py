"""GDumb: every time step begins from the first weights and learns the memory alone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dietcl.budget.budget import Budget
from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods.er import GDumb
from dietcl.streams.sampler import pools_of
from helpers.fixed_batch import compare, fixed_batch, fixed_learner
from helpers.recording import equal, run_through, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_logits
from helpers.tiny import tiny_config, tiny_learner


def mix_of(stream, t, **options):
    return GDumb(GDumb.Config(**options)).next_phase(stream.step(t), (), 3.0).mix


def test_gdumb_equals_the_plain_implementation(blobs):
    batch = fixed_batch(labeled=None, unlabeled=None)
    expected = {"memory": (1.0, lambda w: plain_cross_entropy(plain_logits(batch.memory.images, w), batch.memory))}
    compare(fixed_learner(blobs, "gdumb"), batch, expected, phase="retrain")


def test_the_first_time_step_is_uniform_replay(blobs):
    learners = [tiny_learner(tiny_config(blobs, "gdumb")), tiny_learner(tiny_config(blobs, "er", sampling="uniform"))]
    runs = [learn(learner) for learner in learners]
    assert [next(run) for run in runs] == [1, 1]
    assert equal(*map(weights, learners))
    assert [next(run) for run in runs] == [2, 2]
    assert not equal(*map(weights, learners))


@pytest.mark.parametrize("memory", [None, 7])
def test_the_order_of_earlier_time_steps_plays_no_part(blobs, memory):
    stream = tiny_learner(tiny_config(blobs)).stream
    one, two, three = stream.steps
    ends, middles = [], []
    for first, second in ((one, two), (two, one)):
        # The head has room for both time steps' classes from the beginning, so that their numbers may stay.
        steps = (replace(first, t=1, seen_classes=4), replace(second, t=2, seen_classes=4), three)
        learner = tiny_learner(tiny_config(blobs, "gdumb", memory=memory), replace(stream, steps=steps))
        run = learn(learner)
        next(run)
        middles.append(weights(learner))
        assert [*run] == [2, 3]
        ends.append(weights(learner))
    assert not equal(*middles)
    assert equal(*ends)


def test_a_small_memory_is_shared_equally_by_the_classes(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    everything = pools_of(stream, 3, mix_of(stream, 3))["memory"]
    assert len(everything.rows) == sum(len(step.labeled) for step in stream.steps)
    for memory, sizes in ((3, [1, 1, 1]), (6, [1] * 6), (13, [3, 2, 2, 2, 2, 2]), (1000, [4] * 6)):
        pool = pools_of(stream, 3, mix_of(stream, 3, memory=memory))["memory"]
        assert sorted(Counter(pool.labels.tolist()).values(), reverse=True) == sizes
        assert set(pool.rows) <= set(everything.rows)


def test_a_time_step_without_labels_is_learned_anew_all_the_same(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    none = np.zeros(0, np.int64)
    second = replace(stream.steps[1], labeled=none, labels=none, seen_classes=2, new_classes=())
    learner = tiny_learner(tiny_config(blobs, "gdumb"), replace(stream, steps=(stream.steps[0], second)))
    run = learn(learner)
    next(run)
    before = weights(learner)
    next(run)
    assert learner.ledger.closed[1].spent == 36
    assert not equal(weights(learner), before)


def test_without_the_budget_to_learn_anew_nothing_is_forgotten(blobs):
    learner = tiny_learner(tiny_config(blobs, "gdumb"))
    run = learn(learner)
    next(run)
    before = weights(learner)
    learner.ledger.budget = Budget.parse("0.5")
    next(run)
    after = weights(learner)
    assert learner.ledger.closed[1].spent == 0
    assert after["head.weight"].shape[0] == 4
    assert all((after[name][: len(value)] == value).all() for name, value in before.items())


def test_the_whole_budget_goes_to_the_memory(blobs):
    learner = tiny_learner(tiny_config(blobs, "gdumb", budget="4"))
    assert Counter((event["t"], event["phase"]) for event in updates_of(learner)) == {
        (t, "retrain"): 4 for t in (1, 2, 3)
    }
    for receipt in learner.ledger.closed:
        paid = {(item.purpose, item.operation): item.passes for item in receipt.items if item.passes}
        assert paid == {("memory", "train"): 48}


def test_what_is_measured_is_the_end_of_a_time_step(blobs):
    learner = run_through(tiny_learner(tiny_config(blobs, "gdumb")))
    last = learner.stream.tests[2]
    predicted, _ = learner.evaluator.predict(learner.method, learner.net, last)
    assert learner.counts.correct[2, 2] == (predicted == last.labels).sum()


@pytest.mark.parametrize("memory", [0, -3])
def test_a_memory_without_room_is_refused(memory):
    with pytest.raises(UserError, match="--memory"):
        GDumb.Config(memory=memory)
