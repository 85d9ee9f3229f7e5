"""Preparation: rows from a source in, a manifest and a table of everything that was left out of it out."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.errors import UserError
from dietcl.files import IMAGES, MANIFEST, make_folder, scratch
from dietcl.process_pool import cores
from dietcl.streams.column_coercion import Faults, Values, default_ids, labels, numbers, texts, times
from dietcl.streams.cuts import workable
from dietcl.streams.filesystem import Place
from dietcl.streams.image_writer import Copies
from dietcl.streams.manifest import BATCH, Facts, Writer, batches, outside
from dietcl.streams.quarantine import QUARANTINE, Quarantine
from dietcl.streams.text import fingerprints
from dietcl.streams.verifier import Verifier

Verify = Literal["decode", "none"]
Progress = Callable[[int, int | None], None]  # images done, images in all if that is known
NOT_AN_IMAGE = "not an image by its name"


class Preparation:
    """What a source hands its rows to; bad ones go to the quarantine and the others into the manifest.

    A source calls `refer` for images that stay where they are, or `pixels` or `encoded` for images that it had to
    take out of something; never both kinds.
    """

    def __init__(
        self,
        place: Place,
        out: Path,
        facts: Facts,
        verify: Verify = "decode",
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.place, self.out, self.verify = place, make_folder(out), verify
        self.total: int | None = None  # a source that knows how many images there are may say so
        self.kept = 0
        self._facts, self._progress = facts, progress
        self._seen = 0
        self._work = ExitStack()
        self._folder = self._work.enter_context(scratch(self.out))
        self._quarantine = Quarantine(self._folder / QUARANTINE)
        self._labels: Counter[str | None] = Counter()  # of training images
        self._is_published = False
        self._prints: list[npt.NDArray[np.uint64]] = []
        self._origins: list[tuple[str | None, npt.NDArray[np.uint32] | None]] = []  # table and rows, beside the prints
        self._pool = ThreadPoolExecutor(cores())
        self._verifier = Verifier(place, self._pool)
        self._copies: Copies | None = None

    def suggest(self, *, recipe: str, time_steps: int, cut: str = "count") -> None:
        """Say how the stream is best cut; the last word before the end counts."""
        self._facts = replace(self._facts, recipe=recipe, time_steps=time_steps, cut=cut)

    def keep_cut(self) -> None:
        """Say that the stream is cut as it was published, even where few images would make that a poor cut."""
        self._is_published = True

    @property
    def problems(self) -> Counter[str]:
        """How many problems there are of each kind."""
        return self._quarantine.kinds

    def problem(self, file: str, row: int | None, sentence: str) -> None:
        """Put one thing into the quarantine, with its file and its row there if it has one."""
        self._quarantine.add(file, row, sentence)

    def refer(
        self,
        file: Values,
        *,
        label: Values = None,
        time: Values = None,
        split: Values = "train",
        id: Values = None,
        offset: Values = None,
        length: Values = None,
        row: Sequence[int] | None = None,
        listed_in: str | None = None,
    ) -> None:
        """Add images that stay where they are, by their paths inside the place.

        `offset` and `length` are first bytes and numbers of bytes of images inside files; `listed_in` and `row` name
        the table and the rows that said so, for the quarantine.
        """
        columns = {"file": file, "label": label, "time": time, "split": split}
        columns |= {"id": id, "offset": offset, "length": length}
        count = next(len(values) for values in columns.values() if not isinstance(values, str | None))
        for start in range(0, count, BATCH):
            part = slice(start, min(start + BATCH, count))
            cut = {name: v if isinstance(v, str | None) else v[part] for name, v in columns.items()}
            self._add(cut, part.stop - start, None if row is None else row[part], listed_in)

    def pixels(
        self,
        images: npt.NDArray[np.uint8],
        *,
        label: Values = None,
        time: Values = None,
        split: Values = "train",
        row: Sequence[int] | None = None,
        listed_in: str,
    ) -> None:
        """Add square uint8 images [n, side, side] or [n, side, side, 3], which are copied into one array."""
        self._copies = self._copies or Copies(self._folder)
        try:
            offset = self._copies.pixels(images)
        except ValueError as error:
            raise UserError(f"{self.place.path(listed_in)}: {error}") from None
        columns: dict[str, Values] = {"file": IMAGES, "label": label, "time": time, "split": split, "id": offset}
        self._add(
            columns | {"offset": offset, "length": None},
            len(images),
            offset.tolist() if row is None else row,
            listed_in,
        )

    def encoded(
        self,
        images: Sequence[bytes | None],
        *,
        label: Values = None,
        time: Values = None,
        split: Values = "train",
        id: Values = None,
        row: Sequence[int] | None = None,
        listed_in: str,
    ) -> None:
        """Add images that are bytes of some format (None: missing), which are copied into shards."""
        if not images:
            return
        self._copies = self._copies or Copies(self._folder)
        first = self._copies.count
        row = range(first, first + len(images)) if row is None else row
        faults = self._verifier.of_bytes(images) if self.verify == "decode" else [_missing(data) for data in images]
        pairs = zip(images, faults, strict=True)
        placed = [("", -1, 1) if fault else self._copies.encoded(data or b"") for data, fault in pairs]
        columns: dict[str, Values] = {"label": label, "time": time, "split": split}
        columns |= dict(zip(("file", "offset", "length"), map(list, zip(*placed, strict=True)), strict=True))
        columns["id"] = [f"{listed_in}#{number}" for number in row] if id is None else id
        known = {i: fault for i, fault in enumerate(faults) if fault}
        self._add(columns, len(images), row, listed_in, known)

    def close(self) -> Path:
        """Put everything in its place and return the manifest's path; the manifest comes last."""
        self._pool.shutdown()
        if self._copies is not None:
            self._copies.close()
        if self.kept:
            facts = replace(self._facts, root=self._root())
            self._writer.facts = facts if self._is_published else workable(facts, self._labels)
            self._writer.__exit__(None)
            self._drop_repeated()
        self._quarantine.close()
        names = [path.name for path in self._folder.iterdir()] if self.kept else []
        if set(self.problems) - {NOT_AN_IMAGE}:
            names = names or [QUARANTINE]
        for name in sorted(names, key=lambda name: name == MANIFEST):
            if name != QUARANTINE and (self.out / name).exists():
                raise UserError(f"{self.out / name}: is there already and is not overwritten; choose another --out")
            (self._folder / name).replace(self.out / name)
        self._work.close()
        if not self.kept:
            if set(self.problems) - {NOT_AN_IMAGE}:
                raise UserError(f"{self.out / QUARANTINE}: every image has a problem, listed there; mend them first")
            raise UserError(f"{self.place.root}: no images were found; is the path right, and the --kind?")
        return self.out / MANIFEST

    def abandon(self) -> None:
        """Leave no trace."""
        self._pool.shutdown(cancel_futures=True)
        self._quarantine.close()
        self._work.close()

    def _relative(self, file: pa.Array) -> pa.Array:
        """Cut the place itself off paths that lead into it from the root, as many tables have them."""
        inside = f"{self.place.root}/"
        if self._copies is not None or not self.place.is_local or not pc.any(pc.starts_with(file, inside)).as_py():
            return file
        rest = pc.utf8_slice_codeunits(file, len(inside))
        return pc.if_else(pc.starts_with(file, inside), rest, file)

    @cached_property
    def _writer(self) -> Writer:
        return Writer(self._folder / MANIFEST)

    def _root(self) -> str:
        """Return where the files lie as the manifest will say it: relative if both move together."""
        if self._copies is not None:
            return "."
        if not self.place.is_local:
            return self.place.root
        root, out = Path(self.place.root).resolve(), self.out.resolve()
        return str(root.relative_to(out)) if root.is_relative_to(out) else str(root)

    def _add(
        self,
        columns: dict[str, Values],
        count: int,
        row: Sequence[int] | None,
        listed_in: str | None,
        faults: Faults | None = None,
    ) -> None:
        file, offset = self._relative(texts(columns["file"], count)), numbers(columns["offset"], count, -1)
        label, bad_labels = labels(columns["label"], count)
        time, bad_times = times(columns["time"], count)
        length = numbers(columns["length"], count, None)
        faults = {**bad_labels, **bad_times, **(faults or {})}
        for fault, where in (
            ("the path leads outside the folder", outside(file)),
            ("the image is empty", pc.fill_null(pc.less(length, 1), False)),
        ):
            faults |= dict.fromkeys(np.flatnonzero(where.to_numpy(zero_copy_only=False)).tolist(), fault)
        if self._copies is None and self.verify == "decode":
            done = self._seen
            faults |= self._verifier.of_rows(
                file, offset, length, faults, lambda n: self._progress(done + n, self.total)
            )
        for i, fault in sorted(faults.items()):
            name, number = file[i].as_py(), None if row is None else int(row[i])
            if listed_in is None or self._copies is not None:
                self.problem(listed_in or name, number, fault)
            else:
                self.problem(listed_in, number, f"{fault}: {name}")
        table = pa.table(
            {
                "id": default_ids(file, offset) if columns["id"] is None else texts(columns["id"], count),
                "file": file,
                "offset": offset,
                "label": label,
                "time": time,
                "split": texts(columns["split"], count),
                "length": length,
            }
        )
        good = np.ones(count, np.bool_)
        good[list(faults)] = False
        table = table.filter(pa.array(good))
        if len(table):
            self._prints.append(fingerprints(table["id"].combine_chunks()))
            self._origins.append((listed_in, None if row is None else np.asarray(row, np.uint32)[good]))
            self._writer.write(table)
            train = table["label"].filter(pc.equal(table["split"], "train"))
            for found in pc.value_counts(train).to_pylist():
                self._labels[found["values"]] += found["counts"]
        self.kept += len(table)
        self._seen += count
        self._progress(self._seen, self.total)

    def _drop_repeated(self) -> None:
        """Keep the first of the rows that share an id."""
        prints = np.concatenate(self._prints)
        prints.sort()
        double = np.unique(prints[1:][prints[1:] == prints[:-1]])
        if not len(double):
            return
        path = self._folder / MANIFEST
        first: dict[str, int] = {}
        starts = np.cumsum([0, *(len(part) for part in self._prints)])
        done = 0
        with pq.ParquetFile(path) as file, Writer(path, self._writer.facts) as writer:
            for table in batches(file, path):
                good = np.ones(len(table), np.bool_)
                for i in np.flatnonzero(np.isin(fingerprints(table["id"].combine_chunks()), double)).tolist():
                    name = table["id"][i].as_py()
                    if first.setdefault(name, done + i) != done + i:
                        good[i] = False
                        part = int(np.searchsorted(starts, done + i, side="right")) - 1
                        listed_in, rows = self._origins[part]
                        row = None if rows is None else int(rows[done + i - starts[part]])
                        self.problem(listed_in or table["file"][i].as_py(), row, f"the id is there twice: {name}")
                done += len(table)
                self.kept -= int((~good).sum())
                writer.write(table.filter(pa.array(good)))


def _missing(data: bytes | None) -> str | None:
    """Say what is wrong with an image that is not looked at."""
    return None if data else "there is no image"
