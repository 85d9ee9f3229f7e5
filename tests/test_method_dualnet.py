"""DualNet: losses, the fast branch, soft targets and their cost; its cycles are in test_method_dualnet_cycles.py."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from dietcl.errors import UserError
from dietcl.methods.base import Sweep
from dietcl.methods.dualnet import DualNet, forward_flops
from helpers.fixed_batch import CURRENT, KEY, compare, fixed_batch, fixed_learner, losses_of, nudge, part
from helpers.recording import paid, run_through, take_in, updates_of
from helpers.reference_losses import plain_cross_entropy, plain_divergence, plain_dual_logits, plain_views
from helpers.tiny import tiny_config, tiny_learner

WIDTH = 6
NEVER = 1e-12  # as a probability of labeled cycles
TARGETS = [[0.3, -1.0, 2.0], None, [1.5, 0.2, -0.4], [0.1, 0.2, 0.3, -2.0, 1.0], None]


@pytest.fixture
def learner_of(blobs):
    return partial(fixed_learner, blobs, "dualnet", width=WIDTH)


def at(batch, update):
    """FileRoot a batch amid its cycle: of a labeled one, the updates 0 to 3 are on views, and 4 and 5 on labels."""
    return replace(batch, key=(*KEY[:3], update, 0))


def unmixed(part):
    """Return a remembered part's view, every label whole."""
    return replace(part, images=part.view("replay"), partners=part.labels, weight=torch.ones(len(part)))


def cross_entropy(part, only=None):
    return lambda weights: plain_cross_entropy(plain_dual_logits(part.images, weights), part, only)


def remember(learner, batch):
    """Store soft targets for three of the remembered images, as known at two earlier time steps."""
    for width in (3, 5):
        for i, target in enumerate(TARGETS):
            if target is not None and len(target) == width:
                learner.method.store.add(
                    **batch.memory.take(slice(i, i + 1)).with_values(torch.tensor([target]).double())
                )


# Losses.


@pytest.mark.parametrize(
    ("threshold", "pools"), [(1.0, ["labeled", "memory"]), (NEVER, ["unlabeled", "memory"]), (0.5, ["unlabeled"])]
)
def test_the_loss_on_views_equals_the_plain_implementation(learner_of, threshold, pools):
    batch = fixed_batch() if "memory" in pools else fixed_batch(labeled=None, memory=None)
    parts = [getattr(batch, pool) for pool in pools]
    expected = {"views": (1.0, lambda w: plain_views(parts, w, 2e-3, 1 / WIDTH))}
    compare(learner_of(threshold=threshold), at(batch, 3), expected, phase="cycles")


@pytest.mark.parametrize("strategy", ["task_free", "task_aware"])
def test_the_losses_on_labels_equal_the_plain_implementation(learner_of, strategy):
    learner, batch = learner_of(threshold=1.0, strategy=strategy, soft_weight=7.0, temperature=3.0), fixed_batch()
    nudge(learner)
    remember(learner, batch)
    memory = unmixed(batch.memory)
    expected = {
        "labeled": (1.0, cross_entropy(batch.labeled, CURRENT if strategy == "task_aware" else None)),
        "memory": (1.0, cross_entropy(memory)),
        "soft targets": (7.0, lambda w: plain_divergence(plain_dual_logits(memory.images, w), TARGETS, 3.0)),
    }
    compare(learner, at(batch, 4), expected, phase="cycles")


@pytest.mark.parametrize("missing", ["labeled", "memory"])
def test_losses_on_one_pool_of_labels_equal_the_plain_implementation(learner_of, missing):
    learner, batch = learner_of(), fixed_batch(unlabeled=None, **{missing: None})
    nudge(learner)
    found = batch.labeled if missing == "memory" else unmixed(batch.memory)
    compare(learner, at(batch, 5), {found.pool: (1.0, cross_entropy(found))}, phase="cycles")


@pytest.mark.parametrize(
    ("strategy", "moved"), [("task_aware", [False, True, False, True, True]), ("task_free", [True] * 5)]
)
def test_a_task_aware_loss_leaves_other_classes_alone(learner_of, strategy, moved):
    learner = learner_of(strategy=strategy)
    losses_of(learner, at(fixed_batch(unlabeled=None, memory=None), 4))["labeled"].value.backward()
    assert (learner.network.head.weight.grad.abs().sum(1) > 0).tolist() == moved


def test_labels_train_both_networks_and_views_the_slow_one_alone(learner_of):
    moved = {}
    for update in (0, 4):
        learner = learner_of(threshold=1.0)
        nudge(learner)
        sum(term.value for term in losses_of(learner, at(fixed_batch(), update)).values()).backward()
        modules = {"encoder": learner.network.encoder, "head": learner.network.head, **learner.method.modules()}
        moved[update] = {name for name, module in modules.items() if next(module.parameters()).grad is not None}
    assert moved == {0: {"encoder", "projector"}, 4: {"encoder", "head", "branch"}}


def test_the_branch_passes_features_through_at_the_start(learner_of):
    learner, images = learner_of(), part("unlabeled", [0] * 7, 9).images
    with torch.no_grad(), learner.ledger.free():
        torch.testing.assert_close(learner.method.predict(learner.net, images), learner.net.scores(images))
        nudge(learner)
        found = learner.method.predict(learner.net, images)
        assert float((found - learner.net.scores(images)).abs().min()) > 0
        branch = learner.method.modules()["branch"].state_dict()
        state = learner.network.state_dict() | {f"module branch.{key}": value for key, value in branch.items()}
        torch.testing.assert_close(found, plain_dual_logits(images, state))


# Soft targets.


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
    take_in(learner, Sweep(name="soft targets", pool="labeled"), view)
    assert len(learner.method.store) == 5
    term = losses_of(learner, at(batch, 4))["soft targets"]
    term.value.backward()
    assert term.value.item() == pytest.approx(0, abs=1e-12)
    assert max(float(value.grad.abs().max()) for value in learner.network.head.parameters()) < 1e-12


def test_without_soft_targets_nothing_is_stored_or_compared(learner_of, blobs):
    learner, batch = learner_of(threshold=1.0, soft_weight=0.0), fixed_batch()
    remember(learner, batch)
    assert losses_of(learner, at(batch, 4)).keys() == {"labeled", "memory"}
    learner = run_through(tiny_learner(tiny_config(blobs, "dualnet", budget="2", width=WIDTH, soft_weight=0.0)))
    assert not len(learner.method.store)
    assert {item.purpose for item in learner.ledger.closed[2].items}.isdisjoint({"soft targets"})


@pytest.mark.parametrize("budget", ["2", "3", "4.3"])
def test_every_label_of_a_small_budget_gets_its_soft_targets(blobs, budget):
    learner = run_through(tiny_learner(tiny_config(blobs, "dualnet", budget=budget, width=WIDTH)))
    stored = learner.method.store.values
    assert (~stored.isnan()).sum(1).tolist() == [2] * 8 + [4] * 8 + [6] * 8


# Cost; prices are held against arithmetic in test_costs.py.


def test_receipts_name_views_labels_the_branch_and_the_soft_targets(blobs):
    learner = tiny_learner(tiny_config(blobs, "dualnet", budget="10", width=32, threshold=1.0))
    made = Counter((event["t"], "views" in event["loss"]) for event in updates_of(learner))
    project = 2 * (96 * 32 + 32 * 32 + 32 * 32)
    branch, stem = forward_flops(96, 4, 4), 2 * 16 * 3 * 16 * 96
    for receipt in learner.ledger.closed:
        items = paid(receipt)
        views, labels = items["views", "train"].images, items["labels", "train"].images
        # Of 12 images 4 are unlabeled and not looked at in a labeled cycle; both views of the others are.
        # The last update may be paid in part and not applied.
        assert made[receipt.t, True] > made[receipt.t, False] > 0
        assert views - 2 * 8 * made[receipt.t, True] in (0, 8)
        assert labels - 8 * made[receipt.t, False] in (0, 4)
        assert {key: item.images for key, item in items.items()} == {
            ("views", "train"): views,
            ("projector", "module"): views,
            ("labels", "train"): labels,
            ("fast", "module"): labels + 8,
            ("head", "head_train"): labels,
            ("soft targets", "forward"): 8,
            ("head", "head_forward"): 8,
        }
        # Pairs of views have a product of 32 by 32, with the gradients of both factors.
        assert items["projector", "module"].flops == pytest.approx(views * (3 * project + 3 * 32**2), rel=1e-6)
        # A train pass of the branch is a forward and twice that, but for the gradient of the image.
        assert items["fast", "module"].flops == 8 * branch + labels * (3 * branch - stem)
        assert items["head", "head_forward"].flops == 8 * 2 * 96 * receipt.classes


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
