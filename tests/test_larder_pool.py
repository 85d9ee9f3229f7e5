"""The larder as a pool: what is drawn, what is believed of an image, and the loss against it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.methods.base import Part
from dietcl.methods.pieces.larder import Larder
from dietcl.streams.sampler import NOTHING


def filled(trust=(0.5, 1.0, 0.25, 0.75)):
    larder = Larder()
    count = len(trust)
    larder.add(torch.arange(10, 10 + count), torch.arange(count) % 2, torch.tensor(trust), torch.arange(2))
    return larder


def test_a_larder_is_drawn_from_in_proportion_to_the_square_of_trust():
    pool = filled().pool()
    assert pool.cumulative.tolist() == [0.25, 1.25, 1.3125, 1.875]
    drawn = np.bincount(pool.draw(20_000, np.random.default_rng(0)), minlength=4) / 20_000
    assert drawn.tolist() == pytest.approx([2 / 15, 8 / 15, 1 / 30, 3 / 10], abs=0.02)


def test_a_guess_that_is_trusted_more_is_drawn_more_often():
    pool = filled().pool()
    drawn = np.bincount(pool.draw(20_000, np.random.default_rng(0)), minlength=4)
    assert np.argsort(drawn).tolist() == [2, 0, 3, 1]
    assert (pool.rows.tolist(), pool.labels.tolist()) == ([10, 11, 12, 13], [0, 1, 0, 1])


def test_an_empty_larder_is_no_pool():
    held, none = Larder(), torch.zeros(0, dtype=torch.int64)
    assert held.pool() is NOTHING
    held.add(none, none, none.double(), torch.tensor([3, 4]))
    assert held.pool() is NOTHING
    assert len(held) == len(held.choices) == 0  # a time step without guesses takes no memory


def test_a_larder_comes_back_from_its_state_and_keeps_all_that_is_added():
    larder, again = filled(), Larder()
    again.load_state(larder.state())
    again.add(torch.tensor([99]), torch.tensor([3]), torch.tensor([0.3]), torch.tensor([1, 3, 4]))
    assert (len(larder), len(again)) == (4, 5)
    assert again.rows.tolist() == [10, 11, 12, 13, 99]
    assert again.labels.tolist() == [0, 1, 0, 1, 3]
    assert again.trust.tolist() == pytest.approx([0.5, 1, 0.25, 0.75, 0.3])
    assert again.trust.dtype == torch.float64
    assert again.choices.tolist() == [[0, 1, -1], [1, 3, 4]]
    assert again.choice.tolist() == [0, 0, 0, 0, 1]
    assert again.beliefs(torch.tensor([99]), 6).tolist()[0] == pytest.approx([0, 0.7 / 3, 0, 0.3 + 0.7 / 3, 0.7 / 3, 0])


# What is believed of an image.


def two_choices():
    """Return a larder with rows 7 and 3 guessed among classes 0 and 1, and row 5 among 1, 2 and 4, out of order."""
    larder = Larder()
    larder.add(torch.tensor([7, 3]), torch.tensor([1, 0]), torch.tensor([0.5, 1.0]), torch.tensor([0, 1]))
    larder.add(torch.tensor([5]), torch.tensor([4]), torch.tensor([0.4]), torch.tensor([1, 2, 4]))
    return larder


def test_beliefs_by_hand():
    beliefs = two_choices().beliefs(torch.tensor([5, 3, 7, 5]), 6)
    unsure = [0, 0.2, 0.2, 0, 0.6, 0]
    for found, wanted in zip(beliefs, [unsure, [1, 0, 0, 0, 0, 0], [0.25, 0.75, 0, 0, 0, 0], unsure], strict=True):
        assert found.tolist() == pytest.approx(wanted, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_beliefs_are_probabilities_of_possible_classes_and_highest_for_the_guess(data):
    larder, classes, truth = Larder(), 8, {}
    rows = iter(data.draw(st.permutations(range(40))))
    for _ in range(data.draw(st.integers(1, 4))):
        possible = sorted(data.draw(st.sets(st.integers(0, classes - 1), min_size=1)))
        count = data.draw(st.integers(0, 5))
        guesses = [
            (next(rows), data.draw(st.sampled_from(possible)), data.draw(st.floats(0.01, 1))) for _ in range(count)
        ]
        truth |= {row: (label, set(possible)) for row, label, _ in guesses}
        columns = (torch.tensor([guess[i] for guess in guesses], dtype=kind) for i, kind in enumerate(KINDS))
        larder.add(*columns, torch.tensor(possible))
    if not truth:
        return
    beliefs = larder.beliefs(torch.tensor(list(truth)), classes)
    assert beliefs.sum(1).tolist() == pytest.approx([1] * len(truth), abs=1e-5)
    for found, (label, possible) in zip(beliefs, truth.values(), strict=True):
        assert set(found.nonzero()[:, 0].tolist()) <= possible
        assert found.argmax() == label or found.max() == found[label]


KINDS = (torch.int64, torch.int64, torch.float64)


def part_of(rows, weight=1.0, smoothing=0.0):
    rows = torch.tensor(rows)
    images, weights = torch.zeros(len(rows), 3, 2, 2), torch.full((len(rows),), weight)
    return Part("larder", images, labels=rows * 0, partners=rows * 0, weight=weights, smoothing=smoothing, rows=rows)


def test_a_guess_that_is_surely_right_is_learned_as_a_label():
    larder = Larder()
    larder.add(torch.arange(4), torch.tensor([2, 0, 1, 2]), torch.ones(4), torch.arange(3))
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    part = part_of([0, 1, 2, 3], weight=0.7, smoothing=0.1)
    labels = torch.tensor([2, 0, 1, 2])
    as_labels = Part("memory", part.images, labels, labels.flip(0), part.weight, 0.1)
    torch.testing.assert_close(larder.cross_entropy(part, logits), as_labels.cross_entropy(logits))


def test_the_answer_of_the_network_corrects_a_guess_by_hand():
    # Believed with 1/4 and 3/4, and answered with 0.9 and 0.1 of classes 0 and 1: 0.225 to 0.075, or 3/4 and 1/4.
    logits = torch.tensor([[0.9, 0.1, 1.0]]).log().requires_grad_()
    loss = two_choices().cross_entropy(part_of([7]), logits)
    log_p = logits.log_softmax(1)[0]
    assert loss.item() == pytest.approx(-(0.75 * log_p[0] + 0.25 * log_p[1]).item())
    loss.backward()
    # The belief is no function of the weights: the gradient is that of a cross-entropy with fixed targets.
    assert logits.grad[0].tolist() == pytest.approx([0.45 - 0.75, 0.05 - 0.25, 0.5])


def test_where_the_network_cannot_tell_the_guess_stands():
    loss = two_choices().cross_entropy(part_of([5]), torch.zeros(1, 6))
    assert float(loss) == pytest.approx(np.log(6))
    logits = torch.tensor([[5.0, 0, 0, 0, 0, 5.0]])  # sure of classes that are impossible
    log_p = logits.log_softmax(1)[0]
    wanted = -(torch.tensor([0, 0.2, 0.2, 0, 0.6, 0]) * log_p).sum()
    assert float(two_choices().cross_entropy(part_of([5]), logits)) == pytest.approx(float(wanted))


def test_mixed_images_are_believed_by_their_weights_and_so_is_the_answer():
    logits = torch.tensor([[2.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 3.0, 0]])
    beliefs, weight = two_choices().beliefs(torch.tensor([7, 5]), 6), 0.8
    target = torch.zeros(2, 6)
    for image in (0, 1):
        for other, w in ((image, weight), (1 - image, 1 - weight)):
            product = beliefs[other] * logits[image].softmax(0) ** w
            target[image] += w * product / product.sum()
    wanted = -(target * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(two_choices().cross_entropy(part_of([7, 5], weight), logits), wanted)
