"""Evaluation: integer counts against a predictor made by hand, in one pass, on all test images or a fair sample."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.config import Evaluation
from dietcl.engine.evaluator import CHUNK, ClassCounts, Counts, Evaluator, stratified_sample
from dietcl.engine.loop import learn
from dietcl.streams.stream import Stream, TestStep
from helpers.tiny import tiny_config, tiny_learner


def stream_of(labels_by_step, seed=0):
    """A stream of test images alone, numbered through."""
    tests, start = [], 0
    for t, labels in enumerate(labels_by_step, start=1):
        rows = np.arange(start, start + len(labels))
        tests.append(TestStep(t, rows, np.array(labels, np.int64)))
        start += len(labels)
    return Stream("made", "made", seed, (), tuple(tests), (), np.arange(start))


labels_by_step = st.lists(st.lists(st.integers(-1, 4), max_size=30), min_size=1, max_size=5)


@settings(deadline=None)
@given(labels_by_step, st.integers(1, 60), st.integers(0, 5))
def test_a_sample_keeps_the_share_of_every_time_step_and_class(labels, size, seed):
    stream = stream_of(labels, seed)
    total = sum(map(len, labels))
    sample = stratified_sample(stream, size)
    kept = sum(len(test.rows) for test in sample)
    assert kept == min(size, total)
    assert [test.t for test in sample] == [test.t for test in stream.tests]
    for test, whole in zip(sample, stream.tests, strict=True):
        assert len(set(test.rows)) == len(test.rows)
        label_of = dict(zip(whole.rows, whole.labels, strict=True))
        assert all(label_of[row] == label for row, label in zip(test.rows, test.labels, strict=True))
        share = kept / max(1, total)
        assert abs(len(test.rows) - share * len(whole.rows)) < 1
        had, has = Counter(whole.labels.tolist()), Counter(test.labels.tolist())
        assert all(abs(has[label] - share * had[label]) < 1 for label in had)


def test_the_sample_is_fixed_by_the_seed_and_fair():
    labels = [[0] * 40, [1] * 40]
    one, same, other = (stratified_sample(stream_of(labels, seed), 20) for seed in (0, 0, 1))
    for a, b in zip(one, same, strict=True):
        assert (a.rows == b.rows).all()
    assert any((a.rows != b.rows).any() for a, b in zip(one, other, strict=True))
    drawn = Counter(
        row for seed in range(200) for test in stratified_sample(stream_of(labels, seed), 20) for row in test.rows
    )
    assert len(drawn) == 80
    assert max(drawn.values()) < 90  # 50 expected
    assert min(drawn.values()) > 20


class Oracle:
    """Predicts a given class for every row and counts how often each row is asked for."""

    substituted = 0

    def __init__(self, answers):
        self.answers, self.asked = answers, Counter()

    def read(self, rows):
        self.rows = rows
        self.asked.update(rows.tolist())
        return torch.zeros(len(rows), 3, 4, 4, dtype=torch.uint8)

    def read_ahead(self, parts):
        return map(self.read, parts)

    def predict(self, net, images):
        assert not torch.is_grad_enabled()
        scores = torch.zeros(len(images), net.classes)
        scores[torch.arange(len(images)), torch.tensor([self.answers[row] for row in self.rows])] = 5.0
        return scores


class Head:
    def __init__(self, classes):
        self.classes = classes


def evaluator_of(stream, oracle, blobs, size=None):
    return Evaluator(stream, oracle, tiny_learner(tiny_config(blobs)).ledger, size)


def test_counts_agree_with_a_predictor_made_by_hand(blobs):
    # Three classes are known; class 3 comes later and -1 never.
    stream = stream_of([[0, 1, 0], [2, 2, -1, 3], [3, 3]])
    oracle = Oracle([0, 1, 1, 2, 0, 0, 2, 1, 1])
    counts, by_class = Counts.empty(3), ClassCounts.empty(3, 4)
    evaluator_of(stream, oracle, blobs).measure(oracle, Head(3), counts, 1, 3, by_class)
    assert counts.correct.tolist() == [[0, 0, 0], [2, 1, 0], [0, 0, 0]]
    assert counts.count.tolist() == [[0, 0, 0], [3, 4, 2], [0, 0, 0]]
    right, wrong = -np.log(np.exp(5) / (np.exp(5) + 2)), -np.log(1 / (np.exp(5) + 2))
    unknown = np.log(4)  # a guess among the three known classes and one more
    expected = [2 * right + wrong, right + wrong + 2 * unknown, 2 * unknown]
    assert counts.loss_sum[1] == pytest.approx(expected, rel=1e-6)
    assert set(oracle.asked.values()) == {1}
    # By class, without the third time step, which is not learned yet.
    cells = zip(by_class.truth.tolist(), by_class.predicted.tolist(), by_class.count.tolist(), strict=True)
    assert [*cells] == [(-1, 0, 1), (0, 0, 1), (0, 1, 1), (1, 1, 1), (2, 0, 1), (2, 2, 1), (3, 2, 1)]
    assert by_class.right.tolist() == [[0] * 5, [1, 1, 1, 0, 0], [0] * 5]
    assert by_class.total.tolist() == [[0] * 5, [2, 1, 2, 1, 1], [0] * 5]


@pytest.mark.parametrize("classes", [0, 2])
def test_never_revealed_classes_are_always_wrong(blobs, classes):
    stream = stream_of([[-1] * 5, [-1] * 3])
    oracle = Oracle([0, 1] * 4)
    counts, by_class = Counts.empty(2), ClassCounts.empty(2, classes)
    evaluator_of(stream, oracle, blobs).measure(oracle, Head(classes), counts, 1, 2, by_class)
    assert counts.correct.sum() == by_class.right.sum() == 0
    assert counts.count[1].tolist() == [5, 3]
    answers = dict(zip(by_class.predicted.tolist(), by_class.count.tolist(), strict=True))
    assert answers == ({0: 4, 1: 4} if classes else {-1: 8})
    assert set(by_class.truth.tolist()) == {-1}
    assert by_class.total[1].tolist() == [0] * classes + [8]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), max_size=40))
def test_every_image_is_in_one_cell_of_the_confusion(pairs):
    truth, predicted = np.array(pairs, np.int64).reshape(-1, 2).T
    counts = ClassCounts.empty(1, 5)
    counts.record(0, [TestStep(1, np.arange(len(pairs)), truth)], [predicted])
    for cell, rows in zip(counts.mistakes(), counts.examples, strict=True):
        of_cell = [i for i, pair in enumerate(pairs) if pair == (counts.truth[cell], counts.predicted[cell])]
        assert [row for row in rows.tolist() if row >= 0] == of_cell[:6]
    cells = zip(counts.truth.tolist(), counts.predicted.tolist(), counts.count.tolist(), strict=True)
    assert {(true, answer): count for true, answer, count in cells} == Counter(pairs)
    assert counts.right[0].tolist() == [sum(pair == (c, c) for pair in pairs) for c in range(5)] + [0]
    assert counts.total[0].tolist() == [sum(true == c for true, _ in pairs) for c in (0, 1, 2, 3, 4, -1)]


def test_many_images_are_measured_in_chunks_without_losing_one(blobs):
    labels = np.random.default_rng(0).integers(0, 4, 2 * CHUNK + 7).tolist()
    oracle = Oracle(labels)
    counts = Counts.empty(1)
    evaluator_of(stream_of([labels]), oracle, blobs).measure(oracle, Head(4), counts, 0, 1)
    assert counts.correct[0, 0] == counts.count[0, 0] == len(labels)
    assert set(oracle.asked.values()) == {1}


def test_each_time_step_measures_the_seen_and_the_next_once(blobs):
    learner = tiny_learner(tiny_config(blobs, "naive", budget="1"))
    read, asked = learner.evaluator._loader.read, Counter()

    def watch(rows):
        asked.update(rows.tolist())
        return read(rows)

    tests = learner.stream.tests
    of_tests = {row for test in tests for row in test.rows.tolist()}
    learner.evaluator._loader.read = watch
    for t in learn(learner):
        until = min(t + 1, 3)
        wanted = {row for test in tests[:until] for row in test.rows.tolist()}
        assert_equal_sums(learner.counts, learner.class_counts, t)
        assert {row: n for row, n in asked.items() if row in of_tests} == dict.fromkeys(wanted, 1)
        asked.clear()
    filled = learner.counts.count > 0
    assert filled.tolist() == [[True, True, False], [True, True, True], [True, True, True]]
    # Before a time step is learned the head has none of its classes.
    assert learner.counts.correct[0, 1] == learner.counts.correct[1, 2] == 0


def assert_equal_sums(counts, by_class, t):
    """The classes together are the seen time steps together."""
    is_right = (by_class.truth == by_class.predicted) & (by_class.truth >= 0)
    assert by_class.count.sum() == by_class.total[t - 1].sum() == counts.count[t - 1, :t].sum()
    assert by_class.count[is_right].sum() == by_class.right[t - 1].sum() == counts.correct[t - 1, :t].sum()


def test_a_run_may_be_measured_on_a_sample(blobs):
    config = replace(tiny_config(blobs, "naive", budget="1"), evaluation=Evaluation(test_images=9))
    learner = tiny_learner(config)
    for _ in learn(learner):
        pass
    assert learner.counts.count[-1].tolist() == [3, 3, 3]


def test_evaluation_is_free_and_changes_nothing(blobs):
    learner = tiny_learner(tiny_config(blobs, "er", budget="1"))
    for _ in learn(learner):
        pass
    state = {name: value.clone() for name, value in learner.network.state_dict().items()}
    before = learner.counts.correct.copy()
    learner.evaluator.measure(learner.method, learner.net, learner.counts, 2, 3)  # after the last close
    assert (learner.counts.correct == before).all()
    assert all(torch.equal(value, state[name]) for name, value in learner.network.state_dict().items())
    assert all(item.passes == 0 for r in learner.ledger.closed for item in r.items if item.purpose == "evaluation")
