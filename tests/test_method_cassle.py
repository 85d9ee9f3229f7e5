"""CaSSLe: Barlow Twins, the distillation from the time step before, the classifier, and what they cost."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Term
from dietcl.methods.cassle import CaSSLe
from dietcl.methods.pieces.barlow import barlow_twins
from dietcl.streams.mix import Mix
from dietcl.streams.sampler import pools_of
from fixed import compare, fixed_batch, fixed_learner
from plain import plain_cross_entropy, plain_encoder, plain_logits
from tiny import tiny_config, tiny_learner
from watching import equal, run_through, updates_of, weights

WIDTH = 6


@pytest.fixture
def learner_of(blobs):
    return partial(fixed_learner, blobs, "cassle", width=WIDTH)


def plain_features(images, weights):
    return plain_encoder(images, weights)[:, 1:].mean(1)


def plain_perceptron(x, weights, name, layers):
    """Run a module whose layers are a matrix, a norm and a rectifier each, the last one a matrix alone."""
    for layer in range(layers):
        x = x @ weights[f"module {name}.{3 * layer}.weight"].T + weights[f"module {name}.{3 * layer}.bias"]
        if layer < layers - 1:
            mean = x.sum(1, keepdim=True) / x.shape[1]
            variance = ((x - mean) ** 2).sum(1, keepdim=True) / x.shape[1]
            norm = f"module {name}.{3 * layer + 1}"
            x = (x - mean) / (variance + 1e-5).sqrt() * weights[f"{norm}.weight"] + weights[f"{norm}.bias"]
            x = x * (x > 0)
    return x


def plain_barlow(one, two, off_diagonal, scale):
    """Fill the matrix of correlations entry by entry."""
    number, width = one.shape

    def standard(x):
        mean = x.sum(0) / number
        return (x - mean) / (((x - mean) ** 2).sum(0) / number + 1e-5).sqrt()

    one, two = standard(one), standard(two)
    total = 0.0
    for i in range(width):
        for j in range(width):
            correlation = (one[:, i] * two[:, j]).sum() / number
            total = total + ((1 - correlation) ** 2 if i == j else off_diagonal * correlation**2)
    return scale * total


def projected(batch, name, weights):
    """Return the projections of one view of the unlabeled and the labeled images."""
    images = torch.cat([batch.unlabeled.view(name, True), batch.labeled.view(name, True)])
    return plain_perceptron(plain_features(images, weights), weights, "projector", 3)


def views(batch, off_diagonal=5e-3, scale=0.1):
    return lambda w: plain_barlow(projected(batch, "one", w), projected(batch, "two", w), off_diagonal, scale)


def distill(batch, former):
    def loss(weights):
        total = 0.0
        for name in ("one", "two"):
            predicted = plain_perceptron(projected(batch, name, weights), weights, "predictor", 2)
            total = total + plain_barlow(predicted, projected(batch, name, former).detach(), 5e-3, 0.1)
        return total / 2

    return loss


def nudge(learner, seed=0):
    """Move every weight a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in (learner.network, *learner.method.modules().values()):
            for value in module.parameters():
                value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)


# Losses.


def test_the_loss_on_views_equals_the_plain_implementation(learner_of):
    batch = fixed_batch(memory=None)
    compare(learner_of(), batch, {"views": (1.0, views(batch))}, phase="ssl")
    other = learner_of(off_diagonal=0.3, scale=0.7)
    compare(other, batch, {"views": (1.0, views(batch, 0.3, 0.7))}, phase="ssl")


def test_the_distillation_equals_the_plain_implementation(learner_of):
    learner, batch = learner_of(strength=2.5), fixed_batch(memory=None)
    step = learner.stream.steps[0]
    learner.method.end_step(learner.net, step)
    former = {name: value.detach().clone() for name, value in learner.network.state_dict().items()}
    for key, value in learner.method.modules()["projector"].state_dict().items():
        former[f"module projector.{key}"] = value.clone()
    nudge(learner)
    expected = {"views": (1.0, views(batch)), "distill": (2.5, distill(batch, former))}
    compare(learner, batch, expected, phase="ssl")


def test_the_classifier_equals_the_plain_implementation(learner_of):
    batch = fixed_batch(labeled=None, unlabeled=None)
    images = batch.memory.images

    def probe(weights):
        logits = plain_features(images, weights).detach() @ weights["head.weight"].T + weights["head.bias"]
        return plain_cross_entropy(logits, batch.memory)

    def fine_tune(weights):
        return plain_cross_entropy(plain_logits(images, weights), batch.memory)

    compare(learner_of(), batch, {"classifier": (1.0, probe)}, phase="classifier")
    compare(learner_of(classifier="fine_tune"), batch, {"classifier": (1.0, fine_tune)}, phase="classifier")


def test_hand_values_of_barlow_twins():
    independent = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(barlow_twins(independent, independent, 5e-3, 0.1)) == pytest.approx(0, abs=1e-8)
    redundant = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert float(barlow_twins(redundant, 3 * redundant + 7, 5e-3, 0.1)) == pytest.approx(0.001, abs=1e-6)
    opposed = barlow_twins(independent, -independent, 5e-3, 0.1)
    assert float(opposed) == pytest.approx(0.1 * 2 * 2**2, abs=1e-4)


def test_a_single_image_has_no_loss_and_no_gradient():
    one = torch.randn(1, 4, requires_grad=True)
    loss = barlow_twins(one, torch.randn(1, 4), 5e-3, 0.1)
    loss.backward()
    assert loss.item() == 0
    assert not one.grad.any()


def test_features_that_do_not_vary_give_a_finite_loss():
    same = torch.ones(5, 4, requires_grad=True)
    loss = barlow_twins(same, same, 5e-3, 0.1)
    loss.backward()
    assert loss.item() == pytest.approx(0.4)
    assert bool(same.grad.isfinite().all())


# The teacher.


class FineTuned(Method):
    """Barlow Twins on every image that arrives, then a linear classifier; nothing is distilled."""

    def __init__(self, cassle):
        super().__init__(cassle.config)
        self.cassle = cassle

    def next_phase(self, step, done, remaining):
        return self.cassle.next_phase(step, done, remaining)

    def losses(self, net, phase, batch):
        if phase.name == "classifier":
            logits = net.classify(net.features(batch.memory.images, "features"), "head")
            yield Term("classifier", batch.memory.cross_entropy(logits))
        else:
            images = torch.cat([part.view(name, strong=True) for name in ("one", "two") for part in batch.parts])
            projector = self.cassle.modules()["projector"]
            one, two = net.run(projector, net.encode(images, "views"), purpose="projector").chunk(2)
            net.charge("projector", 6 * len(one) * WIDTH**2)
            yield Term("views", barlow_twins(one, two, 5e-3, 0.1))

    def modules(self):
        return {"projector": self.cassle.modules()["projector"]}


def test_without_distillation_it_is_fine_tuned_barlow_twins(blobs):
    config = tiny_config(blobs, "cassle", budget="5", width=WIDTH, strength=0.0)
    one, other = tiny_learner(config), tiny_learner(config)
    other.method = FineTuned(other.method)
    run_through(one)
    run_through(other)
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()
    assert not one.method.state()
    with_teacher = run_through(tiny_learner(replace(config, method_config=CaSSLe.Config(width=WIDTH))))
    assert not equal(weights(one), weights(with_teacher))


def test_the_teacher_is_the_network_at_the_end_of_the_time_step_before(blobs):
    learner = tiny_learner(tiny_config(blobs, "cassle", budget="5", width=WIDTH))
    seen = []
    views_of = learner.method._views

    def watch(net, batch):
        terms = list(views_of(net, batch))
        seen.append((batch.key[1], {term.name for term in terms}, dict(learner.method._teacher.weights)))
        return iter(terms)

    learner.method._views = watch
    ends = {}
    end_step = learner.method.end_step

    def keep(net, step):
        end_step(net, step)
        projector = learner.method.modules()["projector"].state_dict()
        ends[step.t] = {**net.copy(), **{f"projector.{key}": value.clone() for key, value in projector.items()}}

    learner.method.end_step = keep
    run_through(learner)
    assert {t for t, _, _ in seen} == {1, 2, 3}
    for t, names, teacher in seen:
        assert names == ({"views"} if t == 1 else {"views", "distill"})
        assert equal(teacher, ends[t - 1] if t > 1 else {})


def test_the_probe_leaves_the_encoder_alone(blobs):
    learner = tiny_learner(tiny_config(blobs, "cassle", budget="2", width=WIDTH, ssl=0.0))
    before = weights(learner)
    run_through(learner)
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("encoder"))
    assert not learner.method.state()


# Phases and mixes.


def phases_of(method, step):
    done = ()
    while phase := method.next_phase(step, done, 100.0):
        done += (phase,)
    return done


def step_with(step, labeled, unlabeled):
    rows = np.arange(labeled + unlabeled)
    labels = np.zeros(labeled, np.int64)
    return replace(step, labeled=rows[:labeled], labels=labels, unlabeled=rows[labeled:])


def test_most_of_the_budget_goes_to_all_images_that_arrive_and_the_rest_to_all_labels(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    for step in stream.steps:
        ssl, classifier = phases_of(CaSSLe(CaSSLe.Config()), step)
        assert (ssl.name, ssl.share, classifier.name, classifier.share) == ("ssl", 0.8, "classifier", 1.0)
        assert ssl.mix.counts(40, pools_of(stream, step.t, ssl.mix)) == {"unlabeled": 32, "labeled": 8}
        assert classifier.mix == Mix(memory=1)


@pytest.mark.parametrize(
    ("labeled", "unlabeled", "mix"),
    [
        (10, 30, Mix(labeled=0.25, unlabeled=0.75)),
        (1, 99, Mix(unlabeled=0.99)),
        (99, 1, Mix(labeled=0.99)),
        (0, 2, Mix(unlabeled=1)),
        (2, 0, Mix(labeled=1)),
    ],
)
def test_a_pool_that_is_too_small_a_part_of_the_images_is_left_out(blobs, labeled, unlabeled, mix):
    stream = tiny_learner(tiny_config(blobs)).stream
    step = step_with(stream.steps[1], labeled, unlabeled)
    ssl, _ = phases_of(CaSSLe(CaSSLe.Config()), step)
    assert (ssl.mix.labeled, ssl.mix.unlabeled) == pytest.approx((mix.labeled, mix.unlabeled))
    for size in (5, 6, 16, 256):
        pools = pools_of(replace(stream, steps=(stream.steps[0], step)), 2, ssl.mix)
        assert sum(ssl.mix.counts(size, pools).values()) == size


def test_fewer_than_two_images_have_no_views_to_learn_from(blobs):
    step = tiny_learner(tiny_config(blobs)).stream.steps[1]
    for labeled, unlabeled in ((0, 0), (1, 0), (0, 1)):
        phases = phases_of(CaSSLe(CaSSLe.Config()), step_with(step, labeled, unlabeled))
        assert [phase.name for phase in phases] == ["classifier"]


# Cost.


def matrices(*sizes):
    """Return the FLOPs of a perceptron's forward for one image."""
    return sum(2 * one * other for one, other in itertools.pairwise(sizes))


@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_receipts_name_every_view_the_teacher_and_the_modules(blobs, accounting):
    config = replace(tiny_config(blobs, "cassle", budget="14", width=32), accounting=accounting)
    learner = tiny_learner(config)
    updates = updates_of(learner)
    project, predict = matrices(96, 32, 32, 32), matrices(32, 32, 32)
    cost = learner.ledger.cost
    for receipt in learner.ledger.closed:
        made = {
            phase: sum(event["t"] == receipt.t and event["phase"] == phase for event in updates)
            for phase in ("ssl", "classifier")
        }
        seen = 2 * 12 * made["ssl"]
        forward = 1 / 3
        if accounting == "flops":
            forward = cost.flops("forward", receipt.classes) / receipt.pass_flops
        items = {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}
        expected = {
            ("views", "train"): (seen, seen),
            # A pair of views has a product of 32 by 32, with the gradients of both factors.
            ("projector", "module"): (seen, seen * (3 * project + 3 * 32**2) / receipt.pass_flops),
            ("features", "forward"): (12 * made["classifier"], 12 * made["classifier"] * forward),
            ("head", "head_train"): (
                12 * made["classifier"],
                12 * made["classifier"] * 4 * 96 * receipt.classes / receipt.pass_flops,
            ),
        }
        if receipt.t > 1:
            expected |= {
                ("teacher", "forward"): (seen, seen * forward),
                ("teacher", "module"): (seen, seen * project / receipt.pass_flops),
                ("predictor", "module"): (seen, seen * (3 * predict + 4 * 32**2) / receipt.pass_flops),
            }
        # An update whose cost was not foreseen may have been paid in part and not applied: none was here.
        assert {key: (item.images, pytest.approx(item.passes)) for key, item in items.items()} == expected
        spent = sum(items[key].passes for key in expected if key[0] not in ("features", "head"))
        correlations = 6 * 32**2 + (receipt.t > 1) * 8 * 32**2
        own = (2 * (3 * project + (receipt.t > 1) * (project + 3 * predict)) + correlations) / receipt.pass_flops
        a_update = 12 * (2 + (receipt.t > 1) * 2 * forward + own)
        assert made["ssl"] == int(0.8 * 14 * 12 / a_update)
        assert spent == pytest.approx(made["ssl"] * a_update)
        assert receipt.unused < 12 * 0.4


# Options.


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("ssl", (-0.1, 1, 1.5, np.nan)),
        ("strength", (-1, np.inf, np.nan)),
        ("off_diagonal", (-1, np.inf)),
        ("scale", (0, -1, np.inf, np.nan)),
        ("width", (0, -3)),
    ],
)
def test_impossible_options_are_refused(option, values):
    for value in values:
        with pytest.raises(UserError, match=f"--{option.replace('_', '-')} "):
            CaSSLe.Config(**{option: value})


def test_a_phase_of_the_classifier_alone_needs_no_views(learner_of):
    batch = fixed_batch(labeled=None, unlabeled=None)
    batch = replace(batch, memory=replace(batch.memory, view_maker=None))
    learner = learner_of()
    (term,) = learner.method.losses(learner.net, Phase(name="classifier", mix=Mix()), batch)
    assert bool(term.value.isfinite())
