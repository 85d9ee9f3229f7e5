"""The sampler: (seed, t, phase, update, micro-batch) -> row numbers, a pure function of its arguments."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dietcl.rng import numpy_generator
from dietcl.streams.assign_steps import rank_in_group
from dietcl.streams.options import Mix, PoolName
from dietcl.streams.stream import Labels, Rows, Stream

Key = tuple[int | str, ...]  # of a random generator


@dataclass(frozen=True)
class Pool:
    """Where images are drawn from: rows, and their labels if revealed or guessed."""

    rows: Rows
    labels: Labels | None
    bounds: npt.NDArray[np.int64] | None = None  # of its time steps, if these weigh the same
    cumulative: npt.NDArray[np.float64] | None = None  # sums of the images' weights, if these differ

    def draw(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return positions drawn with replacement."""
        if self.cumulative is not None:
            places = generator.random(count) * self.cumulative[-1]
            found: npt.NDArray[np.int64] = np.searchsorted(self.cumulative[:-1], places, side="right")
            return found
        if self.bounds is None:
            return generator.integers(len(self.rows), size=count)
        group = generator.integers(len(self.bounds) - 1, size=count)
        return generator.integers(self.bounds[group], self.bounds[group + 1])


NOTHING = Pool(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Draw:
    """The rows of one pool in one micro-batch, with their revealed labels."""

    pool: PoolName
    rows: Rows
    labels: Labels | None
    key: Key = ()  # what it was drawn by


Draws = tuple[Draw, ...]  # of one micro-batch


def pools_of(stream: Stream, t: int, mix: Mix, larder: Pool = NOTHING) -> dict[PoolName, Pool]:
    """Return the pools of time step t under a mix; what is in the larder, the method says."""
    step = stream.step(t)
    return {
        "labeled": Pool(step.labeled, step.labels),
        "unlabeled": Pool(np.setdiff1d(step.unlabeled, step.unplaced) if mix.placed_only else step.unlabeled, None),
        "memory": _memory(stream, t, mix),
        "larder": larder,
    }


def sample(pools: Mapping[PoolName, Pool], counts: Mapping[PoolName, int], key: Key) -> Draws:
    """Draw one micro-batch."""
    generators = [numpy_generator(*key, "draw", name) for name in counts]
    draws = []
    for (name, count), generator in zip(counts.items(), generators, strict=True):
        pool = pools[name]
        chosen = pool.draw(count, generator)
        labels = None if pool.labels is None else pool.labels[chosen]
        draws.append(Draw(name, pool.rows[chosen], labels, key))
    return tuple(draws)


def sample_updates(
    pools: Mapping[PoolName, Pool], counts: Mapping[PoolName, int], key: Key, first: int, micros: Sequence[int]
) -> Iterator[Draws]:
    """Yield these micro-batches of every update from the first on, without end."""
    for update in itertools.count(first):
        for micro in micros:
            yield sample(pools, counts, (*key, update, micro))


def walk(name: PoolName, pool: Pool, size: int, key: Key, most: int | None = None) -> Iterator[Draws]:
    """Yield all of a pool, or at most some of it, once in random order, in micro-batches of at most this size."""
    order = numpy_generator(*key, "walk", name).permutation(len(pool.rows))[:most]
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield (Draw(name, pool.rows[chosen], None if pool.labels is None else pool.labels[chosen]),)


def _memory(stream: Stream, t: int, mix: Mix) -> Pool:
    steps = [step for step in stream.steps if step.t < t + (not mix.past_only)]
    kept = _reservoir(stream, t, None if mix.by_class else mix.capacity)
    rows = np.concatenate([np.zeros(0, np.int64), *(step.labeled[kept[step.t]] for step in steps)])
    labels = np.concatenate([np.zeros(0, np.int64), *(step.labels[kept[step.t]] for step in steps)])
    if mix.by_class:
        # Classes keep equally many if they can. Row numbers are random, so the lowest of a class are a fair choice.
        chosen = np.lexsort((rows, rank_in_group(labels, np.argsort(rows))))[: mix.capacity]
        chosen = chosen[np.argsort(rows[chosen])]
        return Pool(rows[chosen], labels[chosen])
    if not mix.by_time_step:
        return Pool(rows, labels)
    sizes = np.array([int(kept[step.t].sum()) for step in steps], np.int64)
    return Pool(rows, labels, np.concatenate([[0], np.cumsum(sizes[sizes > 0])]))


def _reservoir(stream: Stream, t: int, capacity: int | None) -> dict[int, npt.NDArray[np.bool_]]:
    """Return for every time step until t which of its labels are still in memory; those of t itself all are."""
    # Those with the smallest random numbers stay: a uniform choice, and what was dropped is never added again.
    past = [step for step in stream.steps if step.t < t]
    lots = {step.t: numpy_generator(stream.seed, step.t, "reservoir").random(len(step.labeled)) for step in past}
    drawn = np.sort(np.concatenate([np.zeros(0), *lots.values()]))
    highest = drawn[capacity - 1] if capacity is not None and capacity < len(drawn) else np.inf
    return {step: lot <= highest for step, lot in lots.items()} | {t: np.ones(len(stream.step(t).labeled), np.bool_)}
