"""Losses on embeddings: triplets of the hardest in a batch, and two sets that are kept apart."""

import math

import pytest
import torch

from dietcl.methods.ccic import batch_hard, push_apart
from helpers.reference_losses import plain_batch_hard


@pytest.mark.parametrize("number", [2, 7])
def test_equal_embeddings_lose_the_margin_and_have_a_finite_gradient(number):
    features = torch.ones(number, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(number) % 2
    apart = push_apart(features, features.detach())
    assert apart.item() == pytest.approx(1)
    hard = batch_hard(features, labels)
    assert hard.item() == (0 if number == 2 else 1)  # two images of two classes have no other of their own
    (apart + hard).backward()
    assert bool(features.grad.isfinite().all())


def test_hand_values_of_the_triplet():
    # On the circle: class 0 at 0° and 90°, class 1 at 180°.
    points = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-0.5, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    first = max(0, math.sqrt(2) - 2 + 1)
    second = max(0, math.sqrt(2) - math.sqrt(2) + 1)
    assert float(batch_hard(points, labels)) == pytest.approx((first + second) / 2)
    assert float(push_apart(points[:1], points[1:])) == 0  # the nearest is farther than the margin
    near = torch.tensor([[math.cos(0.3), math.sin(0.3)]], dtype=torch.float64)
    assert float(push_apart(near, points)) == pytest.approx(1 - 2 * math.sin(0.15))


@pytest.mark.parametrize("labels", [[0], [0, 0, 0], [0, 1, 2]])
def test_a_batch_without_triplets_has_no_loss(labels):
    features = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = batch_hard(features, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert not features.grad.any()


@pytest.mark.parametrize("seed", range(5))
def test_triplets_equal_plain_loops(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (9,), generator=generator)
    points = [f / f.square().sum().sqrt() for f in features]
    assert float(batch_hard(features, labels)) == pytest.approx(float(plain_batch_hard(points, labels.tolist())))
