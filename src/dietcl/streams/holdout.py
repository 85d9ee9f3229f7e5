"""Draws test images: for sources that name none, or from the training images to replace the test images."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.streams.assign_steps import rank_in_group
from dietcl.streams.manifest import Writer, fingerprints, read_facts
from dietcl.streams.times import DATES_AT_MOST, Times, cut_edges, suggest_cut

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
_PERIODS = DATES_AT_MOST + 1  # the last one holds images without a time
_HELD_OUT = 0.1  # share of the training images


def draw_tests(label: npt.NDArray[np.int32], time: Times, id_hash: Hashes, share: float) -> npt.NDArray[np.bool_]:
    """Return which images are for tests: this share of the labeled ones (label >= 0), stratified by class and time."""
    drawn = np.zeros(len(label), np.bool_)
    rows = np.flatnonzero(label >= 0)
    count = int(np.ceil(round(share * len(rows), 6)))
    if not count:
        return drawn
    # The smallest hashes are taken, so images that are added later change few choices.
    rows = rows[np.argsort(id_hash[rows], kind="stable")]
    label, time = label[rows], time[rows]
    known = time[~np.isnan(time)]
    edges = cut_edges(known, *suggest_cut(known)) if len(known) else np.zeros(0)
    period = np.where(np.isnan(time), DATES_AT_MOST, np.searchsorted(edges, time, side="right"))
    quota = _quotas(label, period, count)
    kept = quota[label] > 0
    rows, cell = rows[kept], (np.cumsum(quota > 0) - 1)[label[kept]] * _PERIODS + period[kept]
    quota = quota[quota > 0][:, None]
    images = np.bincount(cell, minlength=len(quota) * _PERIODS).reshape(-1, _PERIODS)
    exact, size = images * quota, images.sum(1, keepdims=True)
    tests, rank = exact // size, rank_in_group(cell, np.arange(len(cell)))
    # The rest goes to the largest remainders, less a random number that belongs to the image that would be taken.
    wish, is_next = exact % size / size, rank == tests.ravel()[cell]
    wish[wish == 0] = -2  # never: any other is above -1
    wish.ravel()[cell[is_next]] -= id_hash[rows[is_next]] % 2**32 / 2**32
    tests += np.argsort(np.argsort(-wish, axis=1), axis=1) < quota - tests.sum(1, keepdims=True)
    _even_out(tests, exact, size, wish)
    drawn[rows[rank < tests.ravel()[cell]]] = True
    return drawn


def _quotas(label: npt.NDArray[np.int32], period: Counts, count: int) -> Counts:
    """Return the number of tests of each class, in proportion to its images; the last one is left for training."""
    turn = _turns(label)
    last = np.partition(turn, count - 1)[count - 1]
    taken, tied = turn < last, np.flatnonzero(turn == last)
    order = np.argsort(_turns(period[tied]), kind="stable")  # between classes of one size, times decide
    taken[tied[order[: count - taken.sum()]]] = True
    size = np.bincount(label)
    return np.asarray(np.minimum(np.bincount(label[taken], minlength=len(size)), np.maximum(size, 1) - 1))


def _turns(group: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Return a number from 0 to 1 for every member: the smallest of all take from each group in proportion."""
    return np.asarray((rank_in_group(group, np.arange(len(group))) + 0.5) / np.bincount(group)[group])


def _even_out(tests: Counts, exact: Counts, size: Counts, wish: npt.NDArray[np.float64]) -> None:
    """Move tests of classes between times until each time has its share (exact / size) to less than one."""
    # A class can give a test where its number was rounded up, and take one where it was rounded down. As long as a time
    # is off by one, moves of several classes lead to another time: a table can be rounded with its rows and columns.
    up, down = tests * size > exact, tests * size < exact
    ways = up.T.astype(np.float32) @ down  # number of classes that can move a test, from time to time
    surplus = np.round(tests.sum(0) - (exact / size).sum(0), 6)
    while abs(surplus[start := int(np.abs(surplus).argmax())]) >= 1:
        sign, before = int(np.sign(surplus[start])), {start: start}
        for at in (queue := [start]):  # the queue grows: breadth first, for the fewest moves
            if sign * surplus[at] < 0:
                break
            found = [to for to in np.flatnonzero((ways if sign > 0 else ways.T)[at]).tolist() if to not in before]
            before |= dict.fromkeys(found, at)
            queue += found
        else:
            return  # rounding made a share look off by one
        while at != start:
            source, target = (before[at], at)[::sign]
            moved = np.where(up[:, source] & down[:, target], wish[:, target] - wish[:, source], -np.inf).argmax()
            ways -= np.outer(up[moved], down[moved])
            for period, change in ((source, -1), (target, 1)):
                tests[moved, period] += change
                surplus[period] += change
                up[moved, period], down[moved, period] = change > 0, change < 0
            ways += np.outer(up[moved], down[moved])
            at = before[at]


def hold_out(manifest: str | Path) -> Path:
    """Return a manifest beside this one to choose options on: a tenth of its training images are the test images."""
    source = Path(manifest)
    path = source.with_name(f"{source.stem}-held-out.parquet")
    if not path.is_file() or path.stat().st_mtime_ns < source.stat().st_mtime_ns:
        table = pq.read_table(source)
        table = table.filter(pc.equal(table["split"], "train"))
        # Which images are held out depends on their ids alone.
        is_held_out = fingerprints(table["id"].combine_chunks()) >> 11 < int(_HELD_OUT * 2**53)
        split = pc.if_else(pa.array(is_held_out), "test", "train")
        with Writer(path, read_facts(source)) as writer:
            writer.write(table.set_column(table.schema.get_field_index("split"), "split", split))
    return path
