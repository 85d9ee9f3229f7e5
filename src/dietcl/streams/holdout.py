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
_HELD_OUT = 0.1  # share of the training images


def draw_tests(label: npt.NDArray[np.int32], time: Times, id_hash: Hashes, share: float) -> npt.NDArray[np.bool_]:
    """Return which images are for tests: this share of the labeled ones (label >= 0), stratified by class and time."""
    # The smallest hashes are taken, so images that are added later change few choices.
    drawn = np.zeros(len(label), np.bool_)
    rows = np.flatnonzero(label >= 0)
    if not share or not len(rows):
        return drawn
    label, time, id_hash = label[rows], time[rows], id_hash[rows]
    known = time[~np.isnan(time)]
    edges = cut_edges(known, *suggest_cut(known)) if len(known) else np.zeros(0)
    period = np.where(np.isnan(time), DATES_AT_MOST, np.searchsorted(edges, time, side="right"))
    cell = label.astype(np.int64) * (DATES_AT_MOST + 1) + period
    # The smallest of these midpoints first: seats go to times, and then to classes, in proportion to their images.
    midpoint = (rank_in_group(cell, np.argsort(id_hash, kind="stable")) + 0.5) / np.bincount(cell)[cell]
    rank, size = rank_in_group(label, np.lexsort((id_hash, midpoint))), np.bincount(label)[label]
    order = np.lexsort((id_hash, (rank + 0.5) / size))[: int(np.ceil(round(share * len(rows), 6)))]
    drawn[rows[order[rank[order] < size[order] - 1]]] = True  # the last image of a class is left for training
    return drawn


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
