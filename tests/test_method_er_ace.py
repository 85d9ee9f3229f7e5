"""ER-ACE: incoming labels compete with each other only, once there is a past."""

import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods.base import Phase
from dietcl.methods.er import ER
from dietcl.streams.options import Mix
from helpers.fixed_batch import compare, fixed_batch, fixed_learner, part
from helpers.recording import equal, run_through, weights
from helpers.reference_losses import plain_cross_entropy, plain_encoder, plain_logits
from helpers.tiny import tiny_config, tiny_learner


def plain_cosine(images, weights):
    features = plain_encoder(images, weights)[:, 1:].mean(1)
    features = features / (features**2).sum(1, keepdim=True).sqrt()
    rows = weights["head.weight"] / (weights["head.weight"] ** 2).sum(1, keepdim=True).sqrt()
    return 10 * features @ rows.T


def plain_ace(batch, only, scores):
    def loss(weights):
        incoming = plain_cross_entropy(scores(batch.labeled.images, weights), batch.labeled, only)
        past = plain_cross_entropy(scores(batch.memory.images, weights), batch.memory)
        return (len(batch.labeled) * incoming + len(batch.memory) * past) / (len(batch.labeled) + len(batch.memory))

    return loss


def gradients(learner, batch):
    (term,) = learner.method.losses(learner.net, Phase(name="replay", mix=Mix()), batch)
    term.value.backward()
    return term.value, {name: value.grad for name, value in learner.network.named_parameters()}


@pytest.mark.parametrize(("cosine", "scores"), [(True, plain_cosine), (False, plain_logits)])
def test_er_ace_equals_the_plain_implementation(blobs, cosine, scores):
    batch = fixed_batch(labeled=part("labeled", [1, 3, 3, 1], 1), unlabeled=None)
    learner = fixed_learner(blobs, "er_ace", cosine=cosine)
    compare(learner, batch, {"replay": (1.0, plain_ace(batch, [1, 3], scores))}, phase="replay")


def test_labels_that_were_mixed_in_compete_too(blobs):
    labeled = part("labeled", [1, 3, 3, 1], 1)
    object.__setattr__(labeled, "partners", torch.tensor([4, 1, 3, 4]))
    batch = fixed_batch(labeled=labeled, unlabeled=None)
    expected = {"replay": (1.0, plain_ace(batch, [1, 3, 4], plain_cosine))}
    compare(fixed_learner(blobs, "er_ace"), batch, expected, phase="replay")


@pytest.mark.parametrize("missing", ["memory", "labeled"])
def test_one_part_alone_is_plain_cross_entropy(blobs, missing):
    batch = fixed_batch(unlabeled=None, **{missing: None})
    (only,) = batch.supervised
    expected = {"replay": (1.0, lambda w: plain_cross_entropy(plain_cosine(only.images, w), only))}
    compare(fixed_learner(blobs, "er_ace"), batch, expected, phase="replay")


def test_incoming_images_of_one_class_have_no_loss(blobs):
    learner = fixed_learner(blobs, "er_ace")
    labeled = part("labeled", [3, 3, 3], 1)
    labeled.images.requires_grad_()
    batch = fixed_batch(labeled=labeled, unlabeled=None)
    logits, _ = learner.net.logits(*batch.supervised)
    assert labeled.cross_entropy(logits, labeled.present()).item() == 0
    gradients(learner, batch)
    assert labeled.images.grad.abs().sum() == 0


def test_with_all_classes_present_it_is_replay(blobs):
    batch = fixed_batch(labeled=part("labeled", [2, 0, 4, 1, 3], 1), unlabeled=None)
    value, of_ace = gradients(fixed_learner(blobs, "er_ace", cosine=False), batch)
    same, of_er = gradients(fixed_learner(blobs, "er"), batch)
    assert torch.equal(value, same)
    for name, gradient in of_er.items():
        assert gradient is of_ace[name] is None or torch.equal(gradient, of_ace[name]), name


@pytest.mark.parametrize("cosine", [True, False])
def test_the_first_time_step_is_replay_with_the_same_head(blobs, monkeypatch, cosine):
    ace = tiny_learner(tiny_config(blobs, "er_ace", cosine=cosine))
    monkeypatch.setattr(ER, "cosine_scale", 10.0 if cosine else None)
    er = tiny_learner(tiny_config(blobs, "er"))
    runs = [learn(ace), learn(er)]
    assert [next(run) for run in runs] == [1, 1]
    assert equal(weights(ace), weights(er))
    assert [next(run) for run in runs] == [2, 2]
    assert not equal(weights(ace), weights(er))


def test_half_of_a_later_batch_is_memory(blobs):
    learner = run_through(tiny_learner(tiny_config(blobs, "er_ace", budget="4")))
    spent = [
        {i.purpose: i.passes for i in receipt.items if i.operation == "train"} for receipt in learner.ledger.closed
    ]
    assert spent == [{"labeled": 48}, {"labeled": 24, "memory": 24}, {"labeled": 24, "memory": 24}]
    assert [receipt.unused for receipt in learner.ledger.closed] == [0, 0, 0]
