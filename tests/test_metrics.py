"""Figures worked out by hand on 3 x 3 counts, and what must hold for any counts."""

import math
import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dietcl.metrics import Summary, paired_difference, student_t, summarize

Matrix = npt.NDArray[np.int64]

# Time steps with 10, 20 and 10 test images; the cell right of the diagonal is the next time step before learning it.
COUNT = np.array([[10, 20, 0], [10, 20, 10], [10, 20, 10]])
CORRECT = np.array([[8, 2, 0], [5, 12, 1], [4, 10, 9]])
LOSS = np.array([[10.0, 60.0, 0.0], [15.0, 20.0, 40.0], [20.0, 30.0, 5.0]])


def test_accuracy_along_the_stream_by_hand() -> None:
    s = summarize(CORRECT, COUNT, LOSS)
    assert s.time_steps == s.learned == 3
    assert s.accuracy_mean == pytest.approx([0.8, (0.5 + 0.6) / 2, (0.4 + 0.5 + 0.9) / 3])
    assert s.accuracy_pooled == pytest.approx([0.8, 17 / 30, 23 / 40])
    assert (s.final_mean, s.final_pooled) == pytest.approx((0.6, 0.575))
    assert s.average_mean == pytest.approx((0.8 + 0.55 + 0.6) / 3)
    assert s.average_pooled == pytest.approx((0.8 + 17 / 30 + 0.575) / 3)
    assert s.loss_mean == pytest.approx([1.0, (1.5 + 1.0) / 2, (2.0 + 1.5 + 0.5) / 3])
    assert s.loss_pooled == pytest.approx([1.0, 35 / 30, 55 / 40])


def test_forgetting_and_transfer_by_hand() -> None:
    s = summarize(CORRECT, COUNT, LOSS)
    assert s.forgetting == pytest.approx(((0.8 - 0.4) + (0.6 - 0.5)) / 2)
    assert s.backward_transfer == pytest.approx(((0.4 - 0.8) + (0.5 - 0.6)) / 2)
    assert s.forward_transfer == pytest.approx((2 / 20 + 1 / 10) / 2)
    assert s.current == pytest.approx([0.8, 0.6, 0.9])
    assert s.old_mean == pytest.approx([math.nan, 0.5, 0.45], nan_ok=True)
    assert s.old_pooled == pytest.approx([math.nan, 0.5, 14 / 30], nan_ok=True)
    assert (s.final_current, s.final_old_mean, s.final_old_pooled) == pytest.approx((0.9, 0.45, 14 / 30))


def test_forgetting_takes_the_best_measurement_after_learning_not_the_first_nor_one_before_learning() -> None:
    count = np.array([[10, 10, 0], [10, 10, 10], [10, 10, 10]])
    correct = np.array([[4, 9, 0], [7, 6, 0], [5, 5, 5]])
    s = summarize(correct, count, np.zeros((3, 3)))
    assert s.forgetting == pytest.approx(((0.7 - 0.5) + (0.6 - 0.5)) / 2)
    assert s.backward_transfer == pytest.approx(((0.5 - 0.4) + (0.5 - 0.6)) / 2)


def test_standard_errors_by_hand() -> None:
    s = summarize(CORRECT, COUNT, LOSS)
    assert s.accuracy_se[2] == pytest.approx([math.sqrt(0.4 * 0.6 / 10), math.sqrt(0.5 * 0.5 / 20), math.sqrt(0.009)])
    assert s.final_mean_se == pytest.approx(math.sqrt(0.024 + 0.0125 + 0.009) / 3)
    assert s.final_pooled_se == pytest.approx(math.sqrt(10 * 0.24 + 20 * 0.25 + 10 * 0.09) / 40)
    assert s.final_current_se == pytest.approx(math.sqrt(0.009))
    assert s.final_old_mean_se == pytest.approx(math.sqrt(0.024 + 0.0125) / 2)
    assert s.final_old_pooled_se == pytest.approx(math.sqrt(10 * 0.24 + 20 * 0.25) / 30)


def test_a_time_step_without_test_images_is_left_out_of_every_mean() -> None:
    count, correct, loss = COUNT.copy(), CORRECT.copy(), LOSS.copy()
    for matrix in (count, correct, loss):
        matrix[:, 1] = 0
    s = summarize(correct, count, loss)
    assert s.accuracy_mean == pytest.approx([0.8, 0.5, (0.4 + 0.9) / 2])
    assert s.accuracy_pooled == pytest.approx([0.8, 0.5, 13 / 20])
    assert s.current == pytest.approx([0.8, math.nan, 0.9], nan_ok=True)
    assert s.forgetting == pytest.approx(0.4)
    assert s.backward_transfer == pytest.approx(-0.4)
    assert s.forward_transfer == pytest.approx(0.1)


def test_a_run_that_stopped_early_ends_at_its_last_measured_row() -> None:
    count, correct, loss = COUNT.copy(), CORRECT.copy(), LOSS.copy()
    for matrix in (count, correct, loss):
        matrix[2] = 0
    s = summarize(correct, count, loss)
    assert (s.time_steps, s.learned) == (3, 2)
    assert (s.final_mean, s.final_pooled) == pytest.approx((0.55, 17 / 30))
    assert s.average_mean == pytest.approx((0.8 + 0.55) / 2)
    assert s.forgetting == pytest.approx(0.3)
    assert s.forward_transfer == pytest.approx(0.1)
    assert math.isnan(s.accuracy_mean[2])


@pytest.mark.parametrize("size", [0, 3])
def test_nothing_measured_is_unknown_not_zero(size: int) -> None:
    zeros = np.zeros((size, size), dtype=np.int64)
    s = summarize(zeros, zeros, zeros)
    assert s.learned == 0
    for value in (s.final_mean, s.average_pooled, s.forgetting, s.backward_transfer, s.forward_transfer):
        assert math.isnan(value)


def test_a_single_time_step_has_no_forgetting() -> None:
    s = summarize([[3]], [[4]], [[1.0]])
    assert s.final_mean == s.final_pooled == s.average_mean == 0.75
    assert math.isnan(s.forgetting)
    assert math.isnan(s.final_old_mean)


@pytest.mark.parametrize(
    ("correct", "count", "message"),
    [
        ([[5]], [[4]], "between 0 and count"),
        ([[-1]], [[4]], "between 0 and count"),
        ([[1.0]], [[4]], "integers"),
        ([[1, 2]], [[4, 4]], r"\[T, T\]"),
    ],
)
def test_impossible_counts_are_refused(correct: object, count: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarize(np.array(correct), np.array(count), np.zeros_like(count, dtype=float))


@st.composite
def counts(draw: st.DrawFn, equal: bool = False) -> tuple[Matrix, Matrix]:
    size = draw(st.integers(1, 6))
    sizes = (
        [draw(st.integers(1, 50))] * size if equal else draw(st.lists(st.integers(0, 50), min_size=size, max_size=size))
    )
    learned = draw(st.integers(0, size))
    count = np.tri(size, k=1, dtype=np.int64) * np.array(sizes, dtype=np.int64)
    count[learned:] = 0
    share = draw(st.lists(st.floats(0, 1), min_size=size * size, max_size=size * size))
    return np.floor(count * np.array(share).reshape(size, size)).astype(np.int64), count


def _all_accuracies(s: Summary) -> npt.NDArray[np.float64]:
    parts = [s.accuracy, s.accuracy_mean, s.accuracy_pooled, s.current, s.old_mean, s.old_pooled]
    ends = [s.final_mean, s.final_pooled, s.average_mean, s.average_pooled, s.forward_transfer, s.final_old_mean]
    return np.concatenate([*(part.ravel() for part in parts), ends])


@given(counts())
def test_every_accuracy_lies_between_0_and_1(matrices: tuple[Matrix, Matrix]) -> None:
    s = summarize(*matrices, np.zeros(matrices[0].shape))
    known = _all_accuracies(s)
    known = known[~np.isnan(known)]
    assert ((known >= 0) & (known <= 1)).all()
    assert not (s.accuracy_mean_se < 0).any()
    assert not (s.accuracy_mean_se > 0.5).any()
    assert not (s.accuracy_pooled_se > 0.5).any()


@given(counts(equal=True))
def test_mean_and_pooled_agree_when_time_steps_have_equally_many_images(matrices: tuple[Matrix, Matrix]) -> None:
    s = summarize(*matrices, np.zeros(matrices[0].shape))
    np.testing.assert_allclose(s.accuracy_mean, s.accuracy_pooled, atol=1e-12)
    np.testing.assert_allclose(s.accuracy_mean_se, s.accuracy_pooled_se, atol=1e-12)
    np.testing.assert_allclose(s.old_mean, s.old_pooled, atol=1e-12)


@given(counts(), st.randoms(use_true_random=False))
def test_the_order_of_the_columns_does_not_change_the_final_accuracy(
    matrices: tuple[Matrix, Matrix], shuffler: random.Random
) -> None:
    correct, count = (matrix[-1:].repeat(len(matrix), axis=0) for matrix in matrices)
    order = list(range(len(count)))
    shuffler.shuffle(order)
    zeros = np.zeros(count.shape)
    one, other = summarize(correct, count, zeros), summarize(correct[:, order], count[:, order], zeros)
    for name in ("final_mean", "final_mean_se", "final_pooled", "final_pooled_se"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), nan_ok=True)


@given(counts())
def test_forgetting_is_at_least_what_backward_transfer_lost(matrices: tuple[Matrix, Matrix]) -> None:
    s = summarize(*matrices, np.zeros(matrices[0].shape))
    assert math.isnan(s.forgetting) == math.isnan(s.backward_transfer)
    if not math.isnan(s.forgetting):
        assert s.forgetting >= -s.backward_transfer - 1e-12


@pytest.mark.parametrize(
    ("freedom", "confidence", "value"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (4, 0.95, 2.776), (9, 0.95, 2.262), (30, 0.95, 2.042), (5, 0.99, 4.032)],
)
def test_student_t_agrees_with_printed_tables(freedom: int, confidence: float, value: float) -> None:
    assert student_t(freedom, confidence) == pytest.approx(value, abs=5e-4)


def test_student_t_approaches_the_normal_quantile() -> None:
    assert student_t(100_000) == pytest.approx(1.95996, abs=5e-5)


def test_paired_difference_by_hand() -> None:
    # Differences 1, 2, 3, 4, 5: mean 3, standard deviation sqrt(2.5), standard error sqrt(0.5).
    mean, low, high = paired_difference([2, 4, 6, 8, 10], [1, 2, 3, 4, 5])
    assert mean == 3
    assert high - mean == pytest.approx(2.776445 * math.sqrt(0.5), rel=1e-6)
    assert mean - low == pytest.approx(high - mean)


def test_paired_difference_of_one_pair_has_no_interval() -> None:
    mean, low, high = paired_difference([0.5], [0.25])
    assert mean == 0.25
    assert math.isnan(low)
    assert math.isnan(high)


def test_paired_difference_refuses_what_is_not_paired() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        paired_difference([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="at least one"):
        paired_difference([], [])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_swapping_sides_mirrors_the_interval(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    mean, low, high = paired_difference(a, b)
    assert low <= mean <= high
    assert paired_difference(b, a) == pytest.approx((-mean, -high, -low))
