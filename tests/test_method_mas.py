"""MAS: what decay does in its limits, the importance by hand, and that labels play no part in it."""

from dataclasses import replace

import pytest
import torch

from helpers.fixed_batch import fixed_learner
from helpers.recording import equal
from helpers.tiny import tiny_config, tiny_learner
from test_method_importance import (
    LATER,
    PARTS,
    close,
    learn_step,
    move,
    pair_of,
    plain_images,
    plain_importance,
    trained,
)


def test_a_decay_of_one_freezes_the_first_importance(blobs):
    learner = fixed_learner(blobs, "mas", decay=1.0)
    learn_step(learner, PARTS)
    first = {name: value.clone() for name, value in pair_of(learner).importance.items()}
    learner.network.head.grow(7, torch.Generator().manual_seed(1))
    move(learner, 1)
    learn_step(learner, LATER)
    pair = pair_of(learner)
    assert all(torch.equal(value, pair.importance[name][: len(value)]) for name, value in first.items())
    assert not pair.importance["head.weight"][5:].any()
    assert equal(pair.anchor, trained(learner))  # where the weights are held goes with the time steps


def test_a_decay_of_zero_knows_the_last_time_step_only(blobs):
    learner = fixed_learner(blobs, "mas", decay=0.0)
    learn_step(learner, PARTS)
    learn_step(learner, LATER)
    close(pair_of(learner).importance, plain_importance(learner, LATER))


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
    part = plain_images([0, 0, 0], 1)
    learn_step(learner, [replace(part, images=part.images.float())])
    assert float(pair_of(learner).importance["head.weight"][0, 0]) == pytest.approx(24)


def test_labels_play_no_part_in_the_importance(blobs):
    found = []
    for label in (0, 3):
        learner = fixed_learner(blobs, "mas")
        learn_step(learner, [replace(part, labels=torch.full((len(part),), label)) for part in PARTS])
        found.append(pair_of(learner).importance)
    assert equal(*found)
