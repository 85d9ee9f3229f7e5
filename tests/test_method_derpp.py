"""DER++: the past is replayed by its labels and by the logits it had."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods.base import Phase, Reserve, Sweep
from dietcl.methods.derpp import DERpp
from dietcl.methods.pieces.store import Store
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Mix
from helpers.fixed_batch import compare, fixed_batch, fixed_learner, part
from helpers.recording import equal, hand_over, run_through, updates_of, weights
from helpers.reference_losses import plain_cross_entropy, plain_logits
from helpers.tiny import tiny_config, tiny_learner


def random_logits(seed, width):
    return 3 * torch.randn(1, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def remember(learner, memory, widths):
    """Store logits of so many classes for the first images, none for a width of 0; returns them by position."""
    stored = {}
    for i, width in enumerate(widths):
        if width:
            stored[i] = random_logits(i, width)[0].tolist()
            learner.method.store.add(**memory.take(slice(i, i + 1)).with_values(random_logits(i, width)))
    return stored


def plain_replay(batch, beta, first):
    def loss(weights):
        total, number = 0.0, 0
        if batch.labeled is not None:
            total = plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled) * len(batch.labeled)
            number = len(batch.labeled)
        if batch.memory is None:
            return total / number
        rest = batch.memory.take(slice(first, None))
        total = total + beta * plain_cross_entropy(plain_logits(rest.images, weights), rest) * len(rest)
        return total / (number + len(rest))

    return loss


def plain_distance(batch, stored, first):
    def loss(weights):
        logits = plain_logits(batch.memory.view("logits")[:first], weights)
        per_image = []
        for i, values in stored.items():
            squares = [(logits[i, c] - value) ** 2 for c, value in enumerate(values)]
            per_image.append(sum(squares) / len(values))
        return sum(per_image) / len(per_image)

    return loss


def test_derpp_equals_the_plain_implementation(blobs):
    learner, batch = fixed_learner(blobs, "derpp"), fixed_batch(unlabeled=None)
    stored = remember(learner, batch.memory, [3, 5, 0])
    expected = {
        "replay": (1.0, plain_replay(batch, 0.5, 3)),
        "logits": (0.3 * (2 / 6), plain_distance(batch, stored, 3)),
    }
    compare(learner, batch, expected, phase="replay")


def test_thirds_are_half_of_the_three_means_summed(blobs):
    learner = fixed_learner(blobs, "derpp", alpha=2.0, beta=3.0)
    memory = part("memory", [0, 2, 4, 1], 2)
    batch = fixed_batch(labeled=part("labeled", [1, 3], 1), memory=memory, unlabeled=None)
    stored = remember(learner, memory, [2, 5])

    def halves(weights):
        incoming = plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled)
        second = memory.take(slice(2, 4))
        return (incoming + 3 * plain_cross_entropy(plain_logits(second.images, weights), second)) / 2

    expected = {"replay": (1.0, halves), "logits": (2 / 2, plain_distance(batch, stored, 2))}
    compare(learner, batch, expected, phase="replay")


def test_parts_may_be_missing(blobs):
    batch = fixed_batch(unlabeled=None, memory=None)
    expected = {"replay": (1.0, plain_replay(batch, 0.5, 0))}
    compare(fixed_learner(blobs, "derpp"), batch, expected, phase="replay")
    learner, batch = fixed_learner(blobs, "derpp"), fixed_batch(unlabeled=None, labeled=None)
    stored = remember(learner, batch.memory, [3, 5, 4])
    expected = {"replay": (1.0, plain_replay(batch, 0.5, 3)), "logits": (0.3, plain_distance(batch, stored, 3))}
    compare(learner, batch, expected, phase="replay")
    batch = fixed_batch(unlabeled=None, labeled=None, memory=part("memory", [2], 2))
    compare(fixed_learner(blobs, "derpp"), batch, {"replay": (1.0, plain_replay(batch, 0.5, 0))}, phase="replay")


@pytest.mark.parametrize("widths", [[], [0, 0, 0, 4, 5]])
def test_images_without_stored_logits_have_no_distance(blobs, widths):
    learner, batch = fixed_learner(blobs, "derpp"), fixed_batch(unlabeled=None)
    remember(learner, batch.memory, widths)
    terms = compare(
        learner,
        batch,
        {"replay": (1.0, plain_replay(batch, 0.5, 3)), "logits": (0.3 * (2 / 6), lambda w: 0 * w["head.bias"].sum())},
        phase="replay",
    )
    assert terms["logits"].value.item() == 0


def test_hand_value_of_the_distance(blobs):
    learner = fixed_learner(blobs, "derpp")
    one = part("memory", [0, 1], 2)
    learner.method.store.add(**one.take(slice(0, 1)).with_values(torch.tensor([[1.0, 2.0]])))
    learner.method.store.add(**one.take(slice(1, 2)).with_values(torch.tensor([[0.0, 0.0, 6.0]])))
    logits = torch.tensor([[2.0, 4.0, 9.0, 9.0], [0.0, 3.0, 3.0, 9.0]])
    # (1 + 4) / 2 of the two stored classes of the first image, (0 + 9 + 9) / 3 of the second's three.
    assert learner.method._distance(one, logits).item() == pytest.approx((2.5 + 6) / 2)


def test_without_the_logits_it_is_balanced_replay(blobs):
    runs = [
        run_through(tiny_learner(tiny_config(blobs, method, budget="4", **options)))
        for method, options in (("derpp", {"alpha": 0.0, "beta": 1.0}), ("er", {}))
    ]
    assert equal(*map(weights, runs))
    assert (runs[0].counts.loss_sum == runs[1].counts.loss_sum).all()
    assert runs[0].ledger.receipts() == runs[1].ledger.receipts()
    assert not len(runs[0].method.store)


def test_logits_are_stored_as_they_are_at_the_end_of_a_time_step(blobs):
    learner = tiny_learner(tiny_config(blobs, "derpp", budget="4"))
    expected = {}
    for t in learn(learner):
        step = learner.stream.step(t)
        with learner.ledger.free():
            scores = learner.net.scores(normalize(learner.loader.read(step.labeled)))
        expected |= dict(zip(step.labeled.tolist(), scores, strict=True))
    store = learner.method.store
    assert set(store.rows.tolist()) == set(expected)
    assert len(store) == len(expected)
    assert store.values.shape[1] == 6
    for row, values in zip(store.rows.tolist(), store.values, strict=True):
        width = len(expected[row])
        torch.testing.assert_close(values[:width], expected[row], rtol=1e-4, atol=1e-5)
        assert values[width:].isnan().all()


def test_thirds_of_a_batch_and_a_third_of_a_pass_for_each_new_label(blobs):
    learner = tiny_learner(tiny_config(blobs, "derpp", budget="4"))
    made = Counter(event["t"] for event in updates_of(learner))
    # Eight labels a time step are held back for: of 48 - 8 / 3 passes three updates of twelve can be paid.
    assert made == {1: 3, 2: 3, 3: 3}
    for receipt in learner.ledger.closed:
        paid = {(item.purpose, item.operation): item.passes for item in receipt.items if item.passes}
        assert paid.pop(("logits", "forward")) == pytest.approx(8 / 3)
        train = {("labeled", "train"): 36} if receipt.t == 1 else {("labeled", "train"): 12, ("memory", "train"): 24}
        assert paid == train


def test_a_time_step_is_a_phase_and_a_sweep(blobs):
    step = tiny_learner(tiny_config(blobs)).stream.steps[1]
    method = DERpp(DERpp.Config())
    phase = method.next_phase(step, (), 4.0)
    assert phase == Phase(
        name="replay", mix=Mix(labeled=1 / 3, memory=2 / 3, past_only=True), reserve=Reserve(forward=8)
    )
    sweep = method.next_phase(step, (phase,), 1.0)
    assert sweep == Sweep(name="logits", pool="labeled")
    assert method.next_phase(step, (phase, sweep), 0.0) is None
    bare = replace(step, labeled=step.labeled[:0], labels=step.labels[:0])
    assert method.next_phase(bare, (phase,), 1.0) is None


def test_a_sweep_goes_as_far_as_the_budget(blobs):
    learner = tiny_learner(tiny_config(blobs, "derpp", budget="0.1"))
    assert updates_of(learner) == []
    assert len(learner.method.store) == 3 * 3  # three images for 1.2 passes in each of three time steps
    assert [receipt.spent for receipt in learner.ledger.closed] == pytest.approx([1, 1, 1])


def test_a_sweep_that_was_cut_short_does_no_harm(blobs):
    learner = tiny_learner(tiny_config(blobs, "derpp", budget="3"))
    add = learner.method.store.add
    learner.method.store.add = lambda **columns: add(**{name: column[:1] for name, column in columns.items()})
    events = updates_of(learner)
    assert len(learner.method.store) == 3 * 2  # one of each micro-batch
    assert {tuple(event["loss"]) for event in events if event["t"] > 1} == {("replay", "logits")}
    assert all(math.isfinite(value) for event in events for value in event["loss"].values())
    assert all(bool(value.isfinite().all()) for value in weights(learner).values())


def test_what_is_stored_survives_a_restart(blobs, tmp_path):
    config = tiny_config(blobs, "derpp", budget="3")
    whole, stopped, resumed = (tiny_learner(config) for _ in range(3))
    run_through(whole)
    for t in learn(stopped):
        if t == 2:
            break
    hand_over(stopped, resumed, tmp_path / "checkpoint")
    assert [*learn(resumed)] == [3]
    assert equal(weights(resumed), weights(whole))
    for name, values in whole.method.state().items():
        assert torch.equal(values.nan_to_num(-1), resumed.method.state()[name].nan_to_num(-1))


def test_the_store_gives_values_by_row_and_nan_for_strangers():
    store = Store()
    assert store.values_of(torch.tensor([4, 5])).shape == (2, 0)
    images = part("memory", [0, 1, 2], 1)
    store.add(**images.with_values(torch.arange(6.0).reshape(3, 2)))
    found = store.values_of(torch.tensor([102, 7, 100]))
    assert found[[0, 2]].tolist() == [[4, 5], [0, 1]]
    assert found[1].isnan().all()


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_impossible_weights_are_refused(name, value):
    with pytest.raises(UserError, match=f"--{name}"):
        DERpp.Config(**{name: value})
