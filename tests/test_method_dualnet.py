"""DualNet: the fast branch, the cycles, look-ahead, soft targets, and what they cost."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods.base import Phase, Reserve, Sweep
from dietcl.methods.dualnet import DualNet
from dietcl.methods.pieces.fast_branch import forward_flops
from dietcl.streams.mix import Mix
from dietcl.streams.sampler import pools_of
from fixed import CURRENT, KEY, compare, fixed_batch, fixed_learner, part
from plain import plain_block, plain_cross_entropy, plain_patches
from test_method_cassle import nudge, plain_barlow, plain_features, plain_perceptron
from tiny import tiny_config, tiny_learner
from watching import equal, run_through, updates_of, weights

WIDTH = 6
NEVER = 1e-12  # as a probability of labeled cycles


@pytest.fixture
def learner_of(blobs):
    return partial(fixed_learner, blobs, "dualnet", width=WIDTH)


def at(batch, update, micro=0):
    return replace(batch, key=(*KEY[:3], update, micro))


# Plain implementations.


def plain_stages(images, weights):
    """Return the normed patch tokens after each of the four blocks as maps."""
    patches = plain_patches(images).permute(0, 1, 4, 2, 3).flatten(2)
    tokens = patches @ weights["encoder.vit.patch_embed.proj.weight"].flatten(1).T
    tokens = tokens + weights["encoder.vit.patch_embed.proj.bias"] + weights["encoder.vit.pos_embed"][:, 1:]
    first = (weights["encoder.vit.cls_token"] + weights["encoder.vit.pos_embed"][:, :1]).expand(len(images), -1, -1)
    x = torch.cat([first, tokens], dim=1)
    maps = []
    for block in range(4):
        x = plain_block(x, weights, f"encoder.vit.blocks.{block}", heads=3)
        normed = F.layer_norm(x, (96,), weights["encoder.vit.norm.weight"], weights["encoder.vit.norm.bias"], 1e-6)
        maps.append(normed[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2))
    return maps


def plain_branch(images, maps, weights):
    """Run the fast branch by shifting maps about."""
    patches = plain_patches(images).permute(0, 1, 4, 2, 3).flatten(2)
    tokens = patches @ weights["module branch.stem.weight"].flatten(1).T + weights["module branch.stem.bias"]
    fast = tokens.unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    for number, slow in enumerate(maps):
        stage = f"module branch.stages.{number}"
        fast = fast * (fast > 0)
        framed = torch.zeros(*fast.shape[:2], 6, 6, dtype=fast.dtype)
        framed[:, :, 1:5, 1:5] = fast
        kernel = weights[f"{stage}.0.weight"]
        mixed = sum(
            torch.einsum("oi,bihw->bohw", kernel[:, :, i, j], framed[:, :, i : i + 4, j : j + 4])
            for i in range(3)
            for j in range(3)
        )
        mixed = mixed + weights[f"{stage}.0.bias"][:, None, None]
        across = torch.einsum("oi,bihw->bohw", weights[f"{stage}.1.weight"][:, :, 0, 0], mixed)
        fast = slow * (1 + across + weights[f"{stage}.1.bias"][:, None, None])
    return fast.sum((2, 3)) / 16


def plain_dual_logits(images, weights):
    features = plain_branch(images, plain_stages(images, weights), weights)
    return features @ weights["head.weight"].T + weights["head.bias"]


def unmixed(part):
    """Return a remembered part's view, every label whole."""
    return replace(part, images=part.view("replay"), partners=part.labels, weight=torch.ones(len(part)))


def plain_divergence(logits, targets, temperature):
    """Compare a list of stored logits, of a length of their own each, with as many of the logits."""
    terms = []
    for row, target in zip(logits, targets, strict=True):
        if target is None:
            continue
        q = [math.exp(value / temperature) for value in target]
        p = [(value / temperature).exp() for value in row[: len(target)]]
        for one, other in zip(q, p, strict=True):
            terms.append(one / sum(q) * (math.log(one / sum(q)) - (other / sum(p)).log()))
    return sum(terms) / len(terms)


def views(*parts):
    def loss(weights):
        one, two = (
            plain_perceptron(
                plain_features(torch.cat([part.view(name, True) for part in parts]), weights), weights, "projector", 3
            )
            for name in ("one", "two")
        )
        return plain_barlow(one, two, 2e-3, 1 / WIDTH)

    return loss


# Losses.


def test_the_loss_on_views_equals_the_plain_implementation(learner_of):
    batch = fixed_batch()
    expected = {"views": (1.0, views(batch.labeled, batch.memory))}
    compare(learner_of(threshold=1.0), at(batch, 3), expected, phase="cycles")
    expected = {"views": (1.0, views(batch.unlabeled, batch.memory))}
    compare(learner_of(threshold=NEVER), at(batch, 3), expected, phase="cycles")
    expected = {"views": (1.0, views(batch.unlabeled))}
    compare(learner_of(), at(fixed_batch(labeled=None, memory=None), 3), expected, phase="cycles")


TARGETS = [[0.3, -1.0, 2.0], None, [1.5, 0.2, -0.4], [0.1, 0.2, 0.3, -2.0, 1.0], None]


def remember(learner, batch):
    """Store soft targets for three of the remembered images, as known at two earlier time steps."""
    for width in (3, 5):
        for i, target in enumerate(TARGETS):
            if target is not None and len(target) == width:
                learner.method._soft.add(batch.memory.take(slice(i, i + 1)), torch.tensor([target]).double())


@pytest.mark.parametrize("strategy", ["task_free", "task_aware"])
def test_the_losses_on_labels_equal_the_plain_implementation(learner_of, strategy):
    learner, batch = learner_of(threshold=1.0, strategy=strategy, soft_weight=7.0, temperature=3.0), fixed_batch()
    nudge(learner)
    remember(learner, batch)
    memory = unmixed(batch.memory)
    only = CURRENT if strategy == "task_aware" else None
    expected = {
        "labeled": (
            1.0,
            lambda w: plain_cross_entropy(plain_dual_logits(batch.labeled.images, w), batch.labeled, only),
        ),
        "memory": (1.0, lambda w: plain_cross_entropy(plain_dual_logits(memory.images, w), memory)),
        "soft targets": (7.0, lambda w: plain_divergence(plain_dual_logits(memory.images, w), TARGETS, 3.0)),
    }
    compare(learner, at(batch, 4), expected, phase="cycles")


def test_losses_on_one_pool_of_labels_equal_the_plain_implementation(learner_of):
    for missing in ("labeled", "memory"):
        learner, batch = learner_of(), fixed_batch(unlabeled=None, **{missing: None})
        nudge(learner)
        found = batch.labeled if missing == "memory" else unmixed(batch.memory)
        expected = {found.pool: (1.0, lambda w, p=found: plain_cross_entropy(plain_dual_logits(p.images, w), p))}
        compare(learner, at(batch, 5), expected, phase="cycles")


def test_a_task_aware_loss_leaves_other_classes_alone(learner_of):
    batch = at(fixed_batch(unlabeled=None, memory=None), 4)
    for strategy, moved in (("task_aware", [False, True, False, True, True]), ("task_free", [True] * 5)):
        learner = learner_of(strategy=strategy)
        (term,) = learner.method.losses(learner.net, Phase(name="cycles", mix=Mix()), batch)
        term.value.backward()
        assert (learner.network.head.weight.grad.abs().sum(1) > 0).tolist() == moved


def test_hand_values_of_the_divergence():
    method = DualNet(DualNet.Config())
    uniform, skewed = torch.zeros(1, 2), torch.tensor([[2 * math.log(3), 0.0]])  # 3 : 1 at temperature 2
    by_hand = (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)) / 2
    assert float(method._divergence(uniform, skewed)) == pytest.approx(by_hand)
    assert float(method._divergence(skewed, skewed + 5)) == pytest.approx(0, abs=1e-7)
    # A class that came later plays no part; one more class with no probability makes the mean smaller.
    later = torch.tensor([[2 * math.log(3), 0.0, 9.0]])
    assert float(method._divergence(uniform, later)) == pytest.approx(by_hand)
    unlike = torch.tensor([[-1000.0]])
    wider = method._divergence(torch.cat([uniform, unlike], 1), torch.cat([skewed, unlike], 1))
    assert float(wider) == pytest.approx(by_hand * 2 / 3)


def test_the_divergence_vanishes_with_its_gradient_where_the_network_says_what_is_stored(learner_of):
    learner, batch = learner_of(threshold=1.0), fixed_batch(labeled=None)
    view = replace(batch.memory, images=batch.memory.view("replay"))
    learner.method.gather(learner.net, Sweep(name="soft targets", pool="labeled"), view)
    assert len(learner.method._soft) == 5
    terms = {term.name: term for term in learner.method.losses(learner.net, Phase(name="", mix=Mix()), at(batch, 4))}
    terms["soft targets"].value.backward()
    assert terms["soft targets"].value.item() == pytest.approx(0, abs=1e-12)
    assert max(float(value.grad.abs().max()) for value in learner.network.head.parameters()) < 1e-12


def test_without_soft_targets_nothing_is_stored_or_compared(learner_of, blobs):
    learner, batch = learner_of(threshold=1.0, soft_weight=0.0), fixed_batch()
    remember(learner, batch)
    terms = learner.method.losses(learner.net, Phase(name="cycles", mix=Mix()), at(batch, 4))
    assert {term.name for term in terms} == {"labeled", "memory"}
    learner = run_through(tiny_learner(tiny_config(blobs, "dualnet", budget="5", width=WIDTH, soft_weight=0.0)))
    assert not len(learner.method._soft)
    assert {item.purpose for item in learner.ledger.closed[2].items}.isdisjoint({"soft targets"})


# The fast branch.


def test_the_branch_passes_features_through_at_the_start(learner_of):
    learner, images = learner_of(), part("unlabeled", [0] * 7, 9).images
    with torch.no_grad(), learner.ledger.free():
        torch.testing.assert_close(learner.method.predict(learner.net, images), learner.net.scores(images))
        nudge(learner)
        difference = learner.method.predict(learner.net, images) - learner.net.scores(images)
        assert float(difference.abs().min()) > 0
        state = {
            f"module branch.{key}": value for key, value in learner.method.modules()["branch"].state_dict().items()
        }
        expected = plain_dual_logits(images, learner.network.state_dict() | state)
        torch.testing.assert_close(learner.method.predict(learner.net, images), expected)


def test_labels_train_both_networks_and_views_the_slow_one_alone(learner_of):
    moved = {}
    for update in (0, 4):
        learner = learner_of(threshold=1.0)
        nudge(learner)
        terms = learner.method.losses(learner.net, Phase(name="cycles", mix=Mix()), at(fixed_batch(), update))
        sum(term.value for term in terms).backward()
        modules = {"encoder": learner.network.encoder, "head": learner.network.head, **learner.method.modules()}
        moved[update] = {name for name, module in modules.items() if next(module.parameters()).grad is not None}
    assert moved == {0: {"encoder", "projector"}, 4: {"encoder", "head", "branch"}}


# Cycles.


def place(method, batch):
    return method._place(batch.key, [part.pool for part in batch.parts])


def kinds(method, batch, number):
    """Return for each update whether its cycle is labeled and its place in it."""
    return [place(method, at(batch, update)) for update in range(number)]


def test_labeled_cycles_end_with_two_supervised_updates():
    labeled = [(True, place) for place in range(6)]
    unlabeled = [(False, place) for place in range(4)]
    assert kinds(DualNet(DualNet.Config(threshold=1.0)), fixed_batch(), 18) == 3 * labeled
    assert kinds(DualNet(DualNet.Config(threshold=NEVER)), fixed_batch(), 12) == 3 * unlabeled
    long = DualNet(DualNet.Config(threshold=1.0, outer=3, inner=5))
    assert kinds(long, fixed_batch(), 34) == 2 * [(True, place) for place in range(17)]


def test_a_cycle_falls_back_on_the_pool_that_has_images():
    method = DualNet(DualNet.Config())
    for without in ({}, {"labeled": None}, {"memory": None}):
        assert all(is_labeled for is_labeled, _ in kinds(method, fixed_batch(unlabeled=None, **without), 60))
    assert not any(is_labeled for is_labeled, _ in kinds(method, fixed_batch(labeled=None, memory=None), 60))


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_coin_is_labeled_as_often_as_the_threshold_says(threshold):
    found = kinds(DualNet(DualNet.Config(threshold=threshold)), fixed_batch(), 800)
    cycles = [is_labeled for is_labeled, place in found if place == 0]
    assert np.mean(cycles) == pytest.approx(threshold, abs=0.08)
    # The cycles follow one another without a gap.
    for (was_labeled, before), (is_labeled, place) in itertools.pairwise(found):
        assert (is_labeled, place) == (was_labeled, before + 1) or (place == 0 and before == (5 if was_labeled else 3))


def test_micro_batches_of_an_update_are_of_one_kind_and_time_steps_differ():
    method = DualNet(DualNet.Config())
    assert all(place(method, at(fixed_batch(), u, 3)) == place(method, at(fixed_batch(), u)) for u in range(50))
    other = [place(method, replace(fixed_batch(), key=(7, 3, 0, update, 0))) for update in range(50)]
    assert other != kinds(method, fixed_batch(), 50)


def test_phases_leave_enough_for_the_soft_targets(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", width=WIDTH))
    step = learner.stream.steps[1]
    phase = learner.method.next_phase(step, (), 3.0)
    flops = 8 * (forward_flops(96, 4, 4) + 2 * 96 * 4)
    assert phase.reserve == Reserve(forward=8, flops=flops)
    assert phase.mix.counts(6, pools_of(learner.stream, 2, phase.mix)) == {"unlabeled": 2, "labeled": 2, "memory": 2}
    assert phase.mix.counts(6, pools_of(learner.stream, 1, phase.mix)) == {"unlabeled": 2, "labeled": 4}
    sweep = learner.method.next_phase(step, (phase,), 1.0)
    assert sweep == Sweep(name="soft targets", pool="labeled")
    assert learner.method.next_phase(step, (phase, sweep), 1.0) is None


def test_a_single_image_without_a_memory_is_let_be(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", width=WIDTH))
    step = learner.stream.steps[0]
    none = step.labeled[:0]
    assert learner.method.next_phase(replace(step, labeled=step.labeled[:1], unlabeled=none), (), 3.0) is None
    assert learner.method.next_phase(replace(step, labeled=none, unlabeled=none), (), 3.0) is None
    later = replace(learner.stream.steps[1], labeled=none, labels=none, unlabeled=none, new_classes=())
    phase = learner.method.next_phase(later, (), 3.0)
    assert learner.method.next_phase(later, (phase,), 3.0) is None


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
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget="14", width=WIDTH, beta=0.25))
    seen = watch_blends(learner)
    run_through(learner)
    assert len(seen) > 10
    for anchor, led, kept in seen:
        assert set(anchor) == {name for name in led if name.startswith("encoder.")}
        assert any(not torch.equal(anchor[name], led[name]) for name in anchor)
        for name, value in kept.items():
            wanted = anchor[name] + 0.25 * (led[name] - anchor[name]) if name in anchor else led[name]
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-7)


def test_each_look_ahead_spans_its_inner_updates(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget="14", width=WIDTH, threshold=1.0, inner=3, outer=1))
    seen, places = watch_blends(learner), []
    after_update = learner.method.after_update

    def watch(net, phase):
        after_update(net, phase)
        places.append(len(seen))

    learner.method.after_update = watch
    next(learn(learner))
    # Cycles of three updates on views and two on labels: the third of each cycle ends a look-ahead.
    whole = len(places) // 5 * 5
    assert whole >= 5
    assert [b - a for a, b in zip([0, *places], places, strict=False)][:whole] == [0, 0, 1, 0, 0] * (whole // 5)


def test_with_a_beta_of_one_updates_are_plain_to_the_last_bit(blobs):
    config = tiny_config(blobs, "dualnet", budget="6", width=WIDTH, beta=1.0)
    one, other = tiny_learner(config), tiny_learner(config)
    other.method._look_back = lambda net: None
    run_through(one)
    run_through(other)
    assert equal(weights(one), weights(other))
    slower = run_through(tiny_learner(tiny_config(blobs, "dualnet", budget="6", width=WIDTH)))
    assert not equal(weights(one), weights(slower))


@pytest.mark.parametrize("budget", ["6", "4.5"])
def test_with_a_beta_of_zero_views_leave_the_encoder_as_it_was(blobs, budget):
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget=budget, width=WIDTH, beta=0.0, threshold=NEVER))
    before, projector = weights(learner), learner.method.modules()["projector"][0].weight.clone()
    run_through(learner)
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("encoder"))
    assert not torch.equal(learner.method.modules()["projector"][0].weight, projector)


def test_a_look_ahead_that_the_budget_cuts_short_is_ended_before_the_soft_targets(blobs):
    # Look-aheads are longer than any time step, so each is cut short.
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget="5", width=WIDTH, inner=50, beta=0.0))
    before = weights(learner)
    run_through(learner)
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("encoder"))
    assert set(learner.method.state()) == {"rows", "labels", "values"}


def test_a_state_amid_a_look_ahead_is_complete(learner_of):
    learner, batch, other = learner_of(), fixed_batch(unlabeled=None), learner_of()
    remember(learner, batch)
    list(learner.method.losses(learner.net, Phase(name="cycles", mix=Mix()), at(batch, 0)))
    state = {name: value.clone() for name, value in learner.method.state().items()}
    assert equal({n: v for n, v in state.items() if n.startswith("encoder.")}, learner.method._anchor)
    other.method.load_state(state)
    nudge(learner)
    other.network.load_state_dict(learner.network.state_dict())
    for each in (learner, other):
        list(each.method.losses(each.net, Phase(name="cycles", mix=Mix()), at(batch, 1)))
        each.method.after_update(each.net, Phase(name="cycles", mix=Mix()))
    assert equal(weights(learner), weights(other))
    assert not other.method._anchor
    assert torch.equal(other.method._soft.find(batch.memory.rows), learner.method._soft.find(batch.memory.rows))


# Cost.


def test_the_branch_costs_what_its_formula_says(learner_of):
    learner = learner_of()
    learner.method.gather(learner.net, Sweep(name="soft targets", pool="labeled"), fixed_batch().memory)
    items = {(item.purpose, item.operation): item for item in learner.ledger.close().items}
    assert items["soft targets", "forward"].passes == pytest.approx(5 / 3)
    assert items["fast", "module"].flops == 5 * forward_flops(96, 4, 4)
    assert items["head", "head_forward"].flops == 5 * 2 * 96 * 5
    assert len(items) == 3


@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_receipts_name_views_labels_the_branch_and_the_soft_targets(blobs, accounting):
    config = tiny_config(blobs, "dualnet", budget="10", width=32, threshold=1.0)
    learner = tiny_learner(replace(config, accounting=accounting))
    made = Counter(
        (event["t"], "views" if event["loss"].keys() == {"views"} else "labels") for event in updates_of(learner)
    )
    project = 2 * (96 * 32 + 32 * 32 + 32 * 32)
    for receipt in learner.ledger.closed:
        items = {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}
        # Of 6 images 2 are unlabeled and not looked at in a labeled cycle; both views of the others are.
        on_views, on_labels = 2 * 8 * made[receipt.t, "views"], 8 * made[receipt.t, "labels"]
        assert made[receipt.t, "views"] > made[receipt.t, "labels"] > 0
        # The last update may be paid in part and not applied.
        paid, applied = items["views", "train"], on_views
        assert paid.images - applied in (0, 8)
        assert paid.passes == paid.images
        correlation = 6 * 32**2 * paid.images / 2  # of pairs
        assert items["projector", "module"].flops == pytest.approx(3 * project * paid.images + correlation, rel=1e-6)
        assert items["labels", "train"].images - on_labels in (0, 4)
        assert items["labels", "train"].passes == items["labels", "train"].images
        targets = items["soft targets", "forward"]
        forward = 1 / 3
        if accounting == "flops":
            forward = learner.ledger.cost.flops("forward", receipt.classes) / receipt.pass_flops
        assert (targets.images, targets.passes) == (8, pytest.approx(8 * forward))
        assert items["fast", "module"].images == 8 + items["labels", "train"].images
        # A train pass of the branch is a forward and twice that, but for the gradient of the image.
        branch, stem = forward_flops(96, 4, 4), 2 * 16 * 3 * 16 * 96
        trained = items["labels", "train"].images
        assert items["fast", "module"].flops == 8 * branch + trained * (3 * branch - stem)
        assert items["head", "head_train"].images == trained
        assert items["head", "head_forward"].images == 8
        assert receipt.spent <= receipt.budget * (1 + 1e-9)
    assert len(learner.method._soft) == 24


def test_every_label_of_a_small_budget_gets_its_soft_targets(blobs):
    for budget in ("2", "3", "4.3"):
        learner = run_through(tiny_learner(tiny_config(blobs, "dualnet", budget=budget, width=WIDTH)))
        assert len(learner.method._soft) == 24
        stored = learner.method._soft.values
        assert (~stored.isnan()).sum(1).tolist() == [2] * 8 + [4] * 8 + [6] * 8


# Options.


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("beta", (-0.1, 1.1, math.nan)),
        ("outer", (0,)),
        ("inner", (0, -2)),
        ("width", (0,)),
        ("soft_weight", (-1, math.inf, math.nan)),
        ("temperature", (0, -1, math.inf)),
        ("threshold", (0, -1, 1.5, math.nan)),
    ],
)
def test_impossible_options_are_refused(option, values):
    for value in values:
        with pytest.raises(UserError, match=f"--{option.replace('_', '-')} "):
            DualNet.Config(**{option: value})
