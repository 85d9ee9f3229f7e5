"""Larder: what it guesses and keeps, what it learns from, what it pays, and how it answers."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dietcl
import dietcl.run
from dietcl.engine.distributed import join, leave
from dietcl.engine.loop import advance, learn
from dietcl.errors import UserError
from dietcl.execution import Execution
from dietcl.methods import larder as larder_method
from dietcl.methods import method_config
from dietcl.methods.base import Mix, Part, Sweep
from dietcl.methods.larder import (
    GUESSING_SHARE,
    LEAST_TRUST,
    TRYING_SHARE,
    LarderMethod,
    class_prior,
    is_recurring,
)
from dietcl.methods.pieces.guessing import guess_flops
from dietcl.methods.pieces.larder import Larder
from dietcl.methods.pieces.ridge import score_shares
from dietcl.model import save_model
from dietcl.run import execute
from dietcl.streams.assign_steps import TRAIN, assign_steps
from dietcl.streams.index import open_manifest
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Recipe
from dietcl.streams.sampler import NOTHING
from dietcl.streams.stream import TimeStep, reveal
from helpers.distributed_runs import launch
from helpers.recording import Notes, equal, hand_over, paid, run_through, segments, updates_of, weights
from helpers.runs import outcome
from helpers.tiny import tiny_config, tiny_learner

LEARNED, FROZEN = "full", "head"
NEW, AGAIN = "class", "data"  # classes come once, or in every time step
KINDS = [(LEARNED, NEW), (LEARNED, AGAIN), (FROZEN, NEW), (FROZEN, AGAIN)]


def configured(blobs, train=LEARNED, recipe=NEW, budget="9", rate=0.2, method="larder", seed=0, **options):
    config = tiny_config(blobs, method, budget=budget, seed=seed, **options)
    recipe = Recipe(recipe=recipe, time_steps=3, label_rate=rate)
    return replace(config, recipe=recipe, model=replace(config.model, train=train))


def learner_of(blobs, *arguments, **options):
    return tiny_learner(configured(blobs, *arguments, **options))


def truth_of(learner, rows):
    """Return the classes of images, which no method is told."""
    index = learner.loader.storage.index
    number = {name: number for number, name in enumerate(learner.stream.classes)}
    return np.array([number[index.classes[code]] for code in index.label[learner.stream.index_row[rows]]])


def accuracy(learner):
    return learner.counts.correct[-1].sum() / learner.counts.count[-1].sum()


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def run(request, blobs):
    """A learner after the whole stream, its events, and what it remembered after each time step."""
    learner = learner_of(blobs, *request.param)
    learner.recorder = notes = Notes()
    kept = [len(learner.method.larder) for _ in learn(learner)]
    return learner, notes, kept


# The pool.


def filled(trust=(0.5, 1.0, 0.25, 0.75)):
    larder = Larder()
    count = len(trust)
    larder.add(torch.arange(10, 10 + count), torch.arange(count) % 2, torch.tensor(trust))
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
    assert Larder().pool() is NOTHING
    assert len(Larder()) == 0


def test_a_larder_comes_back_from_its_state_and_keeps_all_that_is_added():
    larder, again = filled(), Larder()
    again.load_state(larder.state())
    again.add(torch.tensor([99]), torch.tensor([3]), torch.tensor([0.3]))
    assert (len(larder), len(again)) == (4, 5)
    assert again.rows.tolist() == [10, 11, 12, 13, 99]
    assert again.labels.tolist() == [0, 1, 0, 1, 3]
    assert again.trust.tolist() == pytest.approx([0.5, 1, 0.25, 0.75, 0.3])
    assert again.trust.dtype == torch.float64


# Which classes an image can have.


def step_of(labels, seen, new):
    labels = np.array(labels, np.int64)
    rows = np.arange(len(labels))
    return TimeStep(2, rows, labels, rows + 1000, seen, tuple(f"class {i}" for i in range(new)))


@pytest.mark.parametrize(
    ("labels", "seen", "new", "wanted"),
    [
        ([2, 2, 3], 4, 2, [0, 0, 1, 1]),  # no class comes again
        ([0, 1, 1], 2, 2, [1, 1]),
        # Of 10 labels none is the only one of its class: 1/12 of the images are of others, too few to be guessed.
        ([0] * 4 + [1] * 6, 4, 0, [1, 1, 0, 0]),
        # All three are: 4/5 are of the two others, 4 times as many as of these three.
        ([0, 1, 2], 5, 0, [1, 1, 1, 6, 6]),
        # Class 3 is new, so that it is the only one tells nothing: (1 + 1) / (2 + 2).
        ([0, 3], 4, 1, [1, 1, 1, 1]),
        # Just a fifth: (1 + 1) / (8 + 2), a quarter of what three classes weigh.
        ([0, 1, 1, 1, 1, 2, 2, 2], 4, 0, [1, 1, 1, 0.75]),
        ([0, 1, 1, 1, 1, 2, 2, 2, 2], 4, 0, [1, 1, 1, 0]),
        ([0, 1], 2, 0, [1, 1]),  # none is missing
    ],
)
def test_the_weights_of_classes_by_hand(labels, seen, new, wanted):
    assert class_prior(step_of(labels, seen, new)).tolist() == pytest.approx(wanted)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=40), st.integers(0, 7))
def test_missing_classes_together_weigh_what_is_missed(labels, old):
    step = step_of(labels, 8, 8 - old)
    prior, counts = class_prior(step), np.bincount(labels, minlength=8)
    assert prior[counts > 0].tolist() == [1] * (counts > 0).sum()
    missing = (counts == 0) & (np.arange(8) < old)
    assert not prior[(counts == 0) & ~missing].any()
    missed = (1 + (counts[:old] == 1).sum()) / (2 + len(labels))
    share = float(prior[missing].sum() / prior.sum())
    is_guessed = counts[:old].any() and missing.any() and missed >= larder_method.LEAST_MISSED
    assert share == pytest.approx(missed if is_guessed else 0)


def test_a_class_that_was_known_before_tells_that_classes_come_again():
    assert not is_recurring(step_of([2, 3], 4, 2))
    assert is_recurring(step_of([2, 3], 4, 1))
    assert not is_recurring(step_of([], 4, 0))


def test_confidence_under_weights_of_classes_by_hand():
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.8, 0.1, 0.1], [0.0, 0.0, 0.0]])
    confidence, best = larder_method._most_confident(shares, torch.tensor([1.0, 3.0, 1.0]))
    assert confidence.tolist() == pytest.approx([0.75, 2 / 3, 0])
    assert best.tolist()[:2] == [1, 0]


# Its plan.


@pytest.mark.parametrize(
    ("train", "recipe", "options", "names"),
    [
        (LEARNED, NEW, {}, ["labels", "guess", "learn"]),
        (LEARNED, AGAIN, {}, ["labels", "past", "guess", "learn"]),
        (LEARNED, NEW, {"guessed": 0.0}, ["learn"]),
        (LEARNED, AGAIN, {"guessed": 0.0}, ["learn"]),
        (FROZEN, NEW, {}, ["labels", "guess"]),
        (FROZEN, AGAIN, {}, ["labels", "guess"]),  # it has the features of all labels
        (FROZEN, NEW, {"guessed": 0.0}, ["labels"]),
    ],
)
def test_a_time_step_looks_guesses_and_learns(blobs, train, recipe, options, names):
    learner = learner_of(blobs, train, recipe, **options)
    step = learner.stream.steps[1]
    assert [segment.name for segment in segments(learner.method, step)] == names
    nothing = np.zeros(0, np.int64)
    for other in (replace(step, unlabeled=nothing), replace(step, labeled=nothing, labels=nothing)):
        rest = [segment.name for segment in segments(learner.method, other)]
        assert rest == (["learn"] if train == LEARNED else ["labels"])


def test_what_is_looked_at_is_limited(blobs, monkeypatch):
    monkeypatch.setattr(larder_method, "MOST_GUESSED", 10)
    monkeypatch.setattr(larder_method, "MOST_PAST", 5)
    learner = learner_of(blobs, LEARNED, AGAIN)
    learner.recorder = notes = Notes()
    run_through(learner)
    looked = [(event["t"], event["name"], event["images"]) for event in notes.of("sweep")]
    assert [images for _, name, images in looked if name == "guess"] == [10] * 3
    assert [(t, images) for t, name, images in looked if name == "past"] == [(2, 5), (3, 5)]


def share_with(blobs, trust, labels, **options):
    method = learner_of(blobs, **options).method
    method.larder, method.num_labels = filled(trust), labels
    return method._guessed_share()


def test_the_share_of_guesses_in_a_batch_by_hand(blobs):
    trust = (0.25, 0.5, 0.5, 0.75)
    # Trusted by half: 0.75·√(1/2). Their squares add up to 1.125 labels, so that beside 8 they have an eighth at most.
    assert share_with(blobs, 10 * trust, 1) == pytest.approx(0.75 * math.sqrt(0.5))
    assert share_with(blobs, trust, 8) == pytest.approx(1.125 / 9.125)
    assert share_with(blobs, trust, 1, guessed=0.3) == pytest.approx(0.3 * math.sqrt(0.5))
    assert share_with(blobs, (1.0,) * 100, 10) == 0.75
    assert share_with(blobs, (), 8) == 0
    assert share_with(blobs, (), 0) == 0


@pytest.fixture(scope="module")
def method(blobs):
    return learner_of(blobs).method


@given(st.lists(st.floats(0.25, 1), min_size=1, max_size=30), st.integers(1, 100))
def test_no_guess_is_drawn_more_often_than_a_label_and_all_together_not_more_than_they_may(method, trust, labels):
    method.larder, method.num_labels = filled(trust), labels
    share = method._guessed_share()
    assert 0 < share <= 0.75
    drawn = np.diff(method.remembered().cumulative, prepend=0)
    assert (share * drawn / drawn.sum()).max() <= (1 - share) / labels * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"guessed": 1.0}, "--guessed 1.0"),
        ({"guessed": -0.1}, "--guessed -0.1"),
        ({"guessed": math.nan}, "--guessed nan"),
        ({"per_label": 0}, "--per-label 0"),
    ],
)
def test_impossible_options_are_refused(options, named):
    with pytest.raises(UserError, match=named):
        LarderMethod.Config(**options)


# What it remembers.


def test_guesses_are_remembered_for_good_and_mostly_right(run):
    learner, _, kept = run
    larder = learner.method.larder
    assert kept[0] > 0
    assert kept == sorted(kept)
    assert kept[-1] == len(larder) == len(set(larder.rows.tolist()))
    assert float(larder.trust.min()) >= LEAST_TRUST
    assert float(larder.trust.max()) <= 1
    right = (truth_of(learner, larder.rows.numpy()) == larder.labels.numpy()).mean()
    assert right > (0.8 if learner.config.recipe.recipe == NEW else 0.5)


def test_what_is_remembered_arrived_without_a_label_and_has_a_class_of_its_time_step(run):
    learner, _, kept = run
    larder = learner.method.larder
    for step, begin, end in zip(learner.stream.steps, [0, *kept], kept, strict=False):
        assert set(larder.rows[begin:end].tolist()) <= set(step.unlabeled.tolist())
        assert set(larder.labels[begin:end].tolist()) <= set(class_prior(step).nonzero()[:, 0].tolist())


def test_every_new_label_with_another_one_of_its_class_is_evidence(run):
    learner, _, _ = run
    known, tested = Counter(), 0
    for step in learner.stream.steps:
        known = known + Counter(step.labels.tolist())
        tested += sum(known[label] > 1 for label in step.labels.tolist())
    assert len(learner.method.evidence.right) == tested > 10
    assert set(learner.method.evidence.right.tolist()) <= {0.0, 1.0}
    assert learner.method.num_labels == sum(len(step.labeled) for step in learner.stream.steps)


def test_nothing_that_was_looked_at_is_kept_but_what_is_remembered(run):
    learner, _, _ = run
    assert all(len(learner.method.state()[name]) == 0 for name in ("rows", "labels", "features"))


@pytest.mark.parametrize(("train", "recipe"), KINDS)
def test_at_most_one_guess_is_remembered_for_each_label(blobs, train, recipe):
    learner = learner_of(blobs, train, recipe, per_label=1)
    assert learner.config.method_config == method_config("larder:small")
    larder, begin = learner.method.larder, 0
    whole = run_through(learner_of(blobs, train, recipe)).method.larder
    for t in learn(learner):
        larder, step = learner.method.larder, learner.stream.step(t)
        kept, begin = Counter(larder.labels[begin:].tolist()), len(larder)
        assert not kept - Counter(step.labels.tolist())
    assert 0 < len(larder) < len(whole)


def test_a_guess_that_is_left_out_for_another_is_trusted_less(blobs):
    few, all_ = (learner_of(blobs, FROZEN, per_label=limit) for limit in (1, None))
    next(learn(few)), next(learn(all_))
    kept, every = few.method.larder, all_.method.larder
    assert torch.isin(kept.rows, every.rows).all()
    for label in kept.labels.unique():
        left = every.trust[(every.labels == label) & ~torch.isin(every.rows, kept.rows)]
        assert kept.trust[kept.labels == label].min() >= left.max()


def trusting(monkeypatch, values):
    """Let images be trusted in turn by these values, whatever labels tell."""

    def instead(chance, classes):
        assert ((chance >= 0) & (chance <= 1)).all()
        return torch.tensor(values, dtype=torch.float64).repeat(len(chance))[: len(chance)]

    monkeypatch.setattr(larder_method, "trust", instead)


def test_guesses_that_are_hardly_trusted_are_not_remembered(blobs, monkeypatch):
    trusting(monkeypatch, [0.3, LEAST_TRUST, 0.24, 0.1])
    learner = learner_of(blobs)
    next(learn(learner))
    assert Counter(learner.method.larder.trust.tolist()) == {0.3: 8, 0.25: 8}  # of 32
    assert learner.method.is_trusted


@pytest.mark.parametrize(("others", "kept"), [(0.0, 0), (0.09, 0), (0.11, 4)])
def test_where_all_guesses_together_are_hardly_trusted_none_is_remembered(blobs, monkeypatch, others, kept):
    trusting(monkeypatch, [0.9] + [others] * 7)  # every eighth of 32; with 0.1 for others, the mean is a fifth
    learner = learner_of(blobs)
    next(learn(learner))
    assert learner.method.is_trusted == (kept > 0)
    assert len(learner.method.larder) == kept


def test_after_guesses_that_could_not_be_trusted_little_is_spent_on_trying_again(blobs, monkeypatch):
    trusting(monkeypatch, [0.0])
    learner = learner_of(blobs)
    learner.recorder = notes = Notes()
    learning = learn(learner)
    next(learning), next(learning)
    trusting(monkeypatch, [1.0])
    for _ in learning:
        assert learner.method.is_trusted
        assert len(learner.method.larder) == 12
    guess = [segment for segment in segments(learner.method, learner.stream.steps[1]) if segment.name == "guess"]
    assert guess[0].share == GUESSING_SHARE
    learner.method.is_trusted = False
    guess = [segment for segment in segments(learner.method, learner.stream.steps[1]) if segment.name == "guess"]
    assert guess[0].share == TRYING_SHARE
    # Of 108 passes 8/3 go to the labels; a quarter of the rest is more than 32 images, 0.02 of it more than six.
    assert [event["images"] for event in notes.of("sweep") if event["name"] == "guess"] == [32, 12, 12]


def test_labels_of_earlier_time_steps_help_to_guess_only_where_classes_come_again(blobs):
    for recipe, wanted in ((NEW, 0), (AGAIN, 7)):
        learner = learner_of(blobs, LEARNED, recipe)
        asked = []
        guess = learner.method._guess_labels

        def watched(net, step, asked=asked, learner=learner, guess=guess):
            known = learner.method.arrivals["rows"][learner.method.arrivals["labels"] >= 0]
            asked.append(set(known.tolist()) - set(step.labeled.tolist()))
            assert len(known) == len(set(known.tolist()))
            guess(net, step)

        learner.method._guess_labels = watched
        run_through(learner)
        earlier = set(learner.stream.steps[0].labeled.tolist())
        assert (len(asked[1]), asked[1] <= earlier) == (wanted, True)


def test_weights_of_classes_count_for_labels_and_for_arriving_images_alike(blobs, monkeypatch):
    class Undecided:
        def __init__(self, features):
            assert features.shape[1] == 96

        def shares(self, labels, classes):
            return (torch.full((len(labels), classes), 1 / classes),) * 2

    def undecided(guesser, labels, tested, classes):
        return guesser.shares(labels[tested], classes)[0], tested.nonzero()[:, 0]

    def trusted(chance, classes):
        assert classes == 2  # of this time step, though others are possible, too
        return torch.ones_like(chance)

    monkeypatch.setattr(larder_method, "Guesser", Undecided)
    monkeypatch.setattr(larder_method, "cross_fit", undecided)
    monkeypatch.setattr(larder_method, "trust", trusted)
    monkeypatch.setattr(larder_method, "class_prior", lambda step: torch.tensor([1.0] * (step.seen_classes - 1) + [9]))
    learner = learner_of(blobs)
    method, kept = learner.method, 0
    for t in learn(learner):
        step = learner.stream.step(t)
        latest = slice(-len(step.labeled), None)
        assert method.evidence.confidence[latest].tolist() == pytest.approx([9 / (2 * t + 8)] * len(step.labeled))
        assert int(method.evidence.right[latest].sum()) == (step.labels == 2 * t - 1).sum()
        assert set(method.larder.labels[kept:].tolist()) == {2 * t - 1}
        kept = len(method.larder)
    assert kept == 3 * 32


def test_images_are_guessed_under_the_averaged_weights(blobs):
    learner = learner_of(blobs)
    learning = learn(learner)
    next(learning)
    assert not equal(dict(learner.method.averaged.values), learner.net.copy())
    part = Sweep(name="labels", pool="labeled")
    rows = learner.stream.tests[0].rows
    images = normalize(learner.loader.read(rows))
    with learner.ledger.free(), torch.no_grad():
        gathered = learner.method.gather(learner.net, part, Part("labeled", images, rows=torch.from_numpy(rows)))
        wanted = learner.net.features(images, "test", learner.method.averaged.values)
        assert torch.equal(gathered["features"], wanted)
        assert not torch.equal(wanted, learner.net.features(images, "test"))
    assert gathered["labels"].tolist() == [-1] * len(rows)


# What it learns from.


def test_without_guesses_it_is_replay_of_all_labels_bit_for_bit(blobs):
    larder = learner_of(blobs, budget="5", guessed=0.0)
    replay = learner_of(blobs, budget="5", method="er", sampling="uniform")
    run_through(larder), run_through(replay)
    assert equal(weights(larder), weights(replay))
    assert larder.ledger.receipts() == replay.ledger.receipts()
    assert len(larder.method.larder) == 0


def test_batches_have_the_share_of_guesses_that_is_asked_for(blobs):
    learner = learner_of(blobs)
    losses, seen = learner.method.losses, []

    def watched(net, phase, batch):
        seen.append((phase.mix, {part.pool: len(part) for part in batch.parts}, learner.method._guessed_share()))
        return losses(net, phase, batch)

    learner.method.losses = watched
    run_through(learner)
    for mix, counts, share in seen:
        assert mix == Mix(memory=1 - share, larder=share)
        assert counts == {"memory": 6 - round(6 * share), "larder": round(6 * share)}
    assert {counts["larder"] for _, counts, _ in seen} <= {3, 4}


@pytest.mark.parametrize("train", [LEARNED, FROZEN])
def test_permuting_hidden_labels_changes_nothing(blobs, train):
    config, index = configured(blobs, train), open_manifest(blobs)
    assignment = assign_steps(index, config.recipe, config.seed)
    hidden = np.flatnonzero((index.split == TRAIN) & ~assignment.labeled)
    label = index.label.copy()
    label[hidden] = np.random.default_rng(5).permutation(label[hidden])
    assert (label != index.label).any()
    one, other = (
        run_through(tiny_learner(config, reveal("s", i, config.recipe, config.seed, assignment), i))
        for i in (index, replace(index, label=label))
    )
    assert len(one.method.larder) > 0
    assert equal(one.method.state(), other.method.state())
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()


@pytest.mark.parametrize(("guessed", "is_drawn"), [(0.05, False), (0.15, True)])
def test_a_larder_that_deserves_less_than_half_an_image_of_a_micro_batch_is_not_drawn_from(blobs, guessed, is_drawn):
    learner = run_through(learner_of(blobs, guessed=guessed))
    assert len(learner.method.larder) > 0
    assert (6 * learner.method._guessed_share() > 0.5) == is_drawn
    for receipt in learner.ledger.closed:
        assert ("memory", "train") in paid(receipt)
        assert (("larder", "train") in paid(receipt)) == is_drawn


# What it pays.


def test_receipts_have_labels_arriving_images_guesses_and_updates(run):
    learner, notes, _ = run
    is_frozen, solved, known = learner.network.is_frozen, learner.method.solved, 0
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        items, past = paid(receipt), known if is_recurring(step) else 0
        known += len(step.labeled)
        wanted = {("labels", "forward"), ("guess", "forward"), ("guess", "solve")}
        wanted |= {("solve", "solve")} if is_frozen else {("memory", "train"), ("larder", "train")}
        wanted |= {("past", "forward")} if past and not is_frozen else set()
        assert {key for key in items if key[1] != "read"} == wanted
        assert items["labels", "forward"].images == len(step.labeled)
        assert items["guess", "forward"].images == len(step.unlabeled)
        assert items["guess", "forward"].passes == pytest.approx(len(step.unlabeled) / 3)
        classes = int((class_prior(step) > 0).sum())
        images = len(step.labeled) + past + len(step.unlabeled)
        if past and not is_frozen:  # of which only a share was looked at again
            least = guess_flops(len(step.labeled) + len(step.unlabeled), 96, classes)
            assert least <= items["guess", "solve"].flops <= guess_flops(images, 96, classes)
        else:
            assert items["guess", "solve"].flops == guess_flops(images, 96, classes)
        if is_frozen:
            assert items["solve", "solve"].flops == solved.flops(known - len(solved.labeled), step.seen_classes)
        elif past:  # the memory has the new labels, too
            assert 0 < items["past", "forward"].images <= known
        assert receipt.spent <= receipt.budget
    assert [event["event"] for event in notes.events].count("update") == (0 if is_frozen else 3)


@pytest.mark.parametrize("accounting", ["images", "flops"])
@pytest.mark.parametrize(
    ("train", "budgets"),
    [
        (LEARNED, (0.01, 0.03, 0.06, 0.13, 0.2, 0.31, 0.5, 0.8, 1.3, 2.2, 3.1)),
        (FROZEN, (0.01, 0.03, 0.06, 0.13, 0.2, 0.31, 0.5, 0.8, 1.3)),
    ],
)
def test_no_budget_is_overdrawn(blobs, train, budgets, accounting):
    for budget in budgets:
        config = replace(configured(blobs, train, budget=str(budget)), accounting=accounting)
        learner = run_through(tiny_learner(config))
        for receipt in learner.ledger.closed:
            assert receipt.spent <= receipt.budget * (1 + 1e-9)
            assert receipt.spent == pytest.approx(sum(item.passes for item in receipt.items))
        images = normalize(learner.loader.read(learner.stream.tests[0].rows))
        with learner.ledger.free(), torch.no_grad():
            scores = learner.method.predict(learner.net, images)
        assert scores.shape == (len(images), 6)
        assert bool(scores.isfinite().all())


def test_looking_at_arriving_images_takes_a_share_of_what_the_labels_leave(blobs):
    # Of 48 passes 8/3 go to the labels, and some 2 are reserved for the guesses; 15 % of the rest is about 6.5, which
    # the fourth micro-batch of two passes. Of 30 passes it is about 3.8, which the second one passes.
    for budget, wanted in (("4", 24), ("2.5", 12)):
        learner = learner_of(blobs, budget=budget)
        learner.recorder = notes = Notes()
        run_through(learner)
        assert [event["images"] for event in notes.of("sweep") if event["name"] == "guess"] == [wanted] * 3


def test_looking_leaves_budget_to_learn_from(blobs):
    learner = learner_of(blobs, LEARNED, AGAIN, budget="3", rate=0.6)
    assert {event["t"] for event in updates_of(learner)} == {1, 2, 3}


def test_guesses_that_cannot_be_paid_are_not_made(blobs):
    learner = learner_of(blobs)
    pay = learner.net.pay
    learner.net.pay = lambda purpose, flops: purpose != "guess" and pay(purpose, flops)
    run_through(learner)
    assert len(learner.method.larder) == len(learner.method.evidence.right) == 0
    assert all(len(value) == 0 for value in learner.method.arrivals.values())
    assert {key for receipt in learner.ledger.closed for key in paid(receipt)} == {
        ("labels", "forward"),
        ("guess", "forward"),
        ("memory", "train"),
    }


# A frozen encoder.


def test_a_frozen_run_makes_no_updates_and_changes_no_weight_of_the_encoder(blobs):
    learner = learner_of(blobs, FROZEN)
    before = weights(learner)
    assert updates_of(learner) == []
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("head"))


def test_a_frozen_run_keeps_the_features_of_all_labels(blobs):
    learner = run_through(learner_of(blobs, FROZEN))
    store = learner.method.solved.labeled
    labels = {row: label for s in learner.stream.steps for row, label in zip(s.labeled, s.labels, strict=True)}
    assert dict(zip(store.rows.tolist(), store.labels.tolist(), strict=True)) == labels
    with learner.ledger.free(), torch.no_grad():
        features = learner.net.features(normalize(learner.loader.read(store.rows.numpy())), "test")
    torch.testing.assert_close(store.values, features, rtol=1e-2, atol=1e-2)  # kept in half precision


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_few_labels_a_frozen_run_tells_more_than_labels_alone(blobs, seed):
    larder, alone, probe = (
        run_through(learner_of(blobs, FROZEN, rate=0.1, seed=seed, **options))
        for options in ({}, {"guessed": 0.0}, {"method": "linear_probe"})
    )
    assert larder.method.solved.guess_weight > 0
    assert accuracy(larder) > max(accuracy(alone), accuracy(probe)) + 0.05


def test_without_guesses_a_frozen_run_is_solved_from_the_labels_alone(blobs):
    learner = run_through(learner_of(blobs, FROZEN, guessed=0.0))
    solved = learner.method.solved
    assert not solved.guessed.gram.any()
    before = solved.weight
    solved.solve(6)
    assert torch.equal(solved.weight, before)
    assert {key for receipt in learner.ledger.closed for key in paid(receipt) if key[1] != "read"} == {
        ("labels", "forward"),
        ("solve", "solve"),
    }


def test_a_solve_that_does_not_fit_leaves_the_former_solution_and_is_made_up_for(blobs):
    learner, whole = (learner_of(blobs, FROZEN) for _ in range(2))
    run_through(whole)
    pay = learner.net.pay
    learner.net.pay = lambda purpose, flops: (purpose, learner.ledger._t) != ("solve", 2) and pay(purpose, flops)
    images = normalize(learner.loader.read(learner.stream.tests[1].rows))
    for t in learn(learner):
        with learner.ledger.free(), torch.no_grad():
            scores = learner.method.predict(learner.net, images)
        assert scores.shape == (len(images), 2 * t)
        if t == 2:
            assert set(scores.argmax(1).tolist()) <= {0, 1}
    assert equal(learner.method.state(), whole.method.state())


def odd_stream(blobs, labels, unlabeled):
    """Return the stream with a first time step of so many labels and other images."""
    stream = learner_of(blobs, FROZEN).stream
    first = stream.steps[0]
    seen = len(set(first.labels[:labels]))
    assert seen == labels <= 1
    first = replace(
        first,
        labeled=first.labeled[:labels],
        labels=first.labels[:labels] * 0,
        unlabeled=first.unlabeled[:unlabeled],
        seen_classes=seen,
        new_classes=first.new_classes[:seen],
    )
    return replace(stream, steps=(first, *stream.steps[1:]))


@pytest.mark.parametrize(
    ("labels", "unlabeled"),
    [
        (1, 5),
        pytest.param(1, 0),
        pytest.param(0, 5),
        pytest.param(0, 0),
    ],
)
def test_a_frozen_run_may_begin_with_hardly_any_label(blobs, labels, unlabeled):
    learner = tiny_learner(configured(blobs, FROZEN), odd_stream(blobs, labels, unlabeled))
    run_through(learner)
    assert learner.method.solved.weight.shape == (96, 6)


# How it answers.


def test_it_answers_under_the_averaged_weights(blobs):
    learner = run_through(learner_of(blobs))
    images = normalize(learner.loader.read(learner.stream.tests[0].rows))
    with learner.ledger.free(), torch.no_grad():
        scores = learner.method.predict(learner.net, images)
        assert torch.equal(scores, learner.net.scores(images, "test", learner.method.averaged.values))
        assert not torch.equal(scores, learner.net.scores(images, "test"))
    assert torch.equal(learner.method.probabilities(scores), scores.softmax(1))


def test_every_update_is_averaged_in(blobs):
    learner, seen = learner_of(blobs, budget="4"), []
    after = learner.method.after_update

    def watched(net, phase):
        seen.append(net.copy())
        after(net, phase)

    learner.method.after_update = watched
    first = None
    for moment in advance(learner):
        first = first or {name: value.clone() for name, value in learner.method.averaged.values.items()}
        if moment == "step":
            break
    assert len(seen) > 1
    for number, latest in enumerate(seen, start=1):
        old = number / (number + 10)
        first = {name: old * value + (1 - old) * latest[name] for name, value in first.items()}
    for name, value in first.items():
        torch.testing.assert_close(learner.method.averaged.values[name], value)


def test_without_an_update_the_averaged_weights_are_the_first_ones(blobs):
    learner = run_through(learner_of(blobs, budget="0.2"))
    assert equal(dict(learner.method.averaged.values), learner.net.copy())


def test_shares_of_a_solved_head_are_its_probabilities(blobs):
    learner = learner_of(blobs, FROZEN)
    scores = torch.tensor([[0.9, 0.05, -0.1]])
    assert torch.equal(learner.method.probabilities(scores), score_shares(scores))


@pytest.mark.parametrize("train", [LEARNED, FROZEN, "lora", "last-1"])
def test_a_saved_model_answers_as_the_run(blobs, tmp_path, monkeypatch, train):
    learners = []

    def keep(learner, folder):
        learners.append(learner)
        save_model(learner, folder)

    monkeypatch.setattr(dietcl.run, "save_model", keep)
    small = {"preset": "micro", "image_size": 16, "weights": "random", "batch": 12, "micro_batch": 6, "device": "cpu"}
    stream = {"time_steps": 3, "label_rate": 0.2}
    trained = dietcl.train(blobs, "larder", out=tmp_path / "run", train=train, budget="9", **small, **stream)
    (learner,), model = learners, dietcl.load(trained.path, device="cpu")
    assert len(learner.method.larder) > 0
    for test in learner.stream.tests:
        squares = learner.loader.read(test.rows)
        with learner.ledger.free(), torch.no_grad():
            scores = learner.method.predict(learner.net, normalize(squares))
        torch.testing.assert_close(model.scores(squares), scores, rtol=1e-4, atol=1e-5)
        expected, _ = learner.evaluator.predict(learner.method, learner.net, test)
        assert model.scores(squares).argmax(1).tolist() == expected.tolist()


# Stopped runs and several processes.


def told(events):
    return [{name: value for name, value in event.items() if name not in ("seconds", "data_wait")} for event in events]


@pytest.mark.parametrize(("train", "recipe"), KINDS)
@pytest.mark.parametrize("budget", ["4", "0.5"])
def test_a_run_handed_over_at_every_moment_ends_with_the_same_bits(blobs, tmp_path, train, recipe, budget):
    def make():
        learner = learner_of(blobs, train, recipe, budget=budget)
        learner.recorder = Notes()
        return learner

    whole, learner, events, moments = run_through(make()), make(), [], []
    while moment := next(advance(learner), None):
        events += learner.recorder.events
        moments.append(moment)
        resumed = make()
        hand_over(learner, resumed, tmp_path / str(len(moments)))
        learner = resumed
    assert set(moments) >= {"learned", "step"}
    assert ("sweep" in moments) == (train == FROZEN or budget == "4")
    assert ("update" in moments) == (train == LEARNED and budget == "4")
    assert equal(weights(learner), weights(whole))
    assert equal(learner.method.state(), whole.method.state())
    assert learner.ledger.receipts() == whole.ledger.receipts()
    assert (learner.counts.loss_sum == whole.counts.loss_sum).all()
    assert told(events + learner.recorder.events) == told(whole.recorder.events)


BUDGETS = ("5", "0.6")
TASKS = [(train, recipe, budget) for train, recipe in KINDS for budget in BUDGETS]


def shared_config(blobs, train, recipe, budget):
    config = configured(blobs, train, recipe, budget)
    return replace(config, training=replace(config.training, batch=24, micro_batch=6))


def carry_out(blobs, folder):
    """Carry out all runs in this process together with others."""
    world = join("cpu")
    for number, task in enumerate(TASKS):
        execute(shared_config(blobs, *task), folder / str(number), Execution(device="cpu"), world=world)
    leave(world)


@pytest.mark.long
def test_the_number_of_processes_changes_no_bit(blobs, tmp_path):
    for number, task in enumerate(TASKS):
        execute(shared_config(blobs, *task), tmp_path / "1" / str(number), Execution(device="cpu"))
    for size in (2, 3):
        children = launch(size, carry_out, blobs, tmp_path / str(size))
        try:
            said = [child.end(240) for child in children]
        finally:
            for child in children:
                child.process.kill()
        assert all(child.process.exitcode == 0 for child in children), "\n".join(said)
    for number, task in enumerate(TASKS):
        alone, *others = (outcome(Path(tmp_path, str(size), str(number))) for size in (1, 2, 3))
        assert all(other == alone for other in others), task
