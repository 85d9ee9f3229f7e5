"""Recipes: every training row once, quotas per class and time step, and cuts that are what they say."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.errors import UserError
from dietcl.streams.assign_steps import NOWHERE, TEST, TRAIN, assign_steps
from dietcl.streams.index import Index
from dietcl.streams.options import Recipe

quick = settings(max_examples=60, deadline=None)


def make_index(label: Any, time: Any = None, split: Any = None, classes: int | None = None) -> Index:
    """An index in memory."""
    label = np.asarray(label, np.int32)
    count = len(label)
    names = tuple(f"class {i}" for i in range(classes or int(label.max(initial=0)) + 1))
    return Index(
        root=Path(),
        hash="x",
        files=("f",),  # type: ignore[arg-type]
        classes=names,
        file=np.zeros(count, np.int32),
        offset=np.arange(count),
        length=np.full(count, -1),
        label=label,
        time=np.full(count, np.nan) if time is None else np.asarray(time, float),
        split=np.zeros(count, np.int8) if split is None else np.asarray(split, np.int8),
    )


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    """Small indexes with anything in them, but at least one timed training row of each of six classes."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(-1, 5),
                st.one_of(st.just(float("nan")), st.integers(-3, 3), st.floats(-1e6, 1e6)),
                st.sampled_from([TRAIN, TRAIN, TEST]),
            ),
            max_size=60,
        )
    )
    rows += [(label, float(label), TRAIN) for label in range(6)]
    label, time, split = zip(*rows, strict=True)
    return make_index(label, time, split)


recipes = st.builds(
    Recipe,
    recipe=st.sampled_from(["class", "time", "data"]),
    time_steps=st.integers(1, 6),
    label_rate=st.one_of(st.sampled_from([0.0, 0.01, 0.29, 0.5, 1.0]), st.floats(0, 1).map(lambda x: round(x, 4))),
    at_least_one=st.booleans(),
    cut=st.sampled_from(["count", "duration"]),
    test_per_time_step=st.none() | st.integers(1, 4),
)


def half_up(rate: float, count: int) -> int:
    """Round a decimal share of a count, exactly."""
    return int(Fraction(str(rate)) * count + Fraction(1, 2))


@given(indexes(), recipes, st.integers(0, 5))
@quick
def test_rows_and_quotas(index: Index, recipe: Recipe, seed: int) -> None:
    assignment = assign_steps(index, recipe, seed)
    train = index.split == TRAIN
    # Every training row is in exactly one time step.
    assert assignment.step.shape == assignment.labeled.shape == (len(index),)
    assert ((assignment.step[train] >= 0) & (assignment.step[train] < recipe.time_steps)).all()
    # Labels are revealed of training rows whose label is known, and where time decides, the time, too: by quota.
    may = train & (index.label >= 0) & ~(np.isnan(index.time) & (recipe.recipe == "time"))
    assert not assignment.labeled[~may].any()
    for step in range(recipe.time_steps):
        for label in range(len(index.classes)):
            rows = may & (assignment.step == step) & (index.label == label)
            quota = half_up(recipe.label_rate, int(rows.sum()))
            if recipe.at_least_one and rows.any():
                quota = max(1, quota)
            assert assignment.labeled[rows].sum() == quota
    # Test rows are in at most one time step, and no time step has too many.
    test = assignment.step[~train]
    assert ((test >= NOWHERE) & (test < recipe.time_steps)).all()
    if recipe.test_per_time_step is not None:
        assert max(Counter(test[test >= 0].tolist()).values(), default=0) <= recipe.test_per_time_step


@given(indexes(), recipes, st.integers(0, 5))
@quick
def test_the_same_seed_deals_the_same(index: Index, recipe: Recipe, seed: int) -> None:
    one, two = assign_steps(index, recipe, seed), assign_steps(index, recipe, seed)
    np.testing.assert_array_equal(one.step, two.step)
    np.testing.assert_array_equal(one.labeled, two.labeled)


@pytest.mark.parametrize("kind", ["class", "data"])
def test_another_seed_deals_otherwise(kind: Any) -> None:
    index = make_index(np.arange(400) % 20)
    recipe = Recipe(recipe=kind, time_steps=5, label_rate=0.2)
    one, two = assign_steps(index, recipe, 0), assign_steps(index, recipe, 1)
    assert (one.step != two.step).mean() > 0.5
    assert (one.labeled != two.labeled).any()


def test_another_seed_reveals_other_labels_of_a_time_stream() -> None:
    index = make_index(np.arange(400) % 20, time=np.arange(400))
    recipe = Recipe(recipe="time", time_steps=5, label_rate=0.2)
    one, two = assign_steps(index, recipe, 0), assign_steps(index, recipe, 1)
    np.testing.assert_array_equal(one.step, two.step)
    assert (one.labeled != two.labeled).any()


@pytest.mark.parametrize(
    ("count", "rate", "at_least_one", "expected"),
    [
        (50, 0.01, False, 1),
        (49, 0.01, False, 0),
        (49, 0.01, True, 1),
        (50, 0.29, False, 15),  # 14.499999999999998 in floating point
        (3, 0.5, False, 2),
        (7, 1.0, False, 7),
        (7, 0.0, False, 0),
        (7, 0.0, True, 1),
        (100_000, 0.000005, False, 1),
    ],
)
def test_quotas_round_half_up(count: int, rate: float, at_least_one: bool, expected: int) -> None:
    recipe = Recipe(recipe="data", time_steps=1, label_rate=rate, at_least_one=at_least_one)
    assert assign_steps(make_index(np.zeros(count)), recipe, 0).labeled.sum() == expected


class TestClass:
    def test_every_class_has_one_time_step_and_time_steps_are_even(self) -> None:
        label = np.repeat(np.arange(23), 3)
        index = make_index(label, split=np.arange(69) % 3 == 0)
        assignment = assign_steps(index, Recipe(recipe="class", time_steps=5), 3)
        step_of_class = [set(assignment.step[label == code].tolist()) for code in range(23)]
        assert all(len(steps) == 1 for steps in step_of_class)  # test rows as well
        sizes = Counter(steps.pop() for steps in step_of_class)
        assert sorted(sizes.values()) == [4, 4, 5, 5, 5]

    def test_classes_are_dealt_evenly_over_seeds(self) -> None:
        index = make_index(np.arange(6))
        recipe = Recipe(recipe="class", time_steps=3)
        steps = np.array([assign_steps(index, recipe, seed).step for seed in range(600)])
        counts = np.stack([(steps == step).sum(0) for step in range(3)])
        assert ((counts - 200) ** 2 / 200).sum(0).max() < 2 + 5 * 2  # chi-square, 2 degrees of freedom

    def test_too_few_classes(self) -> None:
        with pytest.raises(UserError, match="--time-steps 4: the stream has only 3 classes"):
            assign_steps(
                make_index([0, 1, 2, 3], split=[TRAIN, TRAIN, TRAIN, TEST]), Recipe(recipe="class", time_steps=4), 0
            )

    def test_rows_of_unknown_class_arrive_at_any_time(self) -> None:
        index = make_index([*range(4), *([-1] * 40)])
        assignment = assign_steps(index, Recipe(recipe="class", time_steps=4, label_rate=1), 0)
        assert np.bincount(assignment.step[4:]).tolist() == [10] * 4
        assert not assignment.labeled[4:].any()

    def test_test_images_of_a_class_without_training_images_are_left_out(self) -> None:
        index = make_index([0, 1, 2, -1], split=[TRAIN, TRAIN, TEST, TEST])
        assert assign_steps(index, Recipe(recipe="class", time_steps=2), 0).step[2:].tolist() == [NOWHERE, NOWHERE]


class TestData:
    @given(st.integers(1, 60), st.integers(0, 30), st.integers(1, 8))
    @quick
    def test_both_splits_are_cut_evenly(self, train: int, test: int, time_steps: int) -> None:
        index = make_index(np.zeros(train + test), split=np.arange(train + test) >= train)
        step = assign_steps(index, Recipe(recipe="data", time_steps=time_steps), 0).step
        for part in (step[:train], step[train:]):
            sizes = np.bincount(part, minlength=time_steps)
            assert sizes.max() - sizes.min() <= 1

    def test_the_cuts_do_not_follow_the_rows(self) -> None:
        index = make_index(np.arange(4000) // 400, split=np.arange(4000) % 2)
        step = assign_steps(index, Recipe(recipe="data", time_steps=10), 0).step
        for split in (TRAIN, TEST):
            rows = index.split == split
            table = np.histogram2d(index.label[rows], step[rows], bins=10)[0]
            assert ((table - 20) ** 2 / 20).sum() < 81 + 5 * np.sqrt(2 * 81)


class TestTime:
    @given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60, unique=True), st.integers(1, 8))
    @quick
    def test_equal_counts(self, times: list[float], time_steps: int) -> None:
        step = assign_steps(
            make_index(np.zeros(len(times)), times), Recipe(recipe="time", time_steps=time_steps), 0
        ).step
        sizes = np.bincount(step, minlength=time_steps)
        assert sizes.max() - sizes.min() <= 1
        assert (np.diff(step[np.argsort(times)]) >= 0).all()

    @given(
        st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 8), st.sampled_from(["count", "duration"])
    )
    @quick
    def test_equal_times_stay_together_and_in_order(self, times: list[int], time_steps: int, cut: Any) -> None:
        index = make_index(np.zeros(len(times)), times)
        step = assign_steps(index, Recipe(recipe="time", time_steps=time_steps, cut=cut), 0).step
        order = np.argsort(times, kind="stable")
        assert (np.diff(step[order]) >= 0).all()
        assert all(len(set(step[np.array(times) == time])) == 1 for time in set(times))
        assert step.min() == 0  # the first image arrives at the first time step
        if cut == "count":
            # A cut is at the end of the run of equal times that covers the place where it should be.
            for number in range(1, time_steps):
                start = int((step < number).sum())
                ideal = -(-number * len(times) // time_steps)
                end_of_run = int(np.searchsorted(np.sort(times), times[order[ideal - 1]], side="right"))
                assert start == end_of_run

    def test_equal_durations_may_be_empty(self) -> None:
        index = make_index(np.zeros(6), [0, 1, 2, 2.5, 9, 10])
        assert assign_steps(index, Recipe(recipe="time", time_steps=4, cut="duration"), 0).step.tolist() == [
            0,
            0,
            0,
            1,
            3,
            3,
        ]

    @pytest.mark.parametrize("cut", ["count", "duration"])
    def test_all_at_one_moment_arrive_at_once(self, cut: Any) -> None:
        index = make_index(np.zeros(5), [7.0] * 5)
        assert assign_steps(index, Recipe(recipe="time", time_steps=3, cut=cut), 0).step.tolist() == [0] * 5

    def test_test_rows_follow_the_cuts_of_the_training_rows(self) -> None:
        # Training times 0, 10, 20, 30; between two of them it is still the earlier one's time step.
        times = [0, 10, 20, 30, -5, 0, 9, 10, 19.9, 20, 1000, float("nan")]
        index = make_index(np.zeros(12), times, [TRAIN] * 4 + [TEST] * 8)
        count = assign_steps(index, Recipe(recipe="time", time_steps=4), 0).step.tolist()
        assert count == [0, 1, 2, 3, 0, 0, 0, 1, 1, 2, 3, NOWHERE]
        duration = assign_steps(index, Recipe(recipe="time", time_steps=3, cut="duration"), 0).step.tolist()
        assert duration == [0, 1, 2, 2, 0, 0, 0, 1, 1, 2, 2, NOWHERE]

    def test_rows_of_unknown_time_never_teach_by_their_labels(self) -> None:
        index = make_index(np.zeros(44), [1, 2, 3, 4] + [float("nan")] * 40)
        for rate, revealed in ((1.0, [0, 1, 2, 3]), (0.5, [0, 1, 2, 3])):  # of one image, half is one
            assignment = assign_steps(index, Recipe(recipe="time", time_steps=4, label_rate=rate), 0)
            assert np.flatnonzero(assignment.labeled).tolist() == revealed
        everywhere = assign_steps(index, Recipe(recipe="data", time_steps=4, label_rate=1.0), 0)
        assert everywhere.labeled.all()

    def test_rows_of_unknown_time_arrive_at_any_time(self) -> None:
        index = make_index(np.zeros(44), [1, 2, 3, 4] + [float("nan")] * 40)
        assignment = assign_steps(index, Recipe(recipe="time", time_steps=4), 0)
        assert np.bincount(assignment.step[4:]).tolist() == [10] * 4

    def test_no_time_at_all(self) -> None:
        with pytest.raises(UserError, match="'time' column"):
            assign_steps(make_index([0, 1], [float("nan"), 1.0], [TRAIN, TEST]), Recipe(recipe="time", time_steps=2), 0)


def test_test_images_are_chosen_at_random_and_training_rows_are_not_touched() -> None:
    index = make_index(np.arange(300) % 3, split=np.arange(300) % 2)
    recipe = Recipe(recipe="class", time_steps=3, label_rate=0.1)
    full, few = assign_steps(index, recipe, 0), assign_steps(index, replace(recipe, test_per_time_step=7), 0)
    train = index.split == TRAIN
    np.testing.assert_array_equal(full.step[train], few.step[train])
    np.testing.assert_array_equal(full.labeled, few.labeled)
    kept = ~train & (few.step != NOWHERE)
    np.testing.assert_array_equal(few.step[kept], full.step[kept])
    assert np.bincount(few.step[kept]).tolist() == [7, 7, 7]
    again = assign_steps(index, replace(recipe, test_per_time_step=7), 1)
    assert (kept != (~train & (again.step != NOWHERE))).any()


def test_revealed_labels_are_a_fair_draw() -> None:
    index = make_index(np.zeros(20))
    recipe = Recipe(recipe="data", time_steps=1, label_rate=0.25)
    revealed = np.sum([assign_steps(index, recipe, seed).labeled for seed in range(800)], axis=0)
    variance = 800 * 0.25 * 0.75
    # Five of twenty without replacement: the counts are tied together, one degree of freedom less.
    assert ((revealed - 200) ** 2 / variance).sum() * 19 / 20 < 19 + 5 * np.sqrt(38)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_steps": 0}, "--time-steps 0"),
        ({"time_steps": 200_000}, "--time-steps 200000"),
        ({"label_rate": 1.5}, "--label-rate 1.5"),
        ({"label_rate": -0.1}, "--label-rate -0.1"),
        ({"label_rate": float("nan")}, "--label-rate nan"),
        ({"test_per_time_step": 0}, "--test-per-time-step 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recipe(**options)


def test_a_stream_without_training_images_is_refused() -> None:
    with pytest.raises(UserError, match="no training images"):
        assign_steps(make_index([0, 1], split=[TEST, TEST]), Recipe(recipe="data", time_steps=1), 0)


def test_more_pairs_of_classes_and_time_steps_than_32_bits_count() -> None:
    classes = 1_000_000
    label = np.arange(0, classes, 5000)
    wide = make_index(np.r_[label, label], np.arange(2 * len(label)), classes=classes)
    narrow = make_index(np.r_[label, label] // 5000, np.arange(2 * len(label)))
    recipe = Recipe(recipe="time", time_steps=4000, label_rate=0.5)
    assert assign_steps(wide, recipe, 3).labeled.tolist() == assign_steps(narrow, recipe, 3).labeled.tolist()
