"""draw_tests: labeled images only, in proportion to classes and times, and steady when images are added."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.streams.holdout import draw_tests
from dietcl.streams.manifest import fingerprints

NO_TIME = float("nan")


def draw(rows: list[tuple[int, float]], share: float, names: list[str] | None = None) -> np.ndarray:
    """Draw tests of (class, time) rows that are named by their number."""
    label, time = (np.array(column) for column in zip(*rows, strict=True))
    hashes = fingerprints(pa.array(names or [f"photo {i}.jpg" for i in range(len(rows))]))
    return draw_tests(label.astype(np.int32), time.astype(float), hashes, share)


@given(
    st.lists(st.tuples(st.integers(-1, 4), st.sampled_from([NO_TIME, 0.0, 1.0, 2.0])), min_size=1, max_size=80),
    st.floats(0, 0.99),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_only_labeled_images_and_never_the_last_of_a_class(rows: Any, share: float, random: Any) -> None:
    tests = draw(rows, share)
    labels = np.array([label for label, _ in rows])
    assert not tests[labels < 0].any()
    assert all((labels[~tests] == label).any() for label in set(labels.tolist()))
    assert tests.sum() <= np.ceil(share * (labels >= 0).sum() + 1e-6)
    # The order of the rows is of no account.
    order = list(range(len(rows)))
    random.shuffle(order)
    again = draw([rows[i] for i in order], share, [f"photo {i}.jpg" for i in order])
    assert again.tolist() == tests[order].tolist()


@given(
    st.lists(
        st.tuples(st.integers(-1, 6), st.sampled_from([NO_TIME, 0.0, 1.0, 2.0, 5.0, 6.0])), min_size=1, max_size=150
    ),
    st.integers(0, 3),  # classes that keep to a time or two
    st.sampled_from([0.05, 0.1, 0.2, 0.5]),
    st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_classes_have_exact_shares_and_given_these_times_do(rows: Any, narrow: int, share: float, seed: int) -> None:
    rows = [(label, min(time, float(label)) if label < narrow else time) for label, time in rows]
    tests = draw(rows, share, [f"{seed}/{i}" for i in range(len(rows))])
    of_class = Counter(label for label, _ in rows if label >= 0)
    of_cell = Counter(map(str, rows))  # as text, because NaN does not equal itself
    of_time: dict[str, tuple[float, int]] = {}
    drawn_of_class = Counter(label for (label, _), is_test in zip(rows, tests, strict=True) if is_test)
    # Seats go to the smallest midpoints (rank + 1/2) / size; equal ones may win or lose.
    midpoints = sorted((rank + 0.5) / size for size in of_class.values() for rank in range(size))
    if count := int(np.ceil(round(share * len(midpoints), 6))):
        for label, size in of_class.items():
            own = np.array([(rank + 0.5) / size for rank in range(size)])
            least, most = ((own < midpoints[count - 1]).sum(), (own <= midpoints[count - 1]).sum())
            assert min(least, size - 1) <= drawn_of_class[label] <= min(most, size - 1)
    # Each class and time has its part of the class's tests, and each time its part of all tests: both to less than one.
    drawn_of_cell = Counter(str(row) for row, is_test in zip(rows, tests, strict=True) if is_test)
    for (label, time), cell in {(row[0], str(row[1])): str(row) for row in rows if row[0] >= 0}.items():
        exact = of_cell[cell] * drawn_of_class[label] / of_class[label]
        assert abs(drawn_of_cell[cell] - exact) < 1
        wanted, found = of_time.get(time, (0, 0))
        of_time[time] = wanted + exact, found + drawn_of_cell[cell]
    assert all(abs(found - wanted) < 1 for wanted, found in of_time.values())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rows", "share", "found"),
    [
        ([(label, float(day)) for label in range(12) for day in range(4)], 0.1, [1, 1, 1, 2]),
        ([(label, float(day)) for label in range(20) for day in range(10)], 0.1, [2] * 10),
        # One day always has more images of every class, and still does not get all tests.
        ([(label, float(max(day, 2))) for label in range(12) for day in range(12)], 1 / 12, [1] * 9 + [3]),
        # Every class has one day only: which classes get a test is up to their days.
        ([(label, float(label % 4)) for label in range(48) for _ in range(2)], 0.125, [3] * 4),
    ],
)
def test_no_day_is_left_without_tests(rows: Any, share: float, found: list[int], seed: int) -> None:
    tests = draw(rows, share, [f"{seed}/{i}" for i in range(len(rows))])
    of_day = Counter(time for (_, time), is_test in zip(rows, tests, strict=True) if is_test)
    assert sorted(of_day.values()) == found


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_every_class_and_every_time_has_its_share(share: float) -> None:
    rows = [(label, float(day)) for label, count in enumerate((20, 60, 100)) for day in range(5) for _ in range(count)]
    tests = draw(rows, share)
    found = Counter(row for row, is_test in zip(rows, tests, strict=True) if is_test)
    for label, count in enumerate((20, 60, 100)):
        assert all(found[label, float(day)] == share * count for day in range(5))


def test_small_classes_get_a_test_image_before_large_ones_get_more_than_their_share() -> None:
    rows = [(0, NO_TIME)] * 990 + [(1, NO_TIME)] * 10
    tests = draw(rows, 0.1)
    assert tests[:990].sum() == 99
    assert tests[990:].sum() == 1


def test_unlabeled_images_do_not_change_which_images_are_drawn() -> None:
    rows = [(i % 3, float(i % 7)) for i in range(210)]
    assert draw(rows, 0.2).tolist() == draw(rows + [(-1, 3.0)] * 500, 0.2)[:210].tolist()


def test_images_added_later_change_few_choices() -> None:
    generator = np.random.default_rng(0)
    rows = [(int(label), float(i // 55)) for i, label in enumerate(generator.integers(0, 8, 2200))]
    before, after = draw(rows[:2000], 0.1), draw(rows, 0.1)  # four more days
    kept = (before & after[:2000]).sum() / before.sum()
    assert kept > 0.9
    everywhere = sorted(range(2200), key=lambda i: (i % 11 == 0, i))  # ten percent more of every day
    names = [f"photo {i}.jpg" for i in everywhere]
    before = draw([rows[i] for i in everywhere[:2000]], 0.1, names[:2000])
    after = draw([rows[i] for i in everywhere], 0.1, names)
    assert (before & after[:2000]).sum() / before.sum() > 0.75


def test_a_larger_share_keeps_the_test_images_of_a_smaller_one() -> None:
    rows = [(i % 5, float(i % 11)) for i in range(400)]
    small, large = draw(rows, 0.1), draw(rows, 0.3)
    assert (small & ~large).sum() == 0
    assert (small.sum(), large.sum()) == (40, 120)


def test_the_choice_within_a_class_and_a_time_is_fair() -> None:
    drawn = sum(draw([(0, 0.0)] * 10, 0.3, [f"{trial}/{i}" for i in range(10)]).astype(int) for trial in range(500))
    assert np.abs(drawn - 150).max() < 5 * np.sqrt(500 * 0.3 * 0.7)
