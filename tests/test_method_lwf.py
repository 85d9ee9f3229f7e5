"""LwF: the distillation and its gradient, its limits, and what the teacher costs."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.methods.lwf import LwF
from dietcl.models.flops import cost_model
from helpers.fixed_batch import CLASSES, compare, fixed_batch, fixed_learner
from helpers.recording import equal, run_through, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_logits
from helpers.tiny import MODEL, tiny_config, tiny_learner

NEW = ("a", "b")


def step_of(learner, new=NEW, seen=CLASSES):
    return replace(learner.stream.steps[1], seen_classes=seen, new_classes=new)


def batch_of():
    return fixed_batch(memory=None, unlabeled=None)


def move(learner, size=0.05):
    """Shift every weight, as updates would."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in learner.network.parameters():
            value += size * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def taught(blobs, **options):
    """Return a learner whose teacher was taken before its weights moved, and the teacher's weights."""
    learner = fixed_learner(blobs, "lwf", **options)
    learner.method.begin_step(learner.net, step_of(learner))
    before = weights(learner)
    move(learner)
    return learner, before


def labeled(batch):
    return lambda weights: plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled)


def distill(batch, before, known, temperature):
    """Write both distributions over the known classes down, image by image and class by class."""

    def loss(weights):
        then, now = (plain_logits(batch.labeled.images, each) for each in (before, weights))
        total = 0.0
        for i in range(len(batch.labeled)):
            p, q = ([(each[i, c] / temperature).exp() for c in range(known)] for each in (then, now))
            p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
            total = total + sum(p[c] * (p[c].log() - q[c].log()) for c in range(known))
        return temperature**2 * total / len(batch.labeled)

    return loss


@pytest.mark.parametrize(("strength", "temperature"), [(1.0, 2.0), (0.3, 1.0)])
def test_lwf_equals_the_plain_implementation(blobs, strength, temperature):
    learner, before = taught(blobs, strength=strength, temperature=temperature)
    batch = batch_of()
    expected = {
        "labeled": (1.0, labeled(batch)),
        "distill": (strength, distill(batch, before, CLASSES - len(NEW), temperature)),
    }
    terms = compare(learner, batch, expected, phase="fine-tune")
    assert terms["distill"].value.item() > 1e-3


def test_a_hand_value_of_the_distillation():
    # The teacher says 3/4 and 1/4, the student 1/2 and 1/2; logits are twice the logarithms.
    method = LwF(LwF.Config())
    said = method._divergence(torch.tensor([[2 * math.log(3), 0.0]]), torch.zeros(1, 2))
    assert float(said) == pytest.approx(4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)))


def test_the_distillation_leaves_the_rows_of_new_classes_alone(blobs):
    learner, _ = taught(blobs)
    terms = {term.name: term for term in learner.method.losses(learner.net, None, batch_of())}
    terms["distill"].value.backward()
    moved = learner.network.head.weight.grad.abs().sum(1) > 0
    assert moved.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("new", [(), NEW])
def test_nothing_diverges_right_after_the_teacher_was_taken(blobs, new):
    learner = fixed_learner(blobs, "lwf")
    learner.method.begin_step(learner.net, step_of(learner, new))
    terms = {term.name: term for term in learner.method.losses(learner.net, None, batch_of())}
    terms["distill"].value.backward()
    gradients = [p.grad for p in learner.network.parameters() if p.grad is not None]
    assert terms["distill"].value.item() == pytest.approx(0, abs=1e-12)
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-12


@pytest.mark.parametrize(("seen", "new"), [(2, ("a", "b")), (0, ()), (3, ("a", "b"))])
def test_without_two_known_classes_there_is_no_teacher(blobs, seen, new):
    learner = fixed_learner(blobs, "lwf")
    learner.method.begin_step(learner.net, step_of(learner, new, seen))
    assert [term.name for term in learner.method.losses(learner.net, None, batch_of())] == ["labeled"]
    assert learner.method.state() == {}


def test_the_teacher_is_the_network_at_the_end_of_the_time_step_before(blobs):
    learner = tiny_learner(tiny_config(blobs, "lwf", budget="2"))
    run = learn(learner)
    next(run)
    before = weights(learner)
    next(run)
    teacher = learner.method.state()
    assert all(torch.equal(value, before[name]) for name, value in teacher.items())
    assert len(teacher["head.bias"]) == learner.stream.steps[0].seen_classes


def test_a_single_image_can_be_learned_from(blobs):
    learner, _ = taught(blobs)
    batch = batch_of()
    one = replace(batch, labeled=batch.labeled.take(slice(0, 1)))
    assert all(bool(term.value.isfinite()) for term in learner.method.losses(learner.net, None, one))


def test_without_strength_lwf_is_fine_tuning(blobs):
    one, other = (
        run_through(tiny_learner(tiny_config(blobs, method, **options)))
        for method, options in (("lwf", {"strength": 0.0}), ("naive", {}))
    )
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()
    assert one.method.state() == {}


@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_the_teacher_is_charged_a_forward_for_every_image(blobs, accounting):
    learner = tiny_learner(replace(tiny_config(blobs, "lwf", budget="5"), accounting=accounting))
    made = Counter(event["t"] for event in updates_of(learner))
    cost = cost_model(MODEL)
    for receipt in learner.ledger.closed:
        forward = cost.flops("forward", receipt.classes) / cost.pass_flops(receipt.classes)
        price = 1 / 3 if accounting == "images" else forward
        updates = 5 if receipt.t == 1 else 3  # at 4/3 passes an image 3.75 would fit
        assert made[receipt.t] == updates
        items = {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}
        assert items["labeled", "train"].passes == pytest.approx(12 * updates)
        assert items.keys() == ({("labeled", "train")} | ({("teacher", "forward")} if receipt.t > 1 else set()))
        if receipt.t > 1:
            assert items["teacher", "forward"].images == 12 * updates
            assert items["teacher", "forward"].passes == pytest.approx(12 * updates * price)
            assert items["teacher", "forward"].flops == pytest.approx(
                12 * updates * cost.flops("forward", receipt.classes)
            )
