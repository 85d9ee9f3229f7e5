"""Larder: what it guesses and keeps, what it learns from, what it pays, and how it answers."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dietcl
import dietcl.run
from dietcl.engine.loop import advance, learn
from dietcl.errors import UserError
from dietcl.methods import larder as larder_method
from dietcl.methods import method_config
from dietcl.methods.base import Mix, Part, Sweep
from dietcl.methods.larder import (
    GUESSING_SHARE,
    LEAST_TRUST,
    TRYING,
    LarderMethod,
    class_prior,
    is_recurring,
)
from dietcl.methods.pieces.guessing import guess_flops
from dietcl.methods.pieces.larder import Larder
from dietcl.methods.pieces.ridge import score_shares, solve_flops
from dietcl.model import save_model
from dietcl.streams.assign_steps import TRAIN, assign_steps
from dietcl.streams.index import open_manifest
from dietcl.streams.normalize import normalize
from dietcl.streams.stream import TimeStep, reveal
from helpers.larder_runs import AGAIN, FROZEN, KINDS, LEARNED, NEW, configured, learner_of, truth_of
from helpers.recording import Notes, equal, paid, run_through, segments, updates_of, weights
from helpers.tiny import tiny_learner


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def run(request, blobs):
    """A learner after the whole stream, its events, and what it remembered after each time step."""
    learner = learner_of(blobs, *request.param)
    learner.recorder = notes = Notes()
    kept = [len(learner.method.larder) for _ in learn(learner)]
    return learner, notes, kept


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
    lonely, unknown = replace(step, unlabeled=nothing), replace(step, labeled=nothing, labels=nothing)
    for other, rest in ((lonely, ["labels"]), (unknown, [])):
        left = [segment.name for segment in segments(learner.method, other)]
        assert left == (["learn"] if train == LEARNED else rest)


def test_what_is_looked_at_is_limited(blobs, monkeypatch):
    monkeypatch.setattr(larder_method, "MOST_COMPARED", 10)
    monkeypatch.setattr(larder_method, "MOST_PAST", 5)
    trusting(monkeypatch, [1.0])
    learner = learner_of(blobs, LEARNED, AGAIN)
    learner.recorder = notes = Notes()
    run_through(learner)
    looked = [(event["t"], event["name"], event["images"]) for event in notes.of("sweep")]
    assert [images for _, name, images in looked if name == "guess"] == [10] * 3
    assert [(t, images) for t, name, images in looked if name == "past"] == [(2, 5), (3, 5)]


def holding(trust):
    larder, count = Larder(), len(trust)
    larder.add(torch.arange(count), torch.zeros(count, dtype=torch.int64), torch.tensor(trust), torch.arange(2))
    return larder


def share_with(blobs, trust, labels, **options):
    method = learner_of(blobs, **options).method
    method.larder, method.num_labels = holding(trust), labels
    return method._guessed_share()


def test_the_share_of_guesses_in_a_batch_by_hand(blobs):
    trust = (0.25, 0.5, 0.5, 0.75)
    # Trusted by half: 0.75·√(1/2), of which 20 labels allow a half and 180 nine tenths.
    assert share_with(blobs, 100 * trust, 20) == pytest.approx(0.75 * math.sqrt(0.5) / 2)
    assert share_with(blobs, 2000 * trust, 180) == pytest.approx(0.75 * math.sqrt(0.5) * 0.9)
    # Their squares add up to 1.125 labels, so that beside 8 they have an eighth at most.
    assert share_with(blobs, trust, 8) == pytest.approx(1.125 / 9.125)
    assert share_with(blobs, 20 * trust, 20, guessed=0.3) == pytest.approx(0.3 * math.sqrt(0.5) / 2)
    assert share_with(blobs, (1.0,) * 1000, 60) == pytest.approx(0.75 * 0.75)
    assert share_with(blobs, (), 8) == 0
    assert share_with(blobs, (), 0) == 0


@pytest.fixture(scope="module")
def method(blobs):
    return learner_of(blobs).method


@given(st.lists(st.floats(0.25, 1), min_size=1, max_size=30), st.integers(1, 100))
def test_no_guess_is_drawn_more_often_than_a_label_and_all_together_not_more_than_they_may(method, trust, labels):
    method.larder, method.num_labels = holding(trust), labels
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
    # Where classes come again, the few labels of the first time step say that there may be more classes.
    assert kept[-1] > 0
    assert kept[0] > 0 or learner.config.recipe.recipe == AGAIN
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
    found, is_whole = len(learner.method.evidence.right), (learner.config.model.train, learner.config.recipe.recipe)
    assert 10 < found <= tested
    assert found == tested or is_whole == (LEARNED, AGAIN)  # where not all earlier labels are looked at
    assert set(learner.method.evidence.right.tolist()) <= {0.0, 1.0}
    assert learner.method.num_labels == sum(len(step.labeled) for step in learner.stream.steps)


def test_nothing_that_was_looked_at_is_kept_but_what_is_remembered(run):
    learner, _, _ = run
    assert all(len(learner.method.state()[name]) == 0 for name in ("rows", "labels", "features"))


@pytest.mark.parametrize(("train", "recipe"), KINDS)
def test_at_most_one_guess_is_remembered_for_each_label(blobs, train, recipe):
    learner = learner_of(blobs, train, recipe, seed=1, per_label=1)
    assert learner.config.method_config == method_config("larder:small")
    larder, begin = learner.method.larder, 0
    whole = run_through(learner_of(blobs, train, recipe, seed=1)).method.larder
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
        assert len(learner.method.larder) == 6
    guess = [segment for segment in segments(learner.method, learner.stream.steps[1]) if segment.name == "guess"]
    assert guess[0].share == GUESSING_SHARE
    learner.method.is_trusted = False
    guess = [segment for segment in segments(learner.method, learner.stream.steps[1]) if segment.name == "guess"]
    assert guess[0].share == TRYING * GUESSING_SHARE
    # Of 108 passes 8/3 go to the labels; 0.15 of the rest is more than 32 images, 0.02 of it six and their guesses.
    assert [event["images"] for event in notes.of("sweep") if event["name"] == "guess"] == [32, 6, 6]


def test_labels_of_earlier_time_steps_help_to_guess_only_where_classes_come_again(blobs, monkeypatch):
    trusting(monkeypatch, [1.0])  # else less is looked at in the next time step
    for recipe, wanted in ((NEW, 0), (AGAIN, 7)):
        learner = learner_of(blobs, LEARNED, recipe)
        asked = []
        guess = learner.method._guess_labels

        def watched(net, step, asked=asked, learner=learner, guess=guess):
            arrived = learner.method._arrived()
            known = arrived["rows"][arrived["labels"] >= 0]
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

    monkeypatch.setattr(LarderMethod, "guesser", Undecided)
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
    assert {counts["larder"] for _, counts, _ in seen} == {1, 2}


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


@pytest.mark.parametrize(("guessed", "is_drawn"), [(0.05, False), (0.4, True)])
def test_a_larder_that_deserves_less_than_half_an_image_of_a_micro_batch_is_not_drawn_from(blobs, guessed, is_drawn):
    learner = run_through(learner_of(blobs, guessed=guessed))
    assert len(learner.method.larder) > 0
    assert (6 * learner.method._guessed_share() > 0.5) == is_drawn
    for receipt in learner.ledger.closed:
        assert ("memory", "train") in paid(receipt)
        assert (("larder", "train") in paid(receipt)) == is_drawn


# What it pays.


def test_receipts_have_labels_arriving_images_guesses_and_updates(run):
    learner, notes, kept = run
    is_frozen, solved, known, has_guesses = learner.network.is_frozen, learner.method.solved, 0, False
    for step, receipt, guesses in zip(learner.stream.steps, learner.ledger.closed, kept, strict=True):
        items, past = paid(receipt), known if is_recurring(step) else 0
        known += len(step.labeled)
        wanted = {("labels", "forward"), ("guess", "forward"), ("guess", "solve")}
        wanted |= {("solve", "solve")} if is_frozen else {("memory", "train")}
        # Of few guesses that are hardly trusted, a micro-batch has none.
        drawn = {("larder", "train")} & items.keys()
        assert is_frozen or bool(drawn) == bool(guesses) or learner.config.recipe.recipe == AGAIN
        wanted |= drawn
        wanted |= {("past", "forward")} if past and not is_frozen else set()
        assert {key for key in items if key[1] != "read"} == wanted
        looked = items["labels", "forward"].images
        assert looked == len(step.labeled) or learner.config.recipe.recipe == AGAIN
        arriving = items["guess", "forward"].images
        # Where classes come again, guesses of a time step may not be trusted, and then the next one looks at few.
        assert arriving == len(step.unlabeled) or learner.config.recipe.recipe == AGAIN
        assert items["guess", "forward"].passes == pytest.approx(arriving / 3)
        classes = int((class_prior(step) > 0).sum())
        images = len(step.labeled) + past + arriving
        if past and not is_frozen:  # of which only a share was looked at again
            least = guess_flops(len(step.labeled) + arriving, 96, classes)
            assert least <= items["guess", "solve"].flops <= guess_flops(images, 96, classes)
        else:
            added = solved.add_flops(arriving, step.seen_classes) if is_frozen else 0
            assert items["guess", "solve"].flops == guess_flops(images, 96, classes) + added
        if is_frozen:
            alone, both = solve_flops(known, 96, step.seen_classes), solved.flops(known, step.seen_classes)
            assert items["solve", "solve"].flops == (0 if has_guesses else alone) + (both if guesses else 0)
            has_guesses = bool(guesses)
        elif past:
            assert 0 < items["past", "forward"].images <= past
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
    # Of 47.52 passes 8/3 go to the labels; 15 % of the rest is 6.73. Of six images it pays two passes and guesses among
    # two classes, which cost as much in every time step: the fourth micro-batch passes it. Of 30 passes it is 4.1.
    for budget, wanted in (("3.96", [24, 24, 24]), ("2.5", [12, 12, 12])):
        learner = learner_of(blobs, budget=budget)
        learner.recorder = notes = Notes()
        run_through(learner)
        assert [event["images"] for event in notes.of("sweep") if event["name"] == "guess"] == wanted


def test_looking_leaves_budget_to_learn_from(blobs):
    learner = learner_of(blobs, LEARNED, AGAIN, budget="3", rate=0.6)
    assert {event["t"] for event in updates_of(learner)} == {1, 2, 3}


def test_guesses_that_cannot_be_paid_are_not_made(blobs):
    learner = learner_of(blobs)
    pay = learner.net.pay
    learner.net.pay = lambda purpose, flops: purpose != "guess" and pay(purpose, flops)
    run_through(learner)
    assert len(learner.method.larder) == len(learner.method.evidence.right) == 0
    assert not learner.method.arrivals
    assert {key for receipt in learner.ledger.closed for key in paid(receipt)} == {
        ("labels", "forward"),
        ("guess", "forward"),
        ("memory", "train"),
    }


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
