"""Evaluation: integer counts against a predictor made by hand, in one pass, on all test images or a fair sample."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.checked_options import plain_values
from dietcl.config import Evaluation
from dietcl.engine import evaluator
from dietcl.engine.evaluator import (
    CHUNK,
    ClassCounts,
    Counts,
    Evaluator,
    common_sample,
    right_guesses,
    stratified_sample,
)
from dietcl.engine.loop import learn
from dietcl.streams.index import open_manifest
from dietcl.streams.options import Recipe
from dietcl.streams.sampler import Pool
from dietcl.streams.stream import Stream, TestStep, build_stream
from helpers.recording import run_through
from helpers.tiny import tiny_config, tiny_learner, write_blobs


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


# Guesses that are right.


def test_right_guesses_are_counted_among_images_of_known_truth_by_hand(blobs):
    index = open_manifest(blobs)
    stream = build_stream("s", index, Recipe(recipe="class", time_steps=3, label_rate=0.2), 0)
    rows = stream.steps[0].unlabeled[:5]
    number = {name: number for number, name in enumerate(stream.classes)}
    truth = np.array([number[index.classes[code]] for code in index.label[stream.index_row[rows]]])
    guesses = np.where(np.arange(5) == 2, 1 - truth, truth)  # the third is wrong; its time step has classes 0 and 1

    def counted(unknown, classes=stream.classes):
        label = index.label.copy()
        label[stream.index_row[rows[unknown]]] = -1
        return right_guesses(Pool(rows, guesses), replace(stream, classes=classes), replace(index, label=label))

    assert counted([]) == (4, 5)
    assert counted([3, 4]) == (2, 3)
    assert counted([2]) == (4, 4)
    assert counted([0, 1, 2, 3, 4]) == (0, 0)
    assert counted([3, 4], classes=("none of the manifest's",)) == (0, 3)  # a class that is never revealed is known


# A sample that seeds share.


def in_another_order(stream, seed):
    """The same test images under other row numbers and class numbers, as another seed would have them."""
    generator = np.random.default_rng(seed)
    total = len(stream.index_row)
    number = generator.permutation(total)  # of each row of the index
    index_row = np.empty(total, np.uint32)
    index_row[number] = np.arange(total)
    classes = np.append(generator.permutation(5), -1)
    tests = []
    for test in stream.tests:
        order = generator.permutation(len(test.rows))
        rows = number[stream.index_row[test.rows[order]]]
        tests.append(TestStep(test.t, rows, classes[test.labels[order]]))
    return replace(stream, seed=seed, tests=tuple(tests), index_row=index_row)


def index_rows(stream, sample):
    return [set(stream.index_row[test.rows].tolist()) for test in sample]


@settings(deadline=None)
@given(labels_by_step, st.integers(1, 200))
def test_a_common_sample_keeps_the_share_of_every_class_of_every_time_step(labels, size):
    stream = stream_of(labels)
    sample = common_sample(stream, size)
    share = size / max(1, sum(map(len, labels)))
    assert [test.t for test in sample] == [test.t for test in stream.tests]
    for test, whole in zip(sample, stream.tests, strict=True):
        assert len(set(test.rows)) == len(test.rows)
        label_of = dict(zip(whole.rows, whole.labels, strict=True))
        assert all(label_of[row] == label for row, label in zip(test.rows, test.labels, strict=True))
        had, has = Counter(whole.labels.tolist()), Counter(test.labels.tolist())
        for label, count in had.items():
            assert abs(has[label] - min(share, 1) * count) < 1
    if share >= 1:
        assert sum(len(test.rows) for test in sample) == sum(map(len, labels))


@settings(deadline=None)
@given(labels_by_step, st.integers(1, 60), st.integers(0, 99))
def test_a_common_sample_does_not_depend_on_how_rows_and_classes_are_numbered(labels, size, seed):
    stream = stream_of(labels)
    other = in_another_order(stream, seed)
    assert index_rows(other, common_sample(other, size)) == index_rows(stream, common_sample(stream, size))


@settings(deadline=None)
@given(labels_by_step, st.integers(1, 60), st.integers(1, 60))
def test_a_larger_common_sample_holds_the_smaller_one(labels, one, other):
    stream = stream_of(labels)
    few, many = (index_rows(stream, common_sample(stream, size)) for size in sorted((one, other)))
    assert all(small <= large for small, large in zip(few, many, strict=True))


@pytest.fixture(scope="module")
def many_tests(tmp_path_factory):
    """Blobs with ten test images of each of six classes, and their index."""
    manifest = write_blobs(tmp_path_factory.mktemp("many"), test_per_class=10)
    return manifest, open_manifest(manifest)


@pytest.mark.parametrize("size", [12, 20, 31, 60, 100])
def test_every_seed_of_a_stream_is_measured_on_the_same_images(many_tests, size):
    manifest, index = many_tests
    samples, fixed = [], []
    for seed in range(5):
        stream = build_stream(str(manifest), index, Recipe(recipe="class", time_steps=3, label_rate=0.2), seed)
        sample = common_sample(stream, size)
        samples.append(set.union(*index_rows(stream, sample)))
        fixed.append(set.union(*index_rows(stream, stratified_sample(stream, size))))
        by_class = Counter(index.label[[*samples[-1]]].tolist())
        assert all(size * 10 / 60 - 1 < by_class[code] < size * 10 / 60 + 1 or size > 60 for code in range(6))
        # Classes come in another order with another seed, and take their test images along.
        assert all(set(test.labels) <= set(whole.labels) for test, whole in zip(sample, stream.tests, strict=True))
    assert all(sample == samples[0] for sample in samples)
    assert len(samples[0]) == {12: 12, 60: 60, 100: 60}.get(size, len(samples[0]))
    if size < 60:
        assert any(sample != fixed[0] for sample in fixed)  # as they were, and still are without all_at_end


def test_time_steps_that_are_cut_by_time_have_the_same_images_for_every_seed(many_tests):
    manifest, index = many_tests
    found = []
    for seed in range(4):
        stream = build_stream(str(manifest), index, Recipe(recipe="time", time_steps=3, label_rate=0.5), seed)
        assert all(test.labels.min(initial=0) == 0 for test in stream.tests)
        found.append(index_rows(stream, common_sample(stream, 20)))
    assert all(one == found[0] for one in found)
    assert [len(rows) for rows in found[0]] == [pytest.approx(40 / 3, abs=6), pytest.approx(20 / 3, abs=6), 0]


@pytest.mark.parametrize(("count", "size"), [(10, 5000), (2, 1000), (4, 1000)])
def test_fractions_of_images_are_rounded_up_as_often_as_they_are_large(count, size):
    # 2,000 classes of equal size, of each of which the sample is due some whole images and a half.
    stream = stream_of([np.repeat(np.arange(2000), count).tolist()])
    kept = len(common_sample(stream, size)[0].rows)
    assert abs(kept - size) < 4 * np.sqrt(2000 / 4)


@pytest.mark.parametrize("size", [None, 7, 100])
def test_without_all_at_end_the_sample_is_what_it_was(size):
    stream = stream_of([[0] * 10, [1] * 10], seed=3)
    found, expected = evaluator.tests_of(stream, Evaluation(test_images=size)), stratified_sample(stream, size)
    assert all((a.rows == b.rows).all() for a, b in zip(found, expected, strict=True))
    if size is None:
        assert found is evaluator.tests_of(stream, Evaluation(all_at_end=True)) is stream.tests


def test_files_and_hashes_of_before_know_nothing_of_all_at_end(blobs):
    assert "all_at_end" not in plain_values(Evaluation(test_images=5))
    assert plain_values(Evaluation(all_at_end=True))["all_at_end"] is True
    config = tiny_config(blobs)
    assert replace(config, evaluation=Evaluation(all_at_end=True)).hash() != config.hash()
    assert replace(config, evaluation=Evaluation(all_at_end=False)).hash() == config.hash()


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
    return Evaluator(stream, oracle, tiny_learner(tiny_config(blobs)).ledger, Evaluation(test_images=size))


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


# All test images at the end.


@pytest.mark.parametrize(
    ("size", "rows"),
    [
        (12, [[4, 4, 0], [4, 4, 4], [8, 8, 8]]),  # half of the four images of each of two classes
        (None, [[8, 8, 0], [8, 8, 8], [8, 8, 8]]),
        (24, [[8, 8, 0], [8, 8, 8], [8, 8, 8]]),
    ],
)
def test_the_last_time_step_is_measured_on_all_test_images_and_others_on_the_sample(blobs, size, rows):
    config = tiny_config(blobs, "naive", budget="1")
    learner = tiny_learner(replace(config, evaluation=Evaluation(test_images=size, all_at_end=True)))
    run_through(learner)
    assert learner.counts.count.tolist() == rows
    assert learner.class_counts.total.sum(1).tolist() == [sum(row[: t + 1]) for t, row in enumerate(rows)]
    assert learner.class_counts.count.sum() == 24
    # What is measured at the end is what a run without a sample measures there.
    whole = run_through(tiny_learner(config))
    assert learner.counts.correct[2].tolist() == whole.counts.correct[2].tolist()
    assert learner.counts.loss_sum[2].tolist() == whole.counts.loss_sum[2].tolist()


def test_earlier_time_steps_are_measured_on_the_same_images_again_and_again(blobs):
    config = tiny_config(blobs, "naive", budget="1")
    learner = tiny_learner(replace(config, evaluation=Evaluation(test_images=12, all_at_end=True)))
    read, asked = learner.evaluator._loader.read, []

    def watch(rows):
        asked.append(set(rows.tolist()))
        return read(rows)

    learner.evaluator._loader.read = watch
    found, of_tests = [], {row for test in learner.stream.tests for row in test.rows.tolist()}
    for _ in learn(learner):
        found.append(set.union(*asked) & of_tests)
        asked.clear()
    sample = [set(test.rows.tolist()) for test in learner.evaluator.tests]
    assert found == [sample[0] | sample[1], set.union(*sample), of_tests]


def test_the_last_time_step_is_the_last_that_is_learned(blobs):
    # The union of a stream is learned as its last time step; a shorter stream ends earlier.
    evaluation = Evaluation(test_images=12, all_at_end=True)
    union = tiny_learner(replace(tiny_config(blobs, "joint", budget="1"), evaluation=evaluation))
    run_through(union)
    assert union.counts.count.tolist() == [[0, 0, 0], [0, 0, 0], [8, 8, 8]]
    config = replace(tiny_config(blobs, "naive", budget="1"), evaluation=replace(evaluation, test_images=8))
    stream = tiny_learner(config).stream
    short = run_through(tiny_learner(config, replace(stream, steps=stream.steps[:2], tests=stream.tests[:2])))
    assert short.counts.count.tolist() == [[4, 4], [8, 8]]


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
