"""Draws test images: for sources that name none, or from the training images to replace the test images."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.files import write_bytes
from dietcl.streams.assign_steps import rank_in_group
from dietcl.streams.manifest import fingerprints
from dietcl.streams.times import DATES_AT_MOST, Times, cut_edges, suggest_cut

Hashes = npt.NDArray[np.uint64]
_HELD_OUT = 0.1  # share of the training images


def draw_tests(label: npt.NDArray[np.int32], time: Times, id_hash: Hashes, share: float) -> npt.NDArray[np.bool_]:
    """Return which images are for tests: this share of the labeled ones (label >= 0), stratified by class and time.

    Within a class and a time, the images with the smallest hashes are taken, so images that are added later change few
    choices. At least one image of every class is left for training.
    """
    drawn = np.zeros(len(label), np.bool_)
    rows = np.flatnonzero(label >= 0)
    if not share or not len(rows):
        return drawn
    label, id_hash = label[rows], id_hash[rows]
    cell = label.astype(np.int64) * (DATES_AT_MOST + 1) + _time_bins(time[rows])
    # The smallest of these midpoints first: seats go to times, and then to classes, in proportion to their images.
    midpoint = (rank_in_group(cell, np.argsort(id_hash, kind="stable")) + 0.5) / _group_sizes(cell)
    rank, size = rank_in_group(label, np.lexsort((id_hash, midpoint))), _group_sizes(label)
    order = np.lexsort((id_hash, (rank + 0.5) / size))[: int(np.ceil(round(share * len(rows), 6)))]
    drawn[rows[order[rank[order] < size[order] - 1]]] = True
    return drawn


def hold_out(manifest: str | Path) -> Path:
    """Return a manifest beside this one whose test images are a tenth of the training images instead of its own.

    Hyperparameters can be chosen on it; which images are held out depends on their ids alone.
    """
    source = Path(manifest)
    path = source.with_name(f"{source.stem}-held-out.parquet")
    if not path.is_file() or path.stat().st_mtime_ns < source.stat().st_mtime_ns:
        table = pq.read_table(source)
        table = table.filter(pc.equal(table["split"], "train"))
        is_held_out = fingerprints(table["id"].combine_chunks()) >> 11 < int(_HELD_OUT * 2**53)
        split = pc.if_else(pa.array(is_held_out), "test", "train")
        table = table.set_column(table.schema.get_field_index("split"), table.schema.field("split"), split)
        content = io.BytesIO()
        pq.write_table(table, content, compression="zstd")
        write_bytes(path, content.getvalue())
    return path


def _time_bins(time: Times) -> npt.NDArray[np.int64]:
    """Number the time steps of the suggested cut; unknown times have a number of their own."""
    known = time[~np.isnan(time)]
    if not len(known):
        return np.zeros(len(time), np.int64)
    edges = cut_edges(known, *suggest_cut(known))
    return np.where(np.isnan(time), DATES_AT_MOST, np.searchsorted(edges, time, side="right"))


def _group_sizes(group: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the size of every member's group."""
    _, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    of_members: npt.NDArray[np.int64] = sizes[number]
    return of_members
