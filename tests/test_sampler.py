"""The sampler is a pure function with the right shares; the loader keeps order and passes errors on."""

import itertools
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.errors import UserError
from dietcl.streams import loader as loader_module
from dietcl.streams.loader import Loader
from dietcl.streams.options import POOLS
from dietcl.streams.sampler import NOTHING, Draw, Mix, Pool, PoolName, pools_of, sample, walk
from dietcl.streams.stream import Stream, TimeStep

THIRDS = Mix(unlabeled=1 / 3, labeled=1 / 3, memory=1 / 3)
RELEASE = Mix(unlabeled=0.4, labeled=0.3, memory=0.3)
FOURTHS = Mix(unlabeled=1 / 4, labeled=1 / 4, memory=1 / 4, larder=1 / 4)


def make_stream(sizes: list[int], unlabeled: int = 50, seed: int = 0) -> Stream:
    """A stream with so many labels per time step, one class each."""
    numbers = np.random.default_rng(0).permutation(sum(sizes) + unlabeled * len(sizes))
    parts = iter(np.split(numbers, np.cumsum([n for size in sizes for n in (size, unlabeled)])[:-1]))
    steps = [
        TimeStep(t, np.sort(next(parts)), np.full(size, t - 1), np.sort(next(parts)), t, (f"c{t}",))
        for t, size in enumerate(sizes, start=1)
    ]
    return Stream("s", "i", seed, tuple(steps), (), tuple(f"c{t}" for t in range(len(sizes))), np.arange(len(numbers)))


def pools(unlabeled: int = 9, labeled: int = 9, memory: int = 9, larder: int = 9) -> dict[PoolName, Pool]:
    """Pools of so many images."""
    sizes: dict[PoolName, int] = {"unlabeled": unlabeled, "labeled": labeled, "memory": memory, "larder": larder}
    return {name: Pool(np.arange(size), None) for name, size in sizes.items()}


def chi_square(observed: Any, expected: Any) -> float:
    """Standard deviations by which chi-square exceeds its mean."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    freedom = len(observed) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


class TestCounts:
    @pytest.mark.parametrize(
        ("mix", "held", "expected"),
        [
            (THIRDS, {}, (86, 85, 85)),
            (RELEASE, {}, (102, 77, 77)),
            (RELEASE, {"memory": 0}, (102, 154, 0)),  # the release's first time step
            (RELEASE, {"labeled": 0}, (102, 0, 154)),
            (RELEASE, {"unlabeled": 0}, (0, 128, 128)),
            (RELEASE, {"labeled": 0, "memory": 0}, (256, 0, 0)),
            (RELEASE, {"unlabeled": 0, "labeled": 0}, (0, 0, 256)),
            (RELEASE, {"unlabeled": 0, "labeled": 0, "memory": 0}, (0, 0, 0)),
            (Mix(labeled=1 / 2, memory=1 / 2, past_only=True), {}, (0, 128, 128)),
            (Mix(labeled=1 / 2, memory=1 / 2, past_only=True), {"memory": 0}, (0, 256, 0)),
            (Mix(memory=1), {"labeled": 0}, (0, 0, 256)),
            # A pool without a share is switched off: it does not stand in for another.
            (Mix(labeled=1), {"labeled": 0}, (0, 0, 0)),
            (Mix(unlabeled=1 / 2, labeled=1 / 2), {"labeled": 0}, (256, 0, 0)),
            (Mix(unlabeled=1), {"unlabeled": 0}, (0, 0, 0)),
            (Mix(), {}, (0, 0, 0)),
            (Mix(unlabeled=2, labeled=1, memory=1), {}, (128, 64, 64)),  # shares need not sum to one
        ],
    )
    def test_by_hand(self, mix: Mix, held: dict[str, int], expected: tuple[int, int, int]) -> None:
        counts = mix.counts(256, pools(**held))
        assert tuple(counts.get(name, 0) for name in ("unlabeled", "labeled", "memory")) == expected
        assert 0 not in counts.values()

    @pytest.mark.parametrize(
        ("mix", "held", "expected"),
        [
            (FOURTHS, {}, (64, 64, 64, 64)),
            (FOURTHS, {"larder": 0}, (86, 85, 85, 0)),  # what an empty larder would give, all others share
            (FOURTHS, {"memory": 0}, (64, 128, 0, 64)),
            (FOURTHS, {"labeled": 0, "larder": 0}, (85, 0, 171, 0)),
            (FOURTHS, {"labeled": 0, "memory": 0}, (128, 0, 0, 128)),  # guesses do not stand in for labels alone
            (FOURTHS, {"unlabeled": 0, "labeled": 0, "memory": 0}, (0, 0, 0, 256)),
            (FOURTHS, {"unlabeled": 0, "labeled": 0, "memory": 0, "larder": 0}, (0, 0, 0, 0)),
            (Mix(labeled=0.25, memory=0.25, larder=0.5), {}, (0, 64, 64, 128)),
            (Mix(labeled=0.25, memory=0.25, larder=0.5), {"larder": 0}, (0, 128, 128, 0)),
            (Mix(labeled=0.25, memory=0.25, larder=0.5), {"memory": 0}, (0, 128, 0, 128)),
            (Mix(larder=1), {}, (0, 0, 0, 256)),
            (Mix(larder=1), {"larder": 0}, (0, 0, 0, 0)),
            (THIRDS, {}, (86, 85, 85, 0)),  # without a share it is switched off
        ],
    )
    def test_the_larder_by_hand(self, mix: Mix, held: dict[str, int], expected: tuple[int, ...]) -> None:
        counts = mix.counts(256, pools(**held))
        assert tuple(counts.get(name, 0) for name in POOLS) == expected

    @given(
        st.integers(1, 2000),
        st.tuples(*[st.one_of(st.just(0.0), st.floats(1e-3, 1), st.sampled_from([1 / 3, 0.3, 0.4]))] * 4),
        st.tuples(*[st.integers(0, 2)] * 4),
    )
    @settings(max_examples=200, deadline=None)
    def test_counts_sum_to_the_size(self, size: int, shares: tuple[float, ...], held: tuple[int, ...]) -> None:
        mix = Mix(unlabeled=shares[0], labeled=shares[1], memory=shares[2], larder=shares[3])
        usable = [share > 0 and bool(count) for share, count in zip(shares, held, strict=True)]
        try:
            counts = mix.counts(size, pools(*held))
        except UserError:
            # Refused only if the smallest share is due less than one image.
            assert size * min(itertools.compress(shares, usable)) / sum(shares) < 1
            return
        assert sum(counts.values()) == (size if any(usable) else 0)
        assert all(name in itertools.compress(POOLS, usable) for name in counts)
        if all(usable):
            for name, share in zip(POOLS, shares, strict=True):
                assert abs(counts.get(name, 0) - size * share / sum(shares)) < 1


class TestSample:
    def test_pure(self) -> None:
        stream = make_stream([10, 20, 5])
        keys = [(7, 3, phase, update, micro) for phase in (0, 1) for update in range(4) for micro in (0, 1)]

        def draw(key: tuple[int, ...]) -> Any:
            drawn = sample(held := pools_of(stream, 3, THIRDS), THIRDS.counts(30, held), key)
            return [(d.pool, d.rows.tolist(), None if d.labels is None else d.labels.tolist()) for d in drawn]

        forward = {key: draw(key) for key in keys}
        backward = {key: draw(key) for key in reversed(keys)}
        assert forward == backward
        assert len({str(value) for value in forward.values()}) == len(keys)
        assert draw((8, 3, 0, 0, 0)) != forward[7, 3, 0, 0, 0]

    def test_pools_are_drawn_apart(self) -> None:
        """What one pool gives does not depend on the others' counts."""
        held = pools_of(make_stream([10, 20]), 2, THIRDS)
        (_, _, one) = sample(held, {"unlabeled": 3, "labeled": 4, "memory": 5}, (0,))
        (alone,) = sample(held, {"memory": 5}, (0,))
        assert one.rows.tolist() == alone.rows.tolist()

    def test_rows_come_from_their_pools_with_their_labels(self) -> None:
        stream = make_stream([10, 20, 5])
        held = pools_of(stream, 2, THIRDS)
        label_of = {int(row): int(label) for s in stream.steps for row, label in zip(s.labeled, s.labels, strict=True)}
        unlabeled, labeled, memory = sample(held, {"unlabeled": 200, "labeled": 200, "memory": 200}, (0,))
        assert set(unlabeled.rows) <= set(stream.steps[1].unlabeled)
        assert unlabeled.labels is None
        assert set(labeled.rows) == set(stream.steps[1].labeled)
        assert set(memory.rows) == {*stream.steps[0].labeled, *stream.steps[1].labeled}
        for draw in (labeled, memory):
            assert [label_of[int(row)] for row in draw.rows] == draw.labels.tolist()

    def test_uniform_over_a_pool(self) -> None:
        stream = make_stream([8, 24])
        held = pools_of(stream, 2, Mix(memory=1))
        (draw,) = sample(held, {"memory": 32_000}, (0,))
        counts = Counter(draw.rows.tolist())
        assert len(counts) == 32
        assert chi_square([*counts.values()], [1000] * 32) < 4
        # The current share of experience replay's uniform variant is n_t over the sum of all n.
        share = (draw.labels == 1).mean()
        assert abs(share - 24 / 32) < 4 * np.sqrt(0.75 * 0.25 / 32_000)

    def test_by_time_step_every_time_step_weighs_the_same(self) -> None:
        stream = make_stream([3, 40, 0, 7])
        held = pools_of(stream, 4, Mix(memory=1, by_time_step=True))
        (draw,) = sample(held, {"memory": 30_000}, (0,))
        assert sorted(Counter(draw.labels.tolist())) == [0, 1, 3]
        assert chi_square(np.bincount(draw.labels)[[0, 1, 3]], [10_000] * 3) < 4
        inside = Counter(draw.rows[draw.labels == 1].tolist())
        assert len(inside) == 40
        assert chi_square([*inside.values()], [sum(inside.values()) / 40] * 40) < 4

    def test_past_only_has_none_of_the_current(self) -> None:
        stream = make_stream([5, 6, 7])
        for by_time_step in (False, True):
            mix = Mix(memory=1, past_only=True, by_time_step=by_time_step)
            memory = pools_of(stream, 3, mix)["memory"]
            assert sorted(memory.labels) == [0] * 5 + [1] * 6
            assert not set(memory.rows) & set(stream.steps[2].labeled)
            assert len(pools_of(stream, 1, mix)["memory"].rows) == 0

    def test_no_label_yet(self) -> None:
        held = pools_of(make_stream([0, 0]), 2, mix := Mix(unlabeled=1, labeled=1, memory=1, by_time_step=True))
        assert mix.counts(10, held) == {"unlabeled": 10}


def weighted(weights: Any) -> Pool:
    """A pool of images 100, 101, ... with labels 0, 1, ... and these weights."""
    numbers = np.arange(len(weights))
    return Pool(100 + numbers, numbers, cumulative=np.cumsum(np.asarray(weights, np.float64)))


WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.integers(1, 9).map(float)), min_size=1, max_size=40)


class TestWeights:
    def test_images_are_drawn_in_proportion_to_their_weights(self) -> None:
        weights = np.array([1.0, 2.0, 4.0, 0.0, 8.0, 0.5, 0.5])
        (draw,) = sample({"larder": weighted(weights)}, {"larder": 32_000}, (0,))
        counts = np.bincount(draw.rows - 100, minlength=7)
        assert counts[3] == 0
        drawn = weights > 0
        assert chi_square(counts[drawn], 32_000 * weights[drawn] / 16) < 4
        assert (draw.rows - 100 == draw.labels).all()

    @given(WEIGHTS.filter(any), st.integers(0, 99))
    @settings(max_examples=200, deadline=None)
    def test_a_weight_of_zero_is_never_drawn(self, weights: list[float], seed: int) -> None:
        pool = weighted(weights)
        places = pool.draw(50, np.random.default_rng(seed))
        assert len(places) == 50
        assert (np.array(weights)[places] > 0).all()
        # Only ratios matter: doubling is exact, so that the very same images are drawn.
        twice = Pool(pool.rows, pool.labels, cumulative=2 * pool.cumulative)
        assert (twice.draw(50, np.random.default_rng(seed)) == places).all()

    @pytest.mark.parametrize("place", [0.0, 0.25, 0.5, 1 - 2**-53])
    def test_no_place_on_an_edge_belongs_to_a_weight_of_zero(self, place: float) -> None:
        class Fixed:
            def random(self, count: int) -> Any:
                return np.full(count, place)

        for weights in ([0, 1, 0, 1, 0, 2, 0], [1, 0, 3], [0, 0, 0.1], [0.1, 0, 0], [0.3, 0, 0.3, 0, 0.6, 0]):
            (found,) = weighted(weights).draw(1, Fixed())  # type: ignore[arg-type]
            assert weights[found] > 0
            before, upto = sum(weights[:found]), sum(weights[: found + 1])
            assert before <= place * sum(weights) * (1 + 1e-12)
            assert place * sum(weights) <= upto * (1 + 1e-12)

    @given(st.integers(1, 60), st.integers(0, 99))
    @settings(max_examples=60, deadline=None)
    def test_equal_weights_are_equal_parts_of_the_unit_interval(self, size: int, seed: int) -> None:
        found = weighted(np.ones(size)).draw(20, np.random.default_rng(seed))
        assert (found == np.floor(np.random.default_rng(seed).random(20) * size)).all()

    def test_one_image_is_always_drawn_whatever_its_weight(self) -> None:
        for weight in (1e-300, 1e-9, 1.0, 1e300):
            assert weighted([weight]).draw(5, np.random.default_rng(0)).tolist() == [0] * 5


class TestLarder:
    def test_it_is_empty_unless_the_method_says_otherwise(self) -> None:
        held = pools_of(make_stream([10, 20]), 2, FOURTHS)
        assert held["larder"] is NOTHING
        assert len(NOTHING.rows) == len(NOTHING.labels) == 0
        assert held.keys() == set(POOLS)

    def test_it_is_what_the_method_says_and_leaves_the_other_pools_alone(self) -> None:
        stream = make_stream([10, 20])
        guessed = Pool(stream.steps[0].unlabeled[:7], np.arange(7) % 2)
        without, held = pools_of(stream, 2, FOURTHS), pools_of(stream, 2, FOURTHS, guessed)
        assert held["larder"] is guessed
        draws = sample(held, {"unlabeled": 4, "labeled": 4, "memory": 4, "larder": 300}, (0,))
        for one, other in zip(draws, sample(without, {"unlabeled": 4, "labeled": 4, "memory": 4}, (0,)), strict=False):
            assert one.rows.tolist() == other.rows.tolist()
        guess = dict(zip(guessed.rows.tolist(), guessed.labels.tolist(), strict=True))
        assert [guess[row] for row in draws[3].rows.tolist()] == draws[3].labels.tolist()
        assert set(draws[3].rows.tolist()) == set(guess)


class TestWalk:
    @given(
        st.integers(0, 40),
        st.integers(1, 12),
        st.one_of(st.none(), st.integers(0, 50)),
        st.integers(0, 9),
        st.booleans(),
    )
    @settings(max_examples=100, deadline=None)
    def test_every_image_comes_once_or_a_random_sample_does(
        self, held: int, size: int, most: int | None, seed: int, labeled: bool
    ) -> None:
        pool = Pool(100 + np.arange(held), np.arange(held) if labeled else None)
        parts = [part for (part,) in walk("larder", pool, size, (seed,), most)]
        wanted = held if most is None else min(most, held)
        assert [len(part.rows) for part in parts] == [size] * (wanted // size) + [wanted % size] * (wanted % size > 0)
        rows = [row for part in parts for row in part.rows.tolist()]
        assert len(set(rows)) == wanted
        assert set(rows) <= set(pool.rows.tolist())
        assert all((part.labels == part.rows - 100).all() if labeled else part.labels is None for part in parts)
        # A sample is how the walk through all of the pool begins.
        whole = [row for (part,) in walk("larder", pool, size, (seed,)) for row in part.rows.tolist()]
        assert rows == whole[:wanted]

    def test_every_image_is_in_the_sample_equally_often(self) -> None:
        pool, keys = Pool(np.arange(20), None), 2000
        drawn = Counter(
            row
            for key in range(keys)
            for (part,) in walk("unlabeled", pool, 4, (key,), 5)
            for row in part.rows.tolist()
        )
        # Drawn without replacement, the counts vary less by the share that is shown.
        statistic = sum((drawn[row] - 500) ** 2 / 500 for row in range(20)) / (1 - 5 / 20)
        assert abs(statistic - 19) < 4 * np.sqrt(2 * 19)


class TestReservoir:
    def rows(self, stream: Stream, t: int, capacity: int, past_only: bool = False) -> list[int]:
        memory = pools_of(stream, t, Mix(memory=1, capacity=capacity, past_only=past_only))["memory"]
        label_of = {int(row): int(label) for s in stream.steps for row, label in zip(s.labeled, s.labels, strict=True)}
        assert [label_of[int(row)] for row in memory.rows] == memory.labels.tolist()
        return [int(row) for row in memory.rows]

    @given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 30), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_capacity_and_what_is_gone_is_gone(self, sizes: list[int], capacity: int, past_only: bool) -> None:
        stream = make_stream(sizes)
        gone: set[int] = set()
        for t in range(1, len(sizes) + 1):
            past = {int(row) for step in stream.steps[: t - 1] for row in step.labeled}
            now = set() if past_only else {int(row) for row in stream.steps[t - 1].labeled}
            kept = self.rows(stream, t, capacity, past_only)
            assert now <= set(kept)  # this time step's labels are all at hand
            kept_past = [row for row in kept if row not in now]
            assert len(kept_past) == len(set(kept_past)) == min(capacity, len(past))
            assert set(kept_past) <= past
            assert not set(kept_past) & gone
            gone |= past - set(kept_past)

    def test_large_enough_keeps_all_in_order(self) -> None:
        stream = make_stream([4, 5])
        everything = [int(row) for step in stream.steps for row in step.labeled]
        assert self.rows(stream, 2, 9) == self.rows(stream, 2, 100) == everything

    def test_every_label_is_kept_with_the_same_probability(self) -> None:
        sizes, capacity, seeds = [10, 5, 15, 0], 6, 1500
        kept = Counter(row for seed in range(seeds) for row in self.rows(make_stream(sizes, seed=seed), 4, capacity))
        expected = seeds * capacity / 30
        rows = [int(row) for step in make_stream(sizes).steps for row in step.labeled]
        # Drawn without replacement, the counts vary less by the share that is kept.
        statistic = sum((kept[row] - expected) ** 2 / expected for row in rows) / (1 - capacity / 30)
        assert abs(statistic - 29) < 4 * np.sqrt(2 * 29)

    def test_time_steps_are_still_balanced(self) -> None:
        stream = make_stream([30, 30, 30])
        memory = pools_of(stream, 3, Mix(memory=1, capacity=20, by_time_step=True))["memory"]
        (draw,) = sample({"memory": memory}, {"memory": 9000}, (1,))
        present = np.unique(memory.labels)
        assert chi_square(np.bincount(draw.labels)[present], [9000 / len(present)] * len(present)) < 4


# The loader.


class FakeStorage:
    """Answers with the row number as the only pixel; one row is broken, and every read can be held up."""

    def __init__(self, broken: int = -1) -> None:
        self.broken = broken
        self.reads = 0
        self.bad: dict[int, str] = {}
        self.gate = threading.Event()
        self.gate.set()

    def read(self, rows: Any) -> torch.Tensor:
        assert self.gate.wait(10)
        self.reads += 1
        if self.broken in rows:
            raise UserError(f"row {self.broken} is broken")
        return torch.as_tensor(rows)[:, None, None, None]

    fetch = read


def micro_batch(number: int) -> tuple[Draw, ...]:
    rows = np.array([number % 20])
    return Draw("unlabeled", rows, None), Draw("labeled", rows[[0, 0]], np.array([1, 2]))


def make_loader(storage: Any) -> Loader:
    return Loader(make_stream([4], unlabeled=16), storage, torch.device("cpu"))


@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 50])
@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_the_loader_keeps_the_order(monkeypatch: pytest.MonkeyPatch, ahead: int, count: int) -> None:
    monkeypatch.setattr(loader_module, "AHEAD", ahead)
    loader = make_loader(FakeStorage())
    seen = list(loader.iterate(micro_batch(number) for number in range(count)))
    assert [int(draws[0].rows[0]) for draws, _ in seen] == [number % 20 for number in range(count)]
    for draws, images in seen:
        assert [image.flatten().tolist() for image in images] == [draw.rows.tolist() for draw in draws]
    assert loader.waited >= 0


def test_the_loader_translates_opaque_numbers() -> None:
    loader = make_loader(FakeStorage())
    object.__setattr__(loader.stream, "index_row", np.arange(20)[::-1].copy())
    assert loader.read(np.array([0, 5])).flatten().tolist() == [19, 14]


def test_closing_the_loader_in_the_middle_does_not_hang() -> None:
    storage = FakeStorage()
    loader = make_loader(storage)
    endless = loader.iterate(micro_batch(number) for number in itertools.count())
    next(endless)
    storage.gate.clear()  # a read is under way while the rest is called off
    endless.close()
    storage.gate.set()
    # The same loader serves the next phase.
    fresh = loader.iterate(micro_batch(number) for number in range(3))
    assert [int(draws[0].rows[0]) for draws, _ in fresh] == [0, 1, 2]
    assert storage.reads < 30


def test_errors_of_reading_surface_at_their_micro_batch() -> None:
    loader = make_loader(FakeStorage(broken=5))
    ready = loader.iterate(micro_batch(number) for number in range(10))
    for number in range(5):
        assert int(next(ready)[0][0].rows[0]) == number
    with pytest.raises(UserError, match="row 5 is broken"):
        next(ready)
    with pytest.raises(StopIteration):
        next(ready)


def test_errors_of_drawing_surface() -> None:
    def draws() -> Any:
        yield micro_batch(0)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(make_loader(FakeStorage()).iterate(draws()))
