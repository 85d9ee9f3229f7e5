"""CaSSLe: Barlow Twins, the distillation from the time step before, the classifier, and what they cost."""

import itertools
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from dietcl.errors import UserError
from dietcl.methods.base import Method, Term
from dietcl.methods.cassle import CaSSLe
from dietcl.methods.pieces.barlow import barlow_twins
from dietcl.streams.options import Mix
from dietcl.streams.sampler import pools_of
from helpers.fixed_batch import compare, fixed_batch, fixed_learner, nudge
from helpers.recording import equal, paid, run_through, segments, updates_of, weights
from helpers.reference_losses import (
    plain_barlow,
    plain_cross_entropy,
    plain_features,
    plain_logits,
    plain_perceptron,
    plain_projections,
    plain_views,
)
from helpers.tiny import tiny_config, tiny_learner

WIDTH = 6


@pytest.fixture
def learner_of(blobs):
    return partial(fixed_learner, blobs, "cassle", width=WIDTH)


def views(batch, off_diagonal=5e-3, scale=0.1):
    return lambda w: plain_views([batch.unlabeled, batch.labeled], w, off_diagonal, scale)


def distill(batch, former):
    parts = [batch.unlabeled, batch.labeled]

    def loss(weights):
        total = 0.0
        for name in ("one", "two"):
            predicted = plain_perceptron(plain_projections(parts, name, weights), weights, "predictor", 2)
            total = total + plain_barlow(predicted, plain_projections(parts, name, former).detach(), 5e-3, 0.1)
        return total / 2

    return loss


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
    batch = replace(batch, memory=replace(batch.memory, view_maker=None))  # it needs no views
    images = batch.memory.images

    def probe(weights):
        logits = plain_features(images, weights).detach() @ weights["head.weight"].T + weights["head.bias"]
        return plain_cross_entropy(logits, batch.memory)

    def fine_tune(weights):
        return plain_cross_entropy(plain_logits(images, weights), batch.memory)

    compare(learner_of(), batch, {"classifier": (1.0, probe)}, phase="classifier")
    compare(learner_of(classifier="fine_tune"), batch, {"classifier": (1.0, fine_tune)}, phase="classifier")


def test_barlow_twins_looks_through_scale_and_shift():
    redundant = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert float(barlow_twins(redundant, 3 * redundant + 7, 5e-3, 0.1)) == pytest.approx(0.001, abs=1e-6)


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
        seen.append((batch.key[1], {term.name for term in terms}, dict(learner.method.teacher)))
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


def step_with(step, labeled, unlabeled):
    rows = np.arange(labeled + unlabeled)
    labels = np.zeros(labeled, np.int64)
    return replace(step, labeled=rows[:labeled], labels=labels, unlabeled=rows[labeled:])


def test_most_of_the_budget_goes_to_all_images_that_arrive_and_the_rest_to_all_labels(blobs):
    stream = tiny_learner(tiny_config(blobs)).stream
    for step in stream.steps:
        ssl, classifier = segments(CaSSLe(CaSSLe.Config()), step)
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
    ssl, _ = segments(CaSSLe(CaSSLe.Config()), step)
    assert (ssl.mix.labeled, ssl.mix.unlabeled) == pytest.approx((mix.labeled, mix.unlabeled))
    for size in (5, 6, 16, 256):
        pools = pools_of(replace(stream, steps=(stream.steps[0], step)), 2, ssl.mix)
        assert sum(ssl.mix.counts(size, pools).values()) == size


def test_fewer_than_two_images_have_no_views_to_learn_from(blobs):
    step = tiny_learner(tiny_config(blobs)).stream.steps[1]
    for labeled, unlabeled in ((0, 0), (1, 0), (0, 1)):
        phases = segments(CaSSLe(CaSSLe.Config()), step_with(step, labeled, unlabeled))
        assert [phase.name for phase in phases] == ["classifier"]


# Cost; prices are held against arithmetic in test_costs.py.


def matrices(*sizes):
    """Return the FLOPs of a perceptron's forward for one image."""
    return sum(2 * one * other for one, other in itertools.pairwise(sizes))


def test_receipts_name_every_view_the_teacher_and_the_modules(blobs):
    learner = tiny_learner(tiny_config(blobs, "cassle", budget="8", width=WIDTH))
    project, predict = matrices(96, WIDTH, WIDTH, WIDTH), matrices(WIDTH, WIDTH, WIDTH)
    made = Counter((event["t"], event["phase"]) for event in updates_of(learner))
    for receipt in learner.ledger.closed:
        t = receipt.t
        seen, classified = 2 * 12 * made[t, "ssl"], 12 * made[t, "classifier"]
        images = {("views", "train"): seen, ("projector", "module"): seen}
        images |= {("features", "forward"): classified, ("head", "head_train"): classified}
        # A pair of views has a product of WIDTH by WIDTH, with the gradients of both factors.
        flops = {"projector": seen * (3 * project + 3 * WIDTH**2)}
        if t > 1:
            images |= dict.fromkeys([("teacher", "forward"), ("teacher", "module"), ("predictor", "module")], seen)
            flops |= {"teacher": seen * project, "predictor": seen * (3 * predict + 4 * WIDTH**2)}
        items = paid(receipt)
        assert {key: item.images for key, item in items.items()} == images
        assert {name: item.flops for (name, operation), item in items.items() if operation == "module"} == flops
        assert min(seen, classified) > 0


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
