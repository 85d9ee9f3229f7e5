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
