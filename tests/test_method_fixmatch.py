"""FixMatch with replay against plain guesses, and its limits: replay alone."""

import math
from dataclasses import replace

import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods.base import Phase
from dietcl.methods.fixmatch import FixMatch
from dietcl.streams.options import Mix
from dietcl.streams.sampler import pools_of
from helpers.fixed_batch import CURRENT, compare, fixed_batch, fixed_learner
from helpers.recording import equal, run_through, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_logits
from helpers.tiny import tiny_config, tiny_learner


def replay(batch):
    def loss(weights):
        parts = [part for part in (batch.labeled, batch.memory) if part is not None]
        sums = [plain_cross_entropy(plain_logits(part.images, weights), part) * len(part) for part in parts]
        return sum(sums) / sum(len(part) for part in parts)

    return loss


def plain_guesses(batch, weights):
    """Return each unlabeled image's likeliest current class and its probability."""
    guesses = []
    for logits in plain_logits(batch.unlabeled.view("weak"), weights).detach():
        total = sum(math.exp(logits[c]) for c in CURRENT)
        guesses.append(max((math.exp(logits[c]) / total, c) for c in CURRENT))
    return guesses


def guess(batch, threshold):
    def loss(weights):
        total = 0.0
        logits = plain_logits(batch.unlabeled.view("strong", strong=True), weights)
        for (probability, c), row in zip(plain_guesses(batch, weights), logits, strict=True):
            if probability >= threshold:
                total = total + row.exp().sum().log() - row[c]
        return total / len(batch.unlabeled) + 0 * logits.sum()

    return loss


@pytest.mark.parametrize("without", [{}, {"memory": None}, {"labeled": None}])
def test_fixmatch_equals_the_plain_implementation(blobs, without):
    batch = fixed_batch(**without)
    learner = fixed_learner(blobs, "fixmatch")
    surest = sorted(probability for probability, _ in plain_guesses(batch, learner.network.state_dict()))
    threshold = (surest[0] + surest[1]) / 2  # the least sure of three images is left out
    learner = fixed_learner(blobs, "fixmatch", threshold=threshold, strength=0.7)
    compare(learner, batch, {"replay": (1.0, replay(batch)), "guess": (0.7, guess(batch, threshold))}, phase="match")


def test_without_unlabeled_images_it_is_replay(blobs):
    batch = fixed_batch(unlabeled=None)
    compare(fixed_learner(blobs, "fixmatch"), batch, {"replay": (1.0, replay(batch))}, phase="match")


def test_hand_values_of_guesses(blobs):
    batch = fixed_batch()
    learner = fixed_learner(blobs, "fixmatch", threshold=0.5)
    with torch.no_grad():
        learner.network.head.weight.zero_()
        learner.network.head.bias.copy_(torch.tensor([9.0, 0.0, 9.0, math.log(2), 0.0]))
    # Class 3 has 2 of 4 parts among the current classes; the past ones are likelier, but cannot be guessed.
    *_, term = learner.method.losses(learner.net, Phase(name="match", mix=Mix()), batch)
    assert term.value.item() == pytest.approx(math.log((2 * math.exp(9) + 4) / 2))
    learner = fixed_learner(blobs, "fixmatch", threshold=0.51)
    with torch.no_grad():
        learner.network.head.weight.zero_()
        learner.network.head.bias.copy_(torch.tensor([9.0, 0.0, 9.0, math.log(2), 0.0]))
    *_, term = learner.method.losses(learner.net, Phase(name="match", mix=Mix()), batch)
    assert term.value.item() == 0


def test_above_a_threshold_of_one_loss_and_gradient_are_those_of_replay(blobs):
    batch, found = fixed_batch(), []
    for method, options in (("fixmatch", {"threshold": 1.01}), ("er", {})):
        learner = fixed_learner(blobs, method, **options)
        terms = list(learner.method.losses(learner.net, Phase(name="replay", mix=Mix()), batch))
        loss = sum(term.weight * term.value for term in terms)
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in learner.network.named_parameters() if p.grad is not None}))
    (loss, gradients), (wanted, expected) = found
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-12)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)


def test_without_a_share_of_unlabeled_images_it_is_balanced_replay_to_the_last_bit(blobs):
    one = run_through(tiny_learner(tiny_config(blobs, "fixmatch", unlabeled=0.0)))
    other = run_through(tiny_learner(tiny_config(blobs, "er")))
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()


@pytest.fixture(scope="module")
def stream(blobs):
    return tiny_learner(tiny_config(blobs)).stream


def test_batches_have_thirds(stream):
    method = FixMatch(FixMatch.Config())
    for t, counts in ((1, {"unlabeled": 4, "labeled": 8}), (2, {"unlabeled": 4, "labeled": 4, "memory": 4})):
        phase = method.next_phase(stream.steps[t - 1], (), 9.0)
        assert phase.mix.counts(12, pools_of(stream, t, phase.mix)) == counts
        assert method.next_phase(stream.steps[t - 1], (phase,), 9.0) is None


def test_without_labels_in_a_time_step_nothing_is_guessed(blobs, stream):
    bare = replace(stream.steps[1], labeled=stream.steps[1].labeled[:0], labels=stream.steps[1].labels[:0])
    learner = tiny_learner(
        tiny_config(blobs, "fixmatch"), replace(stream, steps=(stream.steps[0], bare, stream.steps[2]))
    )
    run_through(learner)
    paid = [{item.purpose for item in receipt.items if item.passes} for receipt in learner.ledger.closed]
    assert paid[1] == {"memory"}
    assert paid[2] == {"guess", "unlabeled", "labeled", "memory"}


@pytest.mark.parametrize("threshold", [0.0, 0.95, 2.0])
def test_receipts_have_four_thirds_for_an_unlabeled_image_whatever_is_guessed(blobs, threshold):
    learner = tiny_learner(tiny_config(blobs, "fixmatch", budget="5", threshold=threshold))
    events = updates_of(learner)
    for receipt in learner.ledger.closed:
        made = sum(event["t"] == receipt.t for event in events)
        assert made == 4  # of 40/3 passes each
        paid = {(item.purpose, item.operation): item.passes for item in receipt.items if item.passes}
        expected = {("guess", "forward"): 4 / 3, ("unlabeled", "train"): 4, ("labeled", "train"): 4}
        expected |= {("memory", "train"): 4} if receipt.t > 1 else {("labeled", "train"): 8}
        assert paid == {key: pytest.approx(made * passes) for key, passes in expected.items()}
        assert receipt.spent == pytest.approx(made * 12 * 10 / 9)


def test_prices_by_flops_are_those_of_a_forward_and_passes(blobs):
    learner = tiny_learner(replace(tiny_config(blobs, "fixmatch", budget="3"), accounting="flops"))
    next(learn(learner))
    (receipt,) = learner.ledger.closed
    items = {item.purpose: item for item in receipt.items}
    forward = learner.ledger.cost.flops("forward", receipt.classes)
    assert items["guess"].flops == items["guess"].images * forward
    assert items["unlabeled"].passes == items["unlabeled"].images == items["guess"].images


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"unlabeled": 1.0}, "--unlabeled 1.0"),
        ({"unlabeled": -0.1}, "--unlabeled -0.1"),
        ({"threshold": -0.5}, "--threshold -0.5"),
        ({"threshold": math.nan}, "--threshold nan"),
        ({"strength": -1.0}, "--strength -1.0"),
        ({"strength": math.inf}, "--strength inf"),
    ],
)
def test_impossible_options_are_refused(options, named):
    with pytest.raises(UserError, match=named):
        FixMatch.Config(**options)
