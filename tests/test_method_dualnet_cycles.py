"""DualNet's cycles of updates on views and on labels, the phases that hold them, and look-ahead."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods.base import Phase, Reserve, Sweep
from dietcl.methods.dualnet import DualNet, forward_flops
from dietcl.streams.options import Mix
from dietcl.streams.sampler import pools_of
from helpers.fixed_batch import fixed_batch, fixed_learner, losses_of, nudge
from helpers.recording import equal, run_through, segments, weights
from helpers.tiny import tiny_config, tiny_learner

WIDTH = 6
NEVER = 1e-12  # as a probability of labeled cycles
POOLS = ("unlabeled", "labeled", "memory")


def places(method, number, pools=POOLS, t=2, micro=0):
    """Return for each update whether its cycle is labeled and its place in it."""
    return [method._cycle_position((7, t, 0, update, micro), pools) for update in range(number)]


@pytest.mark.parametrize(
    ("options", "is_labeled", "length"),
    [
        ({"threshold": 1.0}, True, 6),
        ({"threshold": NEVER}, False, 4),
        ({"threshold": 1.0, "outer": 3, "inner": 5}, True, 17),
    ],
)
def test_labeled_cycles_end_with_two_supervised_updates(options, is_labeled, length):
    cycle = [(is_labeled, place) for place in range(length)]
    assert places(DualNet(DualNet.Config(**options)), 3 * length) == 3 * cycle


@pytest.mark.parametrize(
    ("pools", "is_labeled"),
    [(("labeled", "memory"), True), (("memory",), True), (("labeled",), True), (("unlabeled",), False)],
)
def test_a_cycle_falls_back_on_the_pool_that_has_images(pools, is_labeled):
    assert {found for found, _ in places(DualNet(DualNet.Config()), 60, pools)} == {is_labeled}


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_coin_is_labeled_as_often_as_the_threshold_says(threshold):
    found = places(DualNet(DualNet.Config(threshold=threshold)), 800)
    cycles = [is_labeled for is_labeled, place in found if place == 0]
    assert np.mean(cycles) == pytest.approx(threshold, abs=0.08)
    # The cycles follow one another without a gap.
    for (was_labeled, before), (is_labeled, place) in itertools.pairwise(found):
        assert (is_labeled, place) == (was_labeled, before + 1) or (place == 0 and before == (5 if was_labeled else 3))


def test_micro_batches_of_an_update_are_of_one_kind_and_time_steps_differ():
    method = DualNet(DualNet.Config())
    assert places(method, 50, micro=3) == places(method, 50)
    assert places(method, 50, t=3) != places(method, 50)


def test_phases_leave_enough_for_the_soft_targets(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", width=WIDTH))
    phase, sweep = segments(learner.method, learner.stream.steps[1])
    assert phase.reserve == Reserve(forward=8, flops=8 * (forward_flops(96, 4, 4) + 2 * 96 * 4))
    assert phase.mix.counts(6, pools_of(learner.stream, 2, phase.mix)) == {"unlabeled": 2, "labeled": 2, "memory": 2}
    assert phase.mix.counts(6, pools_of(learner.stream, 1, phase.mix)) == {"unlabeled": 2, "labeled": 4}
    assert sweep == Sweep(name="soft targets", pool="labeled")


def test_a_single_image_without_a_memory_is_let_be(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", width=WIDTH))
    first, second, _ = learner.stream.steps
    none = first.labeled[:0]
    assert segments(learner.method, replace(first, labeled=first.labeled[:1], unlabeled=none)) == ()
    assert segments(learner.method, replace(first, labeled=none, unlabeled=none)) == ()
    later = replace(second, labeled=none, labels=none, unlabeled=none, new_classes=())
    assert [segment.name for segment in segments(learner.method, later)] == ["cycles"]


# Look-ahead.


def watch_blends(learner):
    """Keep for every look-ahead the anchor, where the updates led, and what was kept of it."""
    seen = []
    blend = learner.net.blend

    def watch(anchor, share):
        led = {name: value.clone() for name, value in learner.net.weights(live=False).items()}
        blend(anchor, share)
        if anchor:
            seen.append((dict(anchor), led, learner.net.copy()))

    learner.net.blend = watch
    return seen


def test_a_look_ahead_keeps_its_share_of_the_way(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget="9", width=WIDTH, beta=0.25))
    seen = watch_blends(learner)
    run_through(learner)
    assert len(seen) > 6
    for anchor, led, kept in seen:
        assert set(anchor) == {name for name in led if name.startswith("encoder.")}
        assert any(not torch.equal(anchor[name], led[name]) for name in anchor)
        for name, value in kept.items():
            wanted = anchor[name] + 0.25 * (led[name] - anchor[name]) if name in anchor else led[name]
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-7)


def test_each_look_ahead_spans_its_inner_updates(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget="14", width=WIDTH, threshold=1.0, inner=3, outer=1))
    seen, ended = watch_blends(learner), []
    after_update = learner.method.after_update

    def watch(net, phase):
        after_update(net, phase)
        ended.append(len(seen))

    learner.method.after_update = watch
    next(learn(learner))
    # Cycles of three updates on views and two on labels: the third of each cycle ends a look-ahead.
    whole = len(ended) // 5 * 5
    assert whole >= 5
    assert [b - a for a, b in itertools.pairwise([0, *ended])][:whole] == [0, 0, 1, 0, 0] * (whole // 5)


def test_with_a_beta_of_one_updates_are_plain_to_the_last_bit(blobs):
    config = tiny_config(blobs, "dualnet", budget="6", width=WIDTH, beta=1.0)
    one, other = tiny_learner(config), tiny_learner(config)
    other.method._end_look_ahead = lambda net: None
    run_through(one)
    run_through(other)
    assert equal(weights(one), weights(other))
    slower = run_through(tiny_learner(tiny_config(blobs, "dualnet", budget="6", width=WIDTH)))
    assert not equal(weights(one), weights(slower))


@pytest.mark.parametrize(
    ("budget", "options"),
    [
        ("6", {"threshold": NEVER}),
        ("4.5", {"threshold": NEVER}),
        # Look-aheads are longer than any time step: the budget cuts each short, and it ends before the soft targets.
        ("5", {"inner": 50}),
    ],
)
def test_with_a_beta_of_zero_views_leave_the_encoder_as_it_was(blobs, budget, options):
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget=budget, width=WIDTH, beta=0.0, **options))
    before, projector = weights(learner), learner.method.modules()["projector"][0].weight.clone()
    run_through(learner)
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("encoder"))
    assert not torch.equal(learner.method.modules()["projector"][0].weight, projector)
    assert set(learner.method.state()) == {"rows", "labels", "values"}


def test_a_state_amid_a_look_ahead_is_complete(blobs):
    learner, other = (fixed_learner(blobs, "dualnet", width=WIDTH) for _ in range(2))
    first, second = (replace(fixed_batch(unlabeled=None), key=(7, 2, 0, update, 0)) for update in range(2))
    learner.method.store.add(**first.memory.with_values(torch.eye(5, 3).double()))
    learner.method.optimizer_name(learner.net, first.key, [part.pool for part in first.parts])
    losses_of(learner, first)
    state = {name: value.clone() for name, value in learner.method.state().items()}
    assert equal({n: v for n, v in state.items() if n.startswith("encoder.")}, learner.method._anchor)
    other.method.load_state(state)
    nudge(learner)
    other.network.load_state_dict(learner.network.state_dict())
    for each in (learner, other):
        each.method.optimizer_name(each.net, second.key, [part.pool for part in second.parts])
        losses_of(each, second)
        each.method.after_update(each.net, Phase(name="cycles", mix=Mix()))
    assert equal(weights(learner), weights(other))
    assert not other.method._anchor
    assert torch.equal(other.method.store.find(first.memory.rows), learner.method.store.find(first.memory.rows))
