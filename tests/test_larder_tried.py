"""Ideas that were tried on Larder: each changes one thing, and they are measured on held-out training images."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dietcl.engine.loop import advance, learn
from dietcl.methods.base import Part
from dietcl.methods.larder import GUESSING_SHARE, LABELS_SHARE, LarderMethod
from dietcl.methods.pieces.larder import Larder
from dietcl.methods.pieces.ridge import score_shares, solve
from dietcl.streams.normalize import normalize
from helpers.larder_runs import configured
from helpers.recording import equal, paid, run_through, segments, updates_of, weights
from helpers.scored_study import RuledStudy
from helpers.tiny import tiny_learner
from reproduction import larder_suites as ls
from reproduction import tried_losses
from reproduction.catalog import ALL_SUITES
from reproduction.controls import known_controls
from reproduction.study import Study
from reproduction.tried import TRIED, BalancedGuesses, ReplacedGuesses, RevisedGuesses
from reproduction.tried_losses import masked_loss, mix, mixed_loss

RESULTS = Path(__file__).parents[1] / "results"
SUITE = ALL_SUITES["larder-tried"]


@pytest.fixture(autouse=True)
def controls():
    """Let this test know what was tried, as nobody else does."""
    with known_controls():
        yield


def learner_of(blobs, method, **options):
    return tiny_learner(configured(blobs, method=method, **options))


def filled(kind, labels, trust, possible):
    held = kind()
    held.add(torch.arange(len(labels)), torch.tensor(labels), torch.tensor(trust), torch.tensor(possible))
    return held


# The suite.


def test_what_was_tried_is_measured_on_held_out_images_and_seeds_of_its_own(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.3)
    measured = study.measure(SUITE, SUITE.seeds)
    assert [[result.seed for result in entry.results] for entry in measured] == [[140, 141, 142, 143]] * 11
    assert {cell.config.stream for cell in study.asked} == {"glyphs/held-out"}
    cells = [cell for cell in study.asked if cell.config.seed >= 140]
    assert len(cells) == len({cell.key for cell in cells}) == len({cell.hash for cell in cells}) == 44
    assert all("/flops/held-out/seed 14" in cell.key and " as larder/" in cell.key for cell in cells)
    assert {(cell.config.accounting, cell.config.evaluation.all_at_end) for cell in cells} == {("flops", True)}
    assert {cell.config.method for cell in cells} == {"larder", *TRIED}
    bounds = [cell.config.method_config.per_label for cell in cells if cell.config.method == "larder"]
    assert Counter(bounds) == {None: 4, 4: 4, 10: 4}
    searched = {cell.config.method for cell in study.asked if cell.key.startswith("at-budget/")}
    assert searched == {"larder"}


def test_no_other_suite_is_on_held_out_images_and_what_was_counted_is_found(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.3)
    (own,) = SUITE.points
    (usual,) = ls.LARDER_SUITES["methods"].points
    tried, reported = (study.cell(ls.LARDER, point, 140) for point in (own, usual))
    assert tried.config == replace(reported.config, stream="glyphs/held-out")
    assert tried.key == reported.key.replace("/flops/", "/flops/held-out/")
    held_out = {name for name, suite in ALL_SUITES.items() if any(p.protocol.is_held_out for p in suite.points)}
    assert held_out == {"larder-tried"}
    committed = Study("cifar100", RESULTS)
    for name in ("table1", "methods"):
        found, measured = committed.found(ALL_SUITES[name])
        assert len(measured) == len(found.arms) > 5
        assert not any("held-out" in result.key for entry in measured for result in entry.results)


# Which guesses are drawn.


def test_classes_of_balanced_guesses_weigh_the_same_and_guesses_as_much_as_before():
    labels, trust = [0, 0, 2], [0.6, 0.8, 0.5]
    held, usual = (filled(kind, labels, trust, [0, 1, 2]) for kind in (BalancedGuesses, Larder))
    # Squares of 0.36 and 0.64 against 0.25, in all 1.25.
    assert held.weights.tolist() == pytest.approx([0.225, 0.4, 0.625])
    assert held.weights.sum() == pytest.approx(float(usual.weights.sum()))
    assert len(BalancedGuesses().weights) == 0


@pytest.mark.parametrize("name", ["larder_balanced", "larder_mixed", "larder_strong", "larder_twice"])
def test_without_guesses_larder_is_what_it_is(blobs, name):
    one, other = (run_through(learner_of(blobs, method, guessed=0.0)) for method in (name, "larder"))
    assert equal(weights(one), weights(other))
    assert one.ledger.receipts() == other.ledger.receipts()


# How images are augmented.


def test_images_are_mixed_with_their_partners_by_the_share_that_is_returned():
    images = torch.arange(4.0)[:, None, None, None].expand(4, 3, 8, 8)
    partner, kinds = torch.tensor([2, 0, 3, 1]), set()
    for seed in range(20):
        found, weight = mix(images, partner, np.random.default_rng(seed))
        wanted = weight * torch.arange(4.0) + (1 - weight) * partner
        torch.testing.assert_close(found.mean((1, 2, 3)), wanted)
        kinds.add(len(found[0, 0].unique()) > 1)
    assert kinds == {False, True}  # mixup makes a plane of a plane, cutmix pastes a rectangle


def test_images_mixed_in_reverse_have_larder_s_loss_and_labels_their_own():
    held = filled(Larder, [0, 1, 1], [0.5, 0.8, 0.3], [0, 1])
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    part = Part("larder", torch.zeros(3, 1), labels=held.labels, rows=held.rows, smoothing=0.1)
    part = replace(part, partners=held.labels.flip(0), weight=torch.full((3,), 0.7))
    backward, log_p = torch.tensor([2, 1, 0]), logits.log_softmax(1)
    found = mixed_loss(log_p, held.beliefs(held.rows, 4), backward, 0.7, 0.1)
    torch.testing.assert_close(found, held.cross_entropy(part, logits))
    sure = torch.eye(4)[held.labels]
    torch.testing.assert_close(mixed_loss(log_p, sure, backward, 0.7, 0.1), part.cross_entropy(logits))


def test_labels_and_guesses_are_partners_of_each_other(blobs, monkeypatch):
    asked, across = [], 0
    monkeypatch.setattr(tried_losses, "mix", lambda *given: asked.append(given[1]) or mix(*given))
    learner = learner_of(blobs, "larder_mixed")
    losses = learner.method.losses

    def watched(net, phase, batch):
        nonlocal across
        found = list(losses(net, phase, batch))
        if batch.larder is not None:
            assert sorted(asked[-1].tolist()) == list(range(6))
            across += int((asked[-1][: len(batch.memory)] >= len(batch.memory)).sum())
        return found

    learner.method.losses = watched
    run_through(learner)
    assert across > 5


def test_guesses_are_learned_on_strong_views_that_are_not_mixed(blobs, monkeypatch):
    seen = []
    losses = LarderMethod.losses
    monkeypatch.setattr(
        LarderMethod, "losses", lambda self, net, phase, batch: losses(self, *seen_in(net, phase, batch))
    )

    def seen_in(*given):
        seen.append(given[2])
        return given

    run_through(learner_of(blobs, "larder_strong"))
    parts = [batch.larder for batch in seen if batch.larder is not None]
    assert len(parts) > 5
    for part in parts:
        assert torch.equal(part.images, part.view("strong", strong=True))
        assert set(part.weight.tolist()) == {1.0}
    assert any(batch.memory.weight[0] not in (0, 1) for batch in seen)


# When images are looked at.


def test_a_second_look_takes_the_place_of_the_first_one():
    held = filled(ReplacedGuesses, [0, 1, 1], [0.5, 0.8, 0.3], [0, 1])
    held.looked_at = torch.tensor([1, 2, 7])
    held.add(torch.tensor([2, 7]), torch.tensor([3, 2]), torch.tensor([0.9, 0.4]), torch.tensor([2, 3]))
    assert (held.rows.tolist(), held.labels.tolist()) == ([0, 2, 7], [0, 3, 2])
    assert held.beliefs(torch.tensor([0, 7]), 4)[:, 0].tolist() == pytest.approx([0.75, 0])


def test_guessing_twice_has_one_cosine_and_pays_for_both_looks(blobs):
    learner = learner_of(blobs, "larder_twice", budget="30")
    found = segments(learner.method, learner.stream.steps[1])
    names = ["labels", "guess", "learn", "labels again", "guess again", "go on"]
    assert [segment.name for segment in found] == names
    assert [segment.share for segment in found[:2]] == [LABELS_SHARE, GUESSING_SHARE]
    assert [segment.share for segment in found[3:5]] == [2 * LABELS_SHARE, 2 * GUESSING_SHARE]
    assert (found[2].schedule, found[5].schedule) == ((0, 0.5), (0.5, 1))
    # Of the budget after the first look: a half, the second look, and the other half.
    left = 1 - GUESSING_SHARE
    assert found[2].share * left == pytest.approx((1 - 2 * GUESSING_SHARE) / 2)
    rates = [event["lr"] for event in updates_of(learner) if event["t"] == 1]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates) > 10
    for step, receipt in zip(learner.stream.steps, learner.ledger.closed, strict=True):
        items = paid(receipt)
        images = items["guess", "forward"].images
        assert items["guess again", "forward"].images == images == len(step.unlabeled)
        assert items["labels again", "forward"].images == len(step.labeled)
    held = learner.method.larder
    assert len(held) == len(held.rows.unique()) > 0


def test_labels_that_were_learned_are_no_evidence(blobs):
    twice, once = learner_of(blobs, "larder_twice", budget="30"), learner_of(blobs, "larder", budget="30")
    for _ in zip(learn(twice), learn(once), strict=True):
        assert len(twice.method.evidence.right) == len(once.method.evidence.right) > 0
    assert sum(item.operation == "solve" for item in twice.ledger.closed[0].items) > 0
    assert paid(twice.ledger.closed[0])["guess", "solve"].flops > paid(once.ledger.closed[0])["guess", "solve"].flops


def test_a_guess_that_is_looked_at_again_is_what_beliefs_and_answer_say():
    held = filled(RevisedGuesses, [0, 0, 1], [0.5, 0.5, 0.8], [0, 1])
    held.add(torch.tensor([9]), torch.tensor([2]), torch.tensor([0.6]), torch.tensor([2]))
    answers = torch.tensor([[0.1, 0.6, 0.3], [0.8, 0.1, 0.1], [0.9, 0.05, 0.05]])
    found = held.judge(torch.tensor([1, 0, 9]), answers.log())
    # Beliefs of 3/4 and 1/4 become 1/3 and 2/3, and 24/25 and 1/25; where there is no choice, nothing changes.
    assert found["labels"].tolist() == [1, 0, 2]
    assert found["trust"].tolist() == pytest.approx([1 / 3, 23 / 25, 0.6], abs=1e-6)
    held.revise(**found)
    assert held.rows.tolist() == [0, 1, 2, 9]
    assert held.labels.tolist() == [0, 1, 1, 2]
    assert held.beliefs(torch.tensor([1]), 3)[0].tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=1e-6)


def test_old_guesses_are_looked_at_before_a_time_step_is_learned(blobs):
    learner, before, changed = learner_of(blobs, "larder_revised", budget="30"), {}, 0
    for moment in advance(learner):
        now = dict(zip(learner.method.larder.rows.tolist(), learner.method.larder.trust.tolist(), strict=True))
        if moment == "step":
            before = now
        elif before and [segment.name for segment in learner.position.step.done] == ["old"]:
            assert now.keys() == before.keys()
            changed += now != before
    assert changed >= 2
    first, *later = map(paid, learner.ledger.closed)
    assert ("old", "forward") not in first
    for items in later:
        assert 0 < items["old", "forward"].passes <= 0.05 * 30 * 12 + 6 / 3  # up to a micro-batch more


# What is learned on top.


def test_a_quarter_of_a_batch_is_reconstructed(blobs):
    config = configured(blobs, method="larder_reconstruct", budget="12")
    learner = run_through(tiny_learner(replace(config, training=replace(config.training, micro_batch=12))))
    assert learner.method.config.alpha == 1.0
    *_, learned = segments(learner.method, learner.stream.steps[2])
    assert learned.mix.larder > 0
    assert learned.mix.memory + learned.mix.larder == pytest.approx(0.75)
    for items in map(paid, learner.ledger.closed):
        trained = sum(item.images for (_, operation), item in items.items() if operation == "train")
        assert items["reconstruct", "reconstruct"].images == pytest.approx(trained / 3, abs=3)  # 3 of 12


def test_new_labels_compete_with_their_own_classes_also_where_they_are_mixed_in():
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    labels, classes = torch.tensor([1, 4, 3]), torch.tensor([3, 4])
    part = Part("memory", torch.zeros(3, 1), labels=labels, partners=labels.flip(0), smoothing=0.1)
    part = replace(part, weight=torch.full((3,), 0.7))
    found = masked_loss(part, logits, torch.tensor([False, True, True]), classes)
    whole, masked = (replace(part, partners=None) for _ in range(2))

    def alone(image, label, only):
        one = replace(whole, images=masked.images[:1], labels=torch.tensor([label]), weight=None)
        return one.cross_entropy(logits[image : image + 1], only)

    own = [alone(0, 1, None), alone(1, 4, classes), alone(2, 3, classes)]
    mixed_in = [alone(0, 3, classes), alone(1, 4, classes), alone(2, 1, None)]
    wanted = torch.stack([0.7 * one + 0.3 * other for one, other in zip(own, mixed_in, strict=True)]).mean()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        masked_loss(part, logits, torch.zeros(3, dtype=torch.bool), classes), part.cross_entropy(logits)
    )


def test_masked_labels_are_those_of_the_present_time_step(blobs):
    learner, gaps = learner_of(blobs, "larder_masked"), {1: [], 2: [], 3: []}
    losses = learner.method.losses

    def watched(net, phase, batch):
        (term,) = losses(net, phase, batch)
        with learner.ledger.free(), torch.no_grad():
            (usual,) = LarderMethod.losses(learner.method, net, phase, batch)
        gaps[learner.position.finished + 1].append(float(usual.value - term.value.detach()))
        return [term]

    learner.method.losses = watched
    for t in learn(learner):
        assert learner.method.present.tolist() == learner.stream.step(t).labeled.tolist()
    assert max(map(abs, gaps[1])) < 1e-5  # there are no other classes yet
    assert max(gaps[2]) > 0.05
    assert max(gaps[3]) > 0.05


# How it answers.


def test_answers_are_the_mean_of_the_learned_head_and_one_solved_from_all_labels(blobs):
    learner = run_through(learner_of(blobs, "larder_blended", budget="30"))
    method, steps = learner.method, learner.stream.steps
    rows = np.concatenate([step.labeled for step in steps])
    labels = torch.from_numpy(np.concatenate([step.labels for step in steps]))
    images = normalize(learner.loader.read(learner.stream.tests[0].rows))
    with learner.ledger.free(), torch.no_grad():
        known = learner.net.features(normalize(learner.loader.read(rows)), "test", method.averaged.values)
        asked = learner.net.features(images, "test", method.averaged.values)
        learned = learner.net.scores(images, "test", method.averaged.values).softmax(1)
        answers = method.probabilities(method.predict(learner.net, images))
    found = solve(known, labels, 6, "half")
    wanted = (learned + score_shares(asked @ found.weight + found.bias)) / 2
    torch.testing.assert_close(answers, wanted, rtol=1e-4, atol=1e-5)
    for receipt in learner.ledger.closed:
        assert paid(receipt)["head", "forward"].images == sum(len(step.labeled) for step in steps[: receipt.t])
        assert receipt.spent <= receipt.budget
