"""The sampler: (seed, t, phase, update, micro-batch) -> row numbers, a pure function of its arguments."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dietcl.keys import numpy_generator
from dietcl.streams.mix import Mix, PoolName
from dietcl.streams.stream import Labels, Rows, Stream


@dataclass(frozen=True)
class Pool:
    """Where images are drawn from: rows, their labels if revealed, and the bounds of its time steps."""

    rows: Rows
    labels: Labels | None
    bounds: npt.NDArray[np.int64] | None = None  # set if time steps weigh the same

    def draw(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return positions drawn with replacement."""
        if self.bounds is None:
            return generator.integers(len(self.rows), size=count)
        group = generator.integers(len(self.bounds) - 1, size=count)
        return generator.integers(self.bounds[group], self.bounds[group + 1])


@dataclass(frozen=True)
class Draw:
    """The rows of one pool in one micro-batch, with their revealed labels."""

    pool: PoolName
    rows: Rows
    labels: Labels | None


def pools_of(stream: Stream, t: int, mix: Mix) -> dict[PoolName, Pool]:
    """Return the three pools of time step t under a mix."""
    step = stream.steps[t - 1]
    return {
        "labeled": Pool(step.labeled, step.labels),
        "unlabeled": Pool(step.unlabeled, None),
        "memory": _memory(stream, t, mix),
    }


def sample(
    pools: Mapping[PoolName, Pool], counts: Mapping[PoolName, int], key: tuple[int | str, ...]
) -> tuple[Draw, ...]:
    """Draw one micro-batch."""
    draws = []
    for name, count in counts.items():
        pool = pools[name]
        chosen = pool.draw(count, numpy_generator(*key, "draw", name))
        draws.append(Draw(name, pool.rows[chosen], None if pool.labels is None else pool.labels[chosen]))
    return tuple(draws)


def _memory(stream: Stream, t: int, mix: Mix) -> Pool:
    steps = stream.steps[: t - 1 if mix.past_only else t]
    rows = np.concatenate([step.labeled for step in steps]) if steps else np.zeros(0, np.int64)
    labels = np.concatenate([step.labels for step in steps]) if steps else np.zeros(0, np.int64)
    origin = np.repeat(np.arange(len(steps)), [len(step.labeled) for step in steps])
    if mix.capacity is not None and mix.capacity < len(rows):
        # The labels with the smallest lots: uniform over all so far, and what was dropped once stays out.
        lots = np.concatenate(
            [numpy_generator(stream.seed, step.t, "reservoir").random(len(step.labeled)) for step in steps]
        )
        kept = np.sort(np.argsort(lots)[: mix.capacity])
        rows, labels, origin = rows[kept], labels[kept], origin[kept]
    if not mix.by_time_step:
        return Pool(rows, labels)
    sizes = np.bincount(origin, minlength=len(steps))
    bounds = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
    return Pool(rows, labels, bounds)
