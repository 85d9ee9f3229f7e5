"""EWC: the Fisher information, the penalty and its gradient, limits, prices, and the memory that it needs."""

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
from dietcl.methods.ewc import EWC
from dietcl.methods.pieces import importance
from dietcl.streams.batch import Part
from fixed import compare, fixed_batch, fixed_learner
from plain import plain_cross_entropy, plain_logits
from tiny import tiny_config, tiny_learner
from watching import equal, run_through, updates_of, weights

SWEEP = Sweep(name="fisher", pool="labeled")


def plain_images(labels, seed):
    images = torch.rand(len(labels), 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Part("labeled", images * 4 - 2, torch.tensor(labels), rows=torch.arange(len(labels)))


def move(learner, seed):
    """Shift every weight, as updates would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in learner.network.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def trained(learner):
    """Return copies of the weights that a penalty may hold."""
    return {name: value for name, value in weights(learner).items() if name in learner.net.weights()}


def plain_gradient(images, labels, at):
    """Return the gradient of the mean cross-entropy of the true labels."""
    at = {name: value.clone().requires_grad_() for name, value in at.items()}
    logits = plain_logits(images, at)
    loss = sum(logits[i].exp().sum().log() - logits[i, label] for i, label in enumerate(labels)) / len(labels)
    names = list(at)
    found = torch.autograd.grad(loss, [at[name] for name in names], allow_unused=True)
    return {n: torch.zeros_like(at[n]) if g is None else g for n, g in zip(names, found, strict=True)}


def plain_fisher(parts, fixed, names, per_sample=True):
    """Average squared gradients: of every image, or of every part's mean."""
    if per_sample:
        parts = [part.take(slice(i, i + 1)) for part in parts for i in range(len(part))]
    total = dict.fromkeys(names, 0.0)
    for part in parts:
        found = plain_gradient(part.images, part.labels.tolist(), fixed)
        total = {name: total[name] + found[name] ** 2 / len(parts) for name in names}
    return total


def plain_penalty(pairs):
    """Add over all pairs, weights and elements that existed when the pair was made."""

    def loss(weights):
        total = 0.0
        for anchor, fisher in pairs:
            for name in anchor:
                for row in range(len(anchor[name])):
                    total = total + (fisher[name][row] * (weights[name][row] - anchor[name][row]) ** 2).sum()
        return total

    return loss


def labeled(batch):
    return lambda weights: plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled)


def learn_step(learner, parts):
    """Do what a time step does after its last update."""
    for part in parts:
        learner.method.gather(learner.net, SWEEP, part)
    learner.method.end_step(learner.net, learner.stream.steps[1])


def close(one, other, tolerance=1e-6):
    assert one.keys() == other.keys()
    for name in one:
        assert float((one[name] - other[name]).abs().max()) <= tolerance * max(1.0, float(other[name].abs().max()))


PARTS = [plain_images([1, 3, 3, 4], 1), plain_images([0, 2], 2)]
LATER = [plain_images([5, 6, 0], 5)]


@pytest.mark.parametrize("fisher", ["per_sample", "batch_mean"])
def test_the_fisher_information_equals_the_plain_computation(blobs, fisher):
    learner = fixed_learner(blobs, "ewc", fisher=fisher)
    fixed, names = weights(learner), learner.net.weights().keys()
    learn_step(learner, PARTS)
    (pair,) = learner.method._pairs
    close(pair.importance, plain_fisher(PARTS, fixed, names, fisher == "per_sample"), 1e-9)
    assert equal(pair.anchor, trained(learner))


@pytest.mark.parametrize(("online", "decay"), [(False, 1.0), (True, 1.0), (True, 0.3)])
def test_ewc_equals_the_plain_implementation(blobs, online, decay):
    learner = fixed_learner(blobs, "ewc", strength=7.0, online=online, decay=decay)
    names = learner.net.weights().keys()
    batch = fixed_batch(memory=None, unlabeled=None)
    pairs = []
    for seed, parts, classes in ((1, PARTS, 7), (2, LATER, 8)):
        move(learner, seed)
        pairs.append((trained(learner), plain_fisher(parts, weights(learner), names)))
        learn_step(learner, parts)
        learner.network.head.grow(classes, torch.Generator().manual_seed(seed))
    if online:
        (_, first), (anchor, fisher) = pairs
        for name, value in first.items():
            fisher[name][: len(value)] += decay * value
        pairs = [(anchor, fisher)]
    move(learner, 3)
    expected = {"labeled": (1.0, labeled(batch)), "penalty": (7.0, plain_penalty(pairs))}
    terms = compare(learner, batch, expected, phase="fine-tune")
    assert terms["penalty"].value.item() > 1e-3


def test_the_first_time_step_has_no_penalty(blobs):
    batch = fixed_batch(memory=None, unlabeled=None)
    compare(fixed_learner(blobs, "ewc"), batch, {"labeled": (1.0, labeled(batch))}, phase="fine-tune")


def test_where_the_weights_were_there_is_no_penalty_and_no_pull(blobs):
    learner = fixed_learner(blobs, "ewc")
    learn_step(learner, PARTS)
    learner.network.head.grow(8, torch.Generator().manual_seed(1))
    terms = {term.name: term for term in learner.method.losses(learner.net, None, fixed_batch())}
    terms["penalty"].value.backward()
    assert terms["penalty"].value.item() == 0
    assert all(not p.grad.abs().sum() for p in learner.net.weights().values())


def test_new_rows_of_the_head_are_free(blobs):
    learner = fixed_learner(blobs, "ewc")
    learn_step(learner, PARTS)
    learner.network.head.grow(8, torch.Generator().manual_seed(1))
    move(learner, 1)
    terms = {term.name: term for term in learner.method.losses(learner.net, None, fixed_batch())}
    terms["penalty"].value.backward()
    pulled = learner.network.head.weight.grad.abs().sum(1) > 0
    assert pulled.tolist() == [True] * 5 + [False] * 3


# A logistic unit: two classes whose logits are w·x and 0, with x the first feature.


def logistic(blobs, fisher, labels):
    learner = tiny_learner(tiny_config(blobs, "ewc", fisher=fisher))
    network = learner.network
    network.head.grow(2, torch.Generator())
    with torch.no_grad():
        network.head.weight.zero_(), network.head.bias.zero_()
        network.encoder.vit.norm.weight.zero_(), network.encoder.vit.norm.bias.zero_()
        network.encoder.vit.norm.bias[0] = 1.0  # so every image has the feature x = 1
    learner.ledger.open(1, 2)
    part = plain_images(labels, 1)
    learn_step(learner, [replace(part, images=part.images.float())])
    return float(learner.method._pairs[0].importance["head.weight"][0, 0])


@pytest.mark.parametrize(
    ("fisher", "labels", "value"),
    [
        ("per_sample", [0], 0.25),
        ("batch_mean", [0], 0.25),
        ("per_sample", [1, 0], 0.25),
        ("batch_mean", [1, 0], 0.0),
        ("batch_mean", [1, 0, 0, 0], 0.0625),
    ],
)
def test_hand_values_of_a_logistic_unit(blobs, fisher, labels, value):
    assert logistic(blobs, fisher, labels) == pytest.approx(value, abs=1e-7)


# Time steps.


def test_without_strength_ewc_is_fine_tuning(blobs):
    one, other = (
        run_through(tiny_learner(tiny_config(blobs, method, **options)))
        for method, options in (("ewc", {"strength": 0.0}), ("naive", {}))
    )
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()
    assert one.method.state() == {}


def test_the_phase_leaves_room_for_a_fisher_pass_over_all_labels(blobs):
    learner = tiny_learner(tiny_config(blobs, "ewc"))
    method, step = learner.method, learner.stream.steps[0]
    phase = method.next_phase(step, (), 5.0)
    assert isinstance(phase, Phase)
    assert phase.reserve.importance == len(step.labeled) == 8
    assert method.next_phase(step, (phase,), 1.0) == SWEEP
    assert method.next_phase(step, (phase, SWEEP), 0.0) is None
    none = np.zeros(0, np.int64)
    assert method.next_phase(replace(step, labeled=none, labels=none), (), 5.0) is None


@pytest.mark.parametrize("accounting", ["images", "flops"])
@pytest.mark.parametrize("fisher", ["per_sample", "batch_mean"])
def test_the_fisher_pass_is_charged_a_pass_for_every_label(blobs, accounting, fisher):
    config = tiny_config(blobs, "ewc", budget="5", fisher=fisher)
    learner = tiny_learner(replace(config, accounting=accounting))
    assert Counter(event["t"] for event in updates_of(learner)) == {1: 4, 2: 4, 3: 4}
    for receipt in learner.ledger.closed:
        items = {(i.purpose, i.operation): i for i in receipt.items if i.purpose != "evaluation"}
        assert {key: (item.images, item.passes) for key, item in items.items()} == {
            ("labeled", "train"): (48, pytest.approx(48)),
            ("importance", "importance"): (8, pytest.approx(8)),
        }
        assert items["importance", "importance"].flops == 8 * receipt.pass_flops
        assert receipt.unused == pytest.approx(4)


@pytest.mark.parametrize(("budget", "images"), [("0.4", [3, 1]), ("0.5", [6]), ("0.05", [])])
def test_a_partial_fisher_pass_gives_the_mean_over_the_images_seen(blobs, budget, images):
    learner = tiny_learner(tiny_config(blobs, "ewc", budget=budget))
    seen, gather = [], learner.method.gather

    def watch(net, sweep, part):
        gather(net, sweep, part)
        seen.append(part)

    learner.method.gather = watch
    next(learn(learner))
    assert [len(part) for part in seen] == images
    if images:
        (pair,) = learner.method._pairs
        close(pair.importance, plain_fisher(seen, weights(learner), learner.net.weights().keys()), 1e-5)
    else:
        assert learner.method.state() == {}


@pytest.mark.parametrize("online", [False, True])
def test_a_time_step_without_labels_leaves_everything_as_it_was(blobs, online):
    stream = tiny_learner(tiny_config(blobs)).stream
    none = np.zeros(0, np.int64)
    empty = replace(stream.steps[1], labeled=none, labels=none, seen_classes=2, new_classes=())
    config = tiny_config(blobs, "ewc", online=online)
    learner = tiny_learner(config, replace(stream, steps=(stream.steps[0], empty, stream.steps[2])))
    run = learn(learner)
    next(run)
    before = {name: value.clone() for name, value in learner.method.state().items()}
    next(run)
    assert equal(learner.method.state(), before)
    assert learner.ledger.closed[1].spent == 0


@pytest.mark.parametrize("online", [False, True])
def test_the_state_grows_with_every_time_step_unless_online(blobs, online):
    learner = tiny_learner(tiny_config(blobs, "ewc", budget="2", online=online))
    for t in learn(learner):
        names = learner.net.weights().keys()
        assert len(learner.method.state()) == 2 * len(names) * (1 if online else t)


@pytest.mark.parametrize("options", [{}, {"online": True, "decay": 0.5}, {"fisher": "batch_mean"}])
def test_ewc_goes_on_from_a_checkpoint(blobs, tmp_path, options):
    config = tiny_config(blobs, "ewc", budget="2", **options)
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


def test_more_than_ten_pairs_come_back_in_their_order():
    pairs = [importance.Pair({"w": torch.tensor([float(i)])}, {"w": torch.tensor([2.0 * i])}) for i in range(12)]
    again = importance.unpack(dict(sorted(importance.pack(pairs).items())))
    assert [float(pair.anchor["w"]) for pair in again] == list(range(12))
    assert [float(pair.importance["w"]) for pair in again] == [2 * i for i in range(12)]


# Memory.


def said_with(blobs, monkeypatch, available, **options):
    learner = tiny_learner(tiny_config(blobs, "ewc", budget="2", **options))
    pair = 2 * sum(value.nbytes for value in learner.net.weights().values())
    monkeypatch.setattr(importance, "available_memory", lambda device: available(pair, len(learner.method._pairs)))
    said = []
    learner.net.say = said.append
    run_through(learner)
    return said


def test_the_user_is_told_once_when_few_pairs_fit(blobs, monkeypatch):
    said = said_with(blobs, monkeypatch, lambda pair, held: 4.9 * 1.5 * pair + held * pair / 2)
    assert len(said) == 1
    assert "--online" in said[0]
    assert "time steps" in said[0]


def test_a_full_memory_is_told_too(blobs, monkeypatch):
    (sentence,) = said_with(blobs, monkeypatch, lambda pair, held: 0)
    assert "about 0 more" in sentence


def test_nothing_is_said_while_there_is_room_or_where_nothing_grows(blobs, monkeypatch):
    assert said_with(blobs, monkeypatch, lambda pair, held: 5.1 * 1.5 * pair + held * pair / 2) == []
    assert said_with(blobs, monkeypatch, lambda pair, held: 0, online=True) == []
    assert said_with(blobs, monkeypatch, lambda pair, held: 0, strength=0.0) == []


def test_the_memory_is_what_the_machine_says_it_has(tmp_path, monkeypatch):
    cpu = torch.device("cpu")
    assert importance.available_memory(cpu) > 2**20
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(importance, "Path", lambda name: meminfo)
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:    2000 kB\nHugePages_Total:   0\n")
    assert importance.available_memory(cpu) == 2000 * 1024
    meminfo.unlink()
    pages = {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(importance.os, "sysconf", pages.__getitem__, raising=False)
    assert importance.available_memory(cpu) == 7 * 4096
    monkeypatch.delattr(importance.os, "sysconf")
    assert importance.available_memory(cpu) == math.inf


# Options.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strength": -1.0}, "--strength -1.0: give"),
        ({"strength": math.nan}, "--strength nan: give"),
        ({"strength": math.inf}, "--strength inf: give"),
        ({"decay": 1.5, "online": True}, "--decay 1.5: give"),
        ({"decay": -0.1, "online": True}, "--decay -0.1: give"),
        ({"decay": math.nan, "online": True}, "--decay nan: give"),
        ({"decay": 0.5}, "--decay 0.5: .*--online"),
        ({"fisher": "exact"}, "--fisher exact: choose"),
    ],
)
def test_impossible_options_are_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        EWC.Config(**options)
