"""EWC and MAS: importance, penalty and gradient against plain implementations, limits and prices."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods.base import Phase, Sweep
from dietcl.streams.batch import Part
from helpers.fixed_batch import compare, fixed_batch, fixed_learner
from helpers.recording import equal, run_through, take_in, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_logits
from helpers.tiny import tiny_config, tiny_learner

SWEEPS = {"ewc": "fisher", "mas": "importance"}
METHODS = pytest.mark.parametrize("method", SWEEPS)
KEPT = pytest.mark.parametrize(("method", "options"), [("ewc", {}), ("ewc", {"online": True}), ("mas", {})])
MEASURES = pytest.mark.parametrize(("method", "options"), [("ewc", {}), ("ewc", {"fisher": "batch_mean"}), ("mas", {})])


def plain_images(labels, seed):
    images = torch.rand(len(labels), 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Part("labeled", images * 4 - 2, torch.tensor(labels), rows=torch.arange(len(labels)))


PARTS = [plain_images([1, 3, 4], 1), plain_images([2], 2)]
LATER = [plain_images([5, 6, 0], 5)]


def move(learner, seed):
    """Shift every weight, as updates would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in learner.network.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def trained(learner):
    """Return copies of the weights that a penalty may hold."""
    return {name: value for name, value in weights(learner).items() if name in learner.net.weights()}


def pair_of(learner):
    (pair,) = learner.method._pairs
    return pair


def learn_step(learner, parts):
    """Do what a time step does after its last update."""
    for part in parts:
        take_in(learner, Sweep(name=learner.method.sweep, pool="labeled"), part)
    learner.method.end_step(learner.net, learner.stream.steps[1])


def losses_of(learner):
    return {term.name: term for term in learner.method.losses(learner.net, None, fixed_batch())}


def close(one, other, tolerance=1e-9):
    assert one.keys() == other.keys()
    for name in one:
        assert float((one[name] - other[name]).abs().max()) <= tolerance * max(1.0, float(other[name].abs().max()))


def plain_surprise(part, logits):
    """Return the mean cross-entropy of the true labels."""
    own = [logits[i].exp().sum().log() - logits[i, label] for i, label in enumerate(part.labels)]
    return sum(own) / len(part)


def plain_length(part, logits):
    """Return the mean over images of the sum of squared outputs."""
    return sum(logits[i, c] ** 2 for i in range(len(part)) for c in range(logits.shape[1])) / len(part)


def plain_importance(learner, parts):
    """Average squared gradients of every image or of every part's mean (EWC), or parts' absolute gradients (MAS)."""
    is_ewc = learner.config.method == "ewc"
    if is_ewc and learner.method.config.fisher == "per_sample":
        parts = [part.take(slice(i, i + 1)) for part in parts for i in range(len(part))]
    names = list(learner.net.weights())
    at = {name: value.requires_grad_(name in names) for name, value in weights(learner).items()}
    total = {name: torch.zeros_like(at[name]) for name in names}
    for part in parts:
        loss = (plain_surprise if is_ewc else plain_length)(part, plain_logits(part.images, at))
        found = torch.autograd.grad(loss, [at[name] for name in names], materialize_grads=True)
        for name, gradient in zip(names, found, strict=True):
            total[name] += (gradient**2 if is_ewc else gradient.abs()) / len(parts)
    return total


def plain_penalty(pairs):
    """Add over all pairs and weights; rows that came after a pair have no importance in it."""

    def loss(weights):
        total = 0.0
        for anchor, importance in pairs:
            for name, held in anchor.items():
                new = torch.zeros_like(weights[name][len(held) :])
                far = weights[name] - torch.cat([held, new])
                total = total + (torch.cat([importance[name], new]) * far**2).sum()
        return total

    return loss


def labeled(batch):
    return lambda weights: plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled)


@MEASURES
def test_the_importance_equals_the_plain_computation(blobs, method, options):
    learner = fixed_learner(blobs, method, **options)
    expected = plain_importance(learner, PARTS)
    learn_step(learner, PARTS)
    close(pair_of(learner).importance, expected)
    assert equal(pair_of(learner).anchor, trained(learner))


@pytest.mark.parametrize(
    ("method", "options", "shares"),
    [
        ("ewc", {}, None),
        ("ewc", {"online": True}, (1.0, 1.0)),
        ("ewc", {"online": True, "decay": 0.3}, (0.3, 1.0)),
        ("mas", {}, (0.5, 0.5)),
        ("mas", {"decay": 0.2}, (0.2, 0.8)),
    ],
)
def test_the_losses_equal_the_plain_implementation(blobs, method, options, shares):
    learner = fixed_learner(blobs, method, strength=7.0, **options)
    batch = fixed_batch(memory=None, unlabeled=None)
    pairs = []
    for seed, parts, classes in ((1, PARTS, 7), (2, LATER, 8)):
        move(learner, seed)
        pairs.append((trained(learner), plain_importance(learner, parts)))
        learn_step(learner, parts)
        learner.network.head.grow(classes, torch.Generator().manual_seed(seed))
    if shares:  # of the first and the second importance in the only one that is kept
        (_, first), (anchor, importance) = pairs
        for name, value in importance.items():
            value *= shares[1]
            value[: len(first[name])] += shares[0] * first[name]  # rows that came later had no importance
        pairs = [(anchor, importance)]
    for own, (_, importance) in zip(learner.method._pairs, pairs, strict=True):
        close(own.importance, importance)
    move(learner, 3)
    expected = {"labeled": (1.0, labeled(batch)), "penalty": (7.0, plain_penalty(pairs))}
    terms = compare(learner, batch, expected, phase="fine-tune")
    assert terms["penalty"].value.item() > 1e-3


@METHODS
def test_the_first_time_step_has_no_penalty(blobs, method):
    batch = fixed_batch(memory=None, unlabeled=None)
    compare(fixed_learner(blobs, method), batch, {"labeled": (1.0, labeled(batch))}, phase="fine-tune")


@METHODS
def test_where_the_weights_were_there_is_no_penalty_and_no_pull(blobs, method):
    learner = fixed_learner(blobs, method)
    learn_step(learner, PARTS)
    learner.network.head.grow(8, torch.Generator().manual_seed(1))
    penalty = losses_of(learner)["penalty"].value
    penalty.backward()
    assert penalty.item() == 0
    assert all(not p.grad.abs().sum() for p in learner.net.weights().values())


@METHODS
def test_new_rows_of_the_head_are_free(blobs, method):
    learner = fixed_learner(blobs, method)
    learn_step(learner, PARTS)
    learner.network.head.grow(8, torch.Generator().manual_seed(1))
    move(learner, 1)
    losses_of(learner)["penalty"].value.backward()
    pulled = learner.network.head.weight.grad.abs().sum(1) > 0
    assert pulled.tolist() == [True] * 5 + [False] * 3


# Time steps.


@METHODS
def test_without_strength_it_is_fine_tuning(blobs, method):
    one, other = (
        run_through(tiny_learner(tiny_config(blobs, name, budget="2", **options)))
        for name, options in ((method, {"strength": 0.0}), ("naive", {}))
    )
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()
    assert one.method.state() == {}


@METHODS
def test_the_phase_leaves_room_for_a_pass_over_all_labels(blobs, method):
    learner = tiny_learner(tiny_config(blobs, method))
    next_phase, step = learner.method.next_phase, learner.stream.steps[0]
    sweep = Sweep(name=SWEEPS[method], pool="labeled")
    phase = next_phase(step, (), 5.0)
    assert isinstance(phase, Phase)
    assert phase.reserve.importance == len(step.labeled) == 8
    assert next_phase(step, (phase,), 1.0) == sweep
    assert next_phase(step, (phase, sweep), 0.0) is None
    none = np.zeros(0, np.int64)
    assert next_phase(replace(step, labeled=none, labels=none), (), 5.0) is None


@pytest.mark.parametrize("accounting", ["images", "flops"])
@MEASURES
def test_the_importance_is_charged_a_pass_for_every_label(blobs, accounting, method, options):
    config = tiny_config(blobs, method, budget="3", **options)
    learner = tiny_learner(replace(config, accounting=accounting))
    assert Counter(event["t"] for event in updates_of(learner)) == {1: 2, 2: 2, 3: 2}
    for receipt in learner.ledger.closed:
        items = {(i.purpose, i.operation): i for i in receipt.items if i.purpose != "evaluation"}
        assert {key: (item.images, item.passes) for key, item in items.items()} == {
            ("labeled", "train"): (24, pytest.approx(24)),
            ("importance", "importance"): (8, pytest.approx(8)),
        }
        assert items["importance", "importance"].flops == 8 * receipt.pass_flops
        assert receipt.unused == pytest.approx(4)


@METHODS
@pytest.mark.parametrize(("budget", "images"), [("0.4", [3, 1]), ("0.5", [6]), ("0.05", [])])
def test_a_partial_pass_gives_the_mean_over_what_was_seen(blobs, method, budget, images):
    learner = tiny_learner(tiny_config(blobs, method, budget=budget))
    seen, gather = [], learner.method.gather

    def watch(net, sweep, part):
        gathered = gather(net, sweep, part)
        seen.append(part)
        return gathered

    learner.method.gather = watch
    next(learn(learner))
    assert [len(part) for part in seen] == images
    if images:
        close(pair_of(learner).importance, plain_importance(learner, seen), 1e-5)
    else:
        assert learner.method.state() == {}


@KEPT
def test_a_time_step_without_labels_leaves_everything_as_it_was(blobs, method, options):
    stream = tiny_learner(tiny_config(blobs)).stream
    none = np.zeros(0, np.int64)
    empty = replace(stream.steps[1], labeled=none, labels=none, seen_classes=2, new_classes=())
    late = replace(stream, steps=(stream.steps[0], empty, stream.steps[2]))
    learner = tiny_learner(tiny_config(blobs, method, **options), late)
    run = learn(learner)
    next(run)
    before = {name: value.clone() for name, value in learner.method.state().items()}
    next(run)
    assert before
    assert equal(learner.method.state(), before)
    assert learner.ledger.closed[1].spent == 0


@KEPT
def test_the_state_grows_with_every_time_step_of_ewc_unless_online(blobs, method, options):
    learner = tiny_learner(tiny_config(blobs, method, budget="0.5", **options))
    for t in learn(learner):
        pairs = t if (method, options) == ("ewc", {}) else 1
        assert len(learner.method.state()) == 2 * len(learner.net.weights()) * pairs
