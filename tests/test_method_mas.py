"""MAS: the sensitivity of the outputs, the penalty and its gradient, limits and prices."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine import checkpoint
from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods.base import Phase, Sweep
from dietcl.methods.mas import MAS
from dietcl.streams.batch import Part
from fixed import compare, fixed_batch, fixed_learner
from plain import plain_cross_entropy, plain_logits
from tiny import tiny_config, tiny_learner
from watching import equal, run_through, updates_of, weights

SWEEP = Sweep(name="importance", pool="labeled")


def plain_images(count, seed):
    images = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Part("labeled", images * 4 - 2, torch.zeros(count, dtype=torch.int64), rows=torch.arange(count))


def move(learner, seed):
    """Shift every weight, as updates would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in learner.network.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def trained(learner):
    """Return copies of the weights that a penalty may hold."""
    return {name: value for name, value in weights(learner).items() if name in learner.net.weights()}


def plain_sensitivity(parts, fixed, names):
    """Average over parts the absolute gradient of the mean over images of the sum of squared outputs."""
    at = {name: value.clone().requires_grad_(name in names) for name, value in fixed.items()}
    total = {name: torch.zeros_like(fixed[name]) for name in names}
    for part in parts:
        outputs = plain_logits(part.images, at)
        length = sum(outputs[i, c] ** 2 for i in range(len(part)) for c in range(outputs.shape[1])) / len(part)
        found = torch.autograd.grad(length, [at[name] for name in names], allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            total[name] += 0 if gradient is None else gradient.abs() / len(parts)
    return total


def plain_penalty(anchor, omega):
    def loss(weights):
        total = 0.0
        for name in anchor:
            for row in range(len(anchor[name])):
                total = total + (omega[name][row] * (weights[name][row] - anchor[name][row]) ** 2).sum()
        return total

    return loss


def labeled(batch):
    return lambda weights: plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled)


def learn_step(learner, parts):
    """Do what a time step does after its last update."""
    for part in parts:
        learner.method.gather(learner.net, SWEEP, part)
    learner.method.end_step(learner.net, learner.stream.steps[1])


def close(one, other, tolerance=1e-9):
    assert one.keys() == other.keys()
    for name in one:
        assert float((one[name] - other[name]).abs().max()) <= tolerance * max(1.0, float(other[name].abs().max()))


PARTS = [plain_images(4, 1), plain_images(2, 2)]
LATER = [plain_images(3, 5)]


def test_the_first_importance_is_the_estimate_itself(blobs):
    learner = fixed_learner(blobs, "mas")
    fixed, names = weights(learner), list(learner.net.weights())
    learn_step(learner, PARTS)
    close(learner.method._pair.importance, plain_sensitivity(PARTS, fixed, names))
    assert equal(learner.method._pair.anchor, trained(learner))


@pytest.mark.parametrize("decay", [0.5, 0.2])
def test_mas_equals_the_plain_implementation(blobs, decay):
    learner = fixed_learner(blobs, "mas", strength=0.7, decay=decay)
    names = list(learner.net.weights())
    batch = fixed_batch(memory=None, unlabeled=None)
    move(learner, 1)
    first = plain_sensitivity(PARTS, weights(learner), names)
    learn_step(learner, PARTS)
    learner.network.head.grow(7, torch.Generator().manual_seed(1))
    move(learner, 2)
    anchor, omega = trained(learner), plain_sensitivity(LATER, weights(learner), names)
    learn_step(learner, LATER)
    for name, value in omega.items():
        value *= 1 - decay
        value[: len(first[name])] += decay * first[name]  # rows that came later had no importance
    close(learner.method._pair.importance, omega)
    learner.network.head.grow(8, torch.Generator().manual_seed(2))
    move(learner, 3)
    expected = {"labeled": (1.0, labeled(batch)), "penalty": (0.7, plain_penalty(anchor, omega))}
    terms = compare(learner, batch, expected, phase="fine-tune")
    assert terms["penalty"].value.item() > 1e-3


def test_the_first_time_step_has_no_penalty(blobs):
    batch = fixed_batch(memory=None, unlabeled=None)
    compare(fixed_learner(blobs, "mas"), batch, {"labeled": (1.0, labeled(batch))}, phase="fine-tune")


def test_where_the_weights_were_there_is_no_penalty_and_no_pull(blobs):
    learner = fixed_learner(blobs, "mas")
    learn_step(learner, PARTS)
    learner.network.head.grow(8, torch.Generator().manual_seed(1))
    terms = {term.name: term for term in learner.method.losses(learner.net, None, fixed_batch())}
    terms["penalty"].value.backward()
    assert terms["penalty"].value.item() == 0
    assert all(not p.grad.abs().sum() for p in learner.net.weights().values())


def test_a_decay_of_one_freezes_the_first_importance(blobs):
    learner = fixed_learner(blobs, "mas", decay=1.0)
    learn_step(learner, PARTS)
    first = {name: value.clone() for name, value in learner.method._pair.importance.items()}
    learner.network.head.grow(7, torch.Generator().manual_seed(1))
    move(learner, 1)
    learn_step(learner, LATER)
    pair = learner.method._pair
    assert all(torch.equal(value, pair.importance[name][: len(value)]) for name, value in first.items())
    assert not pair.importance["head.weight"][5:].any()
    assert equal(pair.anchor, trained(learner))  # where the weights are held goes with the time steps


def test_a_decay_of_zero_knows_the_last_time_step_only(blobs):
    learner = fixed_learner(blobs, "mas", decay=0.0)
    learn_step(learner, PARTS)
    learn_step(learner, LATER)
    close(learner.method._pair.importance, plain_sensitivity(LATER, weights(learner), list(learner.net.weights())))


def test_the_hand_value_of_one_weight(blobs):
    # f = w·x with w = 3 and x = 2: the derivative of f² is 2·w·x² = 24.
    learner = tiny_learner(tiny_config(blobs, "mas"))
    network = learner.network
    network.head.grow(1, torch.Generator())
    with torch.no_grad():
        network.head.weight.zero_(), network.head.bias.zero_()
        network.encoder.vit.norm.weight.zero_(), network.encoder.vit.norm.bias.zero_()
        network.head.weight[0, 0] = 3.0
        network.encoder.vit.norm.bias[0] = 2.0  # so every image has the feature x = 2
    learner.ledger.open(1, 1)
    part = plain_images(3, 1)
    learn_step(learner, [replace(part, images=part.images.float())])
    assert float(learner.method._pair.importance["head.weight"][0, 0]) == pytest.approx(24)


def test_labels_play_no_part_in_the_importance(blobs):
    found = []
    for label in (0, 3):
        learner = fixed_learner(blobs, "mas")
        learn_step(learner, [replace(part, labels=torch.full((len(part),), label)) for part in PARTS])
        found.append(learner.method._pair.importance)
    assert equal(*found)


# Time steps.


def test_without_strength_mas_is_fine_tuning(blobs):
    one, other = (
        run_through(tiny_learner(tiny_config(blobs, method, **options)))
        for method, options in (("mas", {"strength": 0.0}), ("naive", {}))
    )
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()
    assert one.method.state() == {}


def test_the_phase_leaves_room_for_a_pass_over_all_labels(blobs):
    learner = tiny_learner(tiny_config(blobs, "mas"))
    method, step = learner.method, learner.stream.steps[0]
    phase = method.next_phase(step, (), 5.0)
    assert isinstance(phase, Phase)
    assert phase.reserve.importance == len(step.labeled) == 8
    assert method.next_phase(step, (phase,), 1.0) == SWEEP
    assert method.next_phase(step, (phase, SWEEP), 0.0) is None
    none = np.zeros(0, np.int64)
    assert method.next_phase(replace(step, labeled=none, labels=none), (), 5.0) is None


@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_the_importance_is_charged_a_pass_for_every_label(blobs, accounting):
    learner = tiny_learner(replace(tiny_config(blobs, "mas", budget="5"), accounting=accounting))
    assert Counter(event["t"] for event in updates_of(learner)) == {1: 4, 2: 4, 3: 4}
    for receipt in learner.ledger.closed:
        items = {(i.purpose, i.operation): i for i in receipt.items if i.purpose != "evaluation"}
        assert {key: (item.images, item.passes) for key, item in items.items()} == {
            ("labeled", "train"): (48, pytest.approx(48)),
            ("importance", "importance"): (8, pytest.approx(8)),
        }
        assert items["importance", "importance"].flops == 8 * receipt.pass_flops


@pytest.mark.parametrize(("budget", "images"), [("0.4", [3, 1]), ("0.5", [6]), ("0.05", [])])
def test_a_partial_pass_gives_the_mean_over_what_was_seen(blobs, budget, images):
    learner = tiny_learner(tiny_config(blobs, "mas", budget=budget))
    seen, gather = [], learner.method.gather

    def watch(net, sweep, part):
        gather(net, sweep, part)
        seen.append(part)

    learner.method.gather = watch
    next(learn(learner))
    assert [len(part) for part in seen] == images
    if images:
        expected = plain_sensitivity(seen, weights(learner), list(learner.net.weights()))
        close(learner.method._pair.importance, expected, 1e-5)
    else:
        assert learner.method.state() == {}


def test_a_time_step_without_labels_leaves_everything_as_it_was(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    none = np.zeros(0, np.int64)
    empty = replace(stream.steps[1], labeled=none, labels=none, seen_classes=2, new_classes=())
    learner = tiny_learner(tiny_config(blobs, "mas"), replace(stream, steps=(stream.steps[0], empty, stream.steps[2])))
    run = learn(learner)
    next(run)
    before = {name: value.clone() for name, value in learner.method.state().items()}
    next(run)
    assert equal(learner.method.state(), before)
    assert learner.ledger.closed[1].spent == 0


def test_mas_goes_on_from_a_checkpoint_and_its_state_does_not_grow(blobs, tmp_path):
    config = tiny_config(blobs, "mas", budget="2", decay=0.3)
    whole, stopped, resumed = (tiny_learner(config) for _ in range(3))
    run_through(whole)
    run = learn(stopped)
    next(run), next(run)
    checkpoint.save(stopped, tmp_path / "checkpoint", checkpoint.Progress(2, 0))
    checkpoint.load(resumed, tmp_path / "checkpoint")
    assert equal(resumed.method.state(), stopped.method.state())
    list(learn(resumed, finished=2))
    assert equal(weights(resumed), weights(whole))
    assert equal(resumed.method.state(), whole.method.state())
    assert whole.method.state().keys() == stopped.method.state().keys()


# Options.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("strength", -1.0),
        ("strength", math.nan),
        ("strength", math.inf),
        ("decay", -0.1),
        ("decay", 1.1),
        ("decay", math.nan),
    ],
)
def test_impossible_options_are_refused(option, value):
    with pytest.raises(UserError, match=f"--{option} {value}: give"):
        MAS.Config(**{option: value})
