"""Larder where images arrive otherwise than labels say: never labeled, of unseen classes, too many or too dear."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl import build_config, train_config
from dietcl.engine.loop import learn
from dietcl.methods import larder as larder_method
from dietcl.methods.larder import known_share, unseen_share
from dietcl.streams.assign_steps import TRAIN, assign_steps
from dietcl.streams.index import open_manifest
from dietcl.streams.stream import TimeStep, remarks, reveal
from helpers.larder_runs import AGAIN, FROZEN, LEARNED, NEW, configured, learner_of
from helpers.recording import Notes, run_through
from helpers.tiny import tiny_learner


def half_labeled(blobs, *arguments, **options):
    """Return a learner of a stream in which every other training image has no label in the manifest."""
    config = configured(blobs, *arguments, **options)
    index = open_manifest(blobs)
    train = np.flatnonzero(index.split == TRAIN)
    label = index.label.copy()
    label[train[::2]] = -1
    index = replace(index, label=label)
    assignment = assign_steps(index, config.recipe, config.seed)
    return tiny_learner(config, reveal("s", index, config.recipe, config.seed, assignment), index), index


# Images that never had a label.


@pytest.mark.parametrize("train", [LEARNED, FROZEN])
def test_images_that_chance_put_into_a_time_step_are_not_guessed(blobs, train):
    learner, index = half_labeled(blobs, train, NEW)
    steps = learner.stream.steps
    unknown = set(np.flatnonzero(index.label[learner.stream.index_row] < 0).tolist())
    assert [set(step.unplaced.tolist()) for step in steps] == [unknown & set(step.unlabeled.tolist()) for step in steps]
    assert sum(len(step.unplaced) for step in steps) == len(unknown) == 60
    learner.recorder = notes = Notes()
    run_through(learner)
    rows = set(learner.method.larder.rows.tolist())
    assert rows
    assert not rows & unknown
    looked = [event["of"] for event in notes.of("sweep") if event["name"] == "guess"]
    assert looked == [len(step.unlabeled) - len(step.unplaced) for step in steps]
    assert any("60 (their class or time is not in the manifest" in line for line in remarks(learner.stream, index))


def test_where_chance_places_all_images_none_is_looked_at(blobs):
    learner = learner_of(blobs)
    for step in learner.stream.steps:
        planned = learner.method.plan(replace(step, unplaced=step.unlabeled), 9.0)
        assert [segment.name for segment in planned] == ["learn"]


def test_in_random_order_images_that_never_had_a_label_are_guessed_like_others(blobs):
    learner, index = half_labeled(blobs, LEARNED, AGAIN)
    assert not any(len(step.unplaced) for step in learner.stream.steps)
    run_through(learner)
    assert (index.label[learner.stream.index_row[learner.method.larder.rows.numpy()]] < 0).any()


# Classes that no label has shown yet.


@pytest.mark.parametrize(
    ("labels", "seen", "new", "wanted"),
    [
        ([0, 0, 1, 1], 2, 2, 1 / 6),  # both classes twice: (0 + 1) / (4 + 2)
        ([0, 1, 2], 3, 3, 4 / 5),  # each once
        ([0, 0, 1, 4], 5, 1, 2 / 6),  # class 4 is new; that class 1 came once says nothing, as it was known
        ([0, 0, 1], 4, 0, 1 / 5),
    ],
)
def test_new_classes_with_one_label_tell_how_many_images_are_of_others(labels, seen, new, wanted):
    rows = np.arange(len(labels))
    step = TimeStep(2, rows, np.array(labels), rows + 100, seen, tuple(f"class {i}" for i in range(new)))
    assert unseen_share(step) == pytest.approx(wanted)
    assert unseen_share(replace(step, by_class=True)) == 0


def test_labels_of_one_class_alone_say_nothing_of_images_that_may_be_of_any(blobs):
    learner = learner_of(blobs, LEARNED, AGAIN)
    steps = learner.stream.steps
    first = steps[0]
    alone = first.labels == first.labels[0]
    changed = replace(
        first,
        labeled=first.labeled[alone],
        labels=np.zeros(int(alone.sum()), np.int64),
        unlabeled=np.sort(np.concatenate([first.unlabeled, first.labeled[~alone]])),
        seen_classes=1,
        new_classes=first.new_classes[:1],
    )
    learner.stream = replace(learner.stream, steps=(changed, *steps[1:]))
    learner.recorder = notes = Notes()
    next(learn(learner))
    assert not len(learner.method.larder)
    assert not notes.of("sweep")  # nor is any budget spent on looking


def test_labels_that_were_not_looked_at_matter_where_their_class_has_no_other(blobs, monkeypatch):
    rows = np.arange(4)
    step = TimeStep(1, rows, np.array([0, 0, 0, 1]), rows + 100, 2, ("one", "two"))
    for looked_at, share in (([0], 0.75), ([0, 1], 1.0), ([1, 1], 0.25)):
        assert known_share(step, torch.tensor(looked_at)) == share
    monkeypatch.setattr(larder_method, "trust", lambda chance, classes: torch.ones_like(chance))
    monkeypatch.setattr(larder_method, "LABELS_SHARE", 0.03)  # of 108 passes: at the second micro-batch of two
    learner = learner_of(blobs, rate=0.6)
    learner.recorder = notes = Notes()
    next(learn(learner))
    (looked,) = [event["images"] for event in notes.of("sweep") if event["name"] == "labels"]
    assert looked == 12 < len(learner.stream.steps[0].labeled) == 24
    assert set(learner.method.larder.trust.tolist()) == {1.0}  # both classes are among the twelve
    monkeypatch.setattr(larder_method, "known_share", lambda step, looked_at: 0.75)
    learner = learner_of(blobs)
    next(learn(learner))
    assert set(learner.method.larder.trust.tolist()) == {0.75}


def test_labels_are_looked_at_even_after_guesses_that_could_not_be_trusted(blobs):
    learner = learner_of(blobs)
    shares = {}
    for is_trusted in (True, False):
        learner.method.is_trusted = is_trusted
        labels, guess, _ = learner.method.plan(learner.stream.steps[0], 9.0)
        shares[is_trusted] = labels.share, guess.share
    assert shares[False] == (shares[True][0], larder_method.TRYING * shares[True][1])


@pytest.mark.parametrize(("train", "compared"), [(LEARNED, 7 + 7), (FROZEN, 7 + 3 + 7)])
def test_labels_are_compared_up_to_a_bound(blobs, monkeypatch, train, compared):
    monkeypatch.setattr(larder_method, "MOST_COMPARED", 7)
    monkeypatch.setattr(larder_method, "MOST_PAST", 3)
    learner, seen = learner_of(blobs, train, rate=0.6), []
    guesser = learner.method.guesser

    def noted(features):
        seen.append(len(features))
        return guesser(features)

    learner.method.guesser = noted
    next(learn(learner))
    assert seen == [compared]
    if train == FROZEN:
        assert len(learner.method.solved.labeled) == 24  # the head is solved from all of them


# Budgets.


@pytest.mark.parametrize("recipe", [NEW, AGAIN])
@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_on_a_frozen_encoder_there_is_a_head_wherever_linear_probe_has_one(blobs, recipe, accounting):
    for budget in ("0.1", "0.3", "0.5", "0.7", "1", "1.5", "2", "3"):
        classes = {}
        for method in ("larder", "linear_probe"):
            config = replace(configured(blobs, FROZEN, recipe, budget, method=method), accounting=accounting)
            learner = run_through(tiny_learner(config))
            solved = learner.method.solved if method == "larder" else learner.method
            classes[method] = len(solved.bias)
        assert classes["larder"] == classes["linear_probe"]


def test_a_budget_in_seconds_that_looking_uses_up_leaves_a_head(blobs):
    learner = learner_of(blobs, FROZEN, NEW, "3s")
    ticks = iter(range(10**6))
    learner.ledger.clock = lambda: 0.2 * next(ticks)  # so that not all arriving images are looked at
    learner.recorder = notes = Notes()
    run_through(learner)
    guessed = [event for event in notes.of("sweep") if event["name"] == "guess"]
    assert any(event["images"] < event["of"] for event in guessed)
    assert len(learner.method.solved.bias) == 6


def test_a_sweep_leaves_room_in_its_share_for_what_follows(blobs):
    learner = learner_of(blobs)
    step = learner.stream.steps[0]
    sweep = next(segment for segment in learner.method.plan(step, 9.0) if segment.name == "guess")
    assert sweep.later > 0
    learner.method.plan = lambda step, remaining: [replace(sweep, later=1e12)]
    learner.recorder = notes = Notes()
    next(learn(learner))
    assert [event["images"] for event in notes.of("sweep")] == [6]  # one micro-batch tells that it is too dear


def test_looking_at_all_images_reserves_what_guessing_then_costs(blobs):
    learner, reserved = learner_of(blobs, budget="90"), {}
    plan = learner.method.plan

    def noted(step, remaining):
        segments = plan(step, remaining)
        sweep = next(segment for segment in segments if segment.name == "guess")
        reserved[step.t] = sweep.later * len(step.unlabeled)
        return segments

    learner.method.plan = noted
    run_through(learner)
    paid = [item.flops for step in learner.ledger.closed for item in step.items if item.operation == "solve"]
    assert paid == pytest.approx([*reserved.values()])  # of the classes that are guessed, however many were seen
    assert len(paid) == 3


# A stream where guesses are hopeless.


@pytest.mark.long
def test_a_starved_stream_of_many_classes_with_one_label_each_loses_nothing_to_replay(tmp_path):
    cut = {"recipe": "class", "time_steps": 3, "label_rate": 0.05, "test_images": None}
    source = {"classes": 300, "per_class": 20, "test_per_class": 5}
    right = {"larder": [], "er:uniform": []}
    for seed in (0, 1):
        for method, shares in right.items():
            config = build_config(
                "glyphs", method, "nano", budget=40, seed=seed, accounting="flops", source=source, **cut
            )
            run = train_config(config, tmp_path / f"{method[:2]}-{seed}", device="cpu", threads=1)
            assert run.counts["count"][-1].sum() == 1500
            assert not any("guesses" in event for event in run.of("step_end"))  # hopeless ones are not kept
            shares.append(run.counts["correct"][-1].sum() / 1500)
    # Of 3,000 answers with some 5 % right a mean has a standard error of 0.4 points, the difference of two 0.6.
    assert np.mean(right["larder"]) > np.mean(right["er:uniform"]) - 0.012
    assert np.mean(right["er:uniform"]) > 2 / 300  # it learns at all
