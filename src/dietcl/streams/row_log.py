"""RowLog: remembers the rows of a new manifest, to finish it without reading an image twice."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.streams.holdout import draw_tests
from dietcl.streams.manifest import SPLITS, Facts, Writer, batches, fingerprints, label_codes
from dietcl.streams.times import suggest_cut

Mask = npt.NDArray[np.bool_]
Problem = Callable[[str, int | None, str], None]  # file, row, sentence
TRAIN, TEST = SPLITS
_IMAGES_PER_STEP = 20  # at least, where time steps are cut at random
_RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class RowLog:
    """Remembers ids, labels, times and splits."""

    def __init__(self) -> None:
        self.is_published = False  # the facts stay as they are, and only ids are remembered
        self.is_suggested = False  # the source decided the recipe and the time steps
        self.test_share = 0.0  # of the labeled training images, to be drawn as test images
        self._hashes: list[npt.NDArray[np.uint64]] = []  # of ids, one array per added table, as all that follows
        self._origins: list[tuple[str | None, npt.NDArray[np.uint32] | None]] = []  # table and rows
        self._classes: dict[str, int] = {}
        self._labels: list[npt.NDArray[np.int32]] = []
        self._times: list[npt.NDArray[np.float64]] = []
        self._is_train: list[Mask] = []

    def add(self, table: pa.Table, listed_in: str | None, rows: npt.NDArray[np.integer] | None) -> None:
        """Remember rows of a manifest, and the table and the rows there that listed them."""
        self._hashes.append(fingerprints(table["id"].combine_chunks()))
        self._origins.append((listed_in, None if rows is None else np.asarray(rows, np.uint32)))
        if self.is_published:
            return
        self._labels.append(label_codes(table["label"].combine_chunks(), self._classes))
        self._times.append(pc.fill_null(table["time"], np.nan).to_numpy())
        self._is_train.append(pc.equal(table["split"], TRAIN).to_numpy())

    def draw_tests(self) -> Mask:
        """Return which rows become test images."""
        if not self.test_share:
            return np.zeros(sum(map(len, self._hashes)), np.bool_)
        label = np.concatenate(self._labels)
        label[~np.concatenate(self._is_train) | ~self._is_first()] = -1
        return draw_tests(label, np.concatenate(self._times), np.concatenate(self._hashes), self.test_share)

    def fit(self, facts: Facts, drawn: Mask) -> Facts:
        """Return facts to cut the training images: by time if most of them have one, with some labels revealed."""
        if self.is_published:
            return facts
        train = np.concatenate(self._is_train) & self._is_first() & ~drawn
        times = np.concatenate(self._times)[train]
        times = times[~np.isnan(times)]
        # Images without a time could not reveal their labels.
        if len(times) and 2 * len(times) >= train.sum() and not self.is_suggested:
            cut, time_steps = suggest_cut(times)
            facts = replace(facts, recipe="time", cut=cut, time_steps=time_steps)
        labels = np.concatenate(self._labels)[train]
        known = np.bincount(labels[labels >= 0])
        sizes = np.sort(known[known > 0]).tolist()
        is_sparse = bool((labels < 0).any())
        if facts.recipe == "class" and is_sparse and not self.is_suggested:
            facts = replace(facts, recipe="data")  # nothing tells with which classes the others come
        if facts.recipe == "class" and len(sizes) < facts.time_steps:
            facts = replace(facts, time_steps=len(sizes)) if len(sizes) > 1 else replace(facts, recipe="data")
        if facts.recipe == "data":
            facts = replace(facts, time_steps=max(1, min(facts.time_steps, int(train.sum()) // _IMAGES_PER_STEP)))
        if not sizes:
            return facts
        if is_sparse:  # by itself, so all known labels are revealed
            return replace(facts, label_rate=1.0)
        steps = 1 if facts.recipe == "class" else facts.time_steps
        if round(facts.label_rate * sizes[-1] / steps, 6) >= 0.5:
            return facts  # the largest class has a label, at least
        usual = sizes[len(sizes) // 2] / steps  # images of a class in a time step
        return replace(facts, label_rate=next((rate for rate in _RATES if rate * usual >= 1), 1.0))

    def rewrite(self, path: Path, facts: Facts, drawn: Mask, problem: Problem) -> int:
        """Mark the drawn test images of a manifest and drop rows that repeat an id; returns how many were dropped."""
        hashes = np.sort(np.concatenate(self._hashes))
        double = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if not len(double) and not drawn.any():
            return 0
        first: dict[str, int] = {}
        starts = np.cumsum([0, *map(len, self._hashes)])
        done = dropped = 0
        with pq.ParquetFile(path) as file, Writer(path, facts) as writer:
            for table in batches(file, path):
                good = np.ones(len(table), np.bool_)
                for i in np.flatnonzero(np.isin(fingerprints(table["id"].combine_chunks()), double)).tolist():
                    name = table["id"][i].as_py()
                    if first.setdefault(name, done + i) != done + i:
                        good[i] = False
                        part = int(np.searchsorted(starts, done + i, side="right")) - 1
                        listed_in, rows = self._origins[part]
                        row = None if rows is None else int(rows[done + i - starts[part]])
                        problem(listed_in or table["file"][i].as_py(), row, f"the id occurs twice: {name}")
                split = pc.if_else(pa.array(drawn[done : done + len(table)]), TEST, table["split"])
                table = table.set_column(table.schema.get_field_index("split"), "split", split)
                done += len(table)
                dropped += int((~good).sum())
                writer.write(table.filter(pa.array(good)))
        return dropped

    def _is_first(self) -> Mask:
        """Return for each row whether it is the first of its id, the one that is kept."""
        hashes = np.concatenate(self._hashes)
        first = np.zeros(len(hashes), np.bool_)
        first[np.unique(hashes, return_index=True)[1]] = True
        return first
