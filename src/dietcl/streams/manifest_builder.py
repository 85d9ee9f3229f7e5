"""ManifestBuilder: takes rows from a source, and writes a manifest and a table of everything that was left out."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.errors import UserError
from dietcl.files import IMAGES, MANIFEST, make_folder, scratch
from dietcl.launch import cores
from dietcl.streams.column_coercion import Faults, Values, default_ids, labels, numbers, texts, times
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.image_writer import ImageWriter
from dietcl.streams.manifest import BATCH, SCHEMA, Facts, Writer, outside
from dietcl.streams.quarantine import QUARANTINE, Quarantine
from dietcl.streams.row_log import RowLog
from dietcl.streams.verify import NO_IMAGE, fault_of, faults_of_rows

Verify = Literal["decode", "none"]
Progress = Callable[[int, int | None], None]  # images done, images in all if that is known
RowNumbers = Sequence[int] | None  # of the rows in the table that lists them
NOT_AN_IMAGE = "not an image by its name"


class Columns(TypedDict, total=False):
    """What is known of some images: one value for all of them, or one for each."""

    label: Values
    time: Values
    split: Values  # train by default
    id: Values
    offset: Values  # first byte of an image inside its file
    length: Values  # number of its bytes


class ManifestBuilder:
    """Takes the rows of a source, all by `refer` or all by `pixels` and `encoded`; bad ones go to the quarantine."""

    def __init__(
        self,
        file_root: FileRoot,
        out: Path,
        facts: Facts,
        verify: Verify = "decode",
        progress: Progress = lambda *_: None,
    ) -> None:
        self.file_root = file_root  # replaced by a source whose images are not in the folder of its own files
        self.out, self.verify = make_folder(out), verify
        self.total: int | None = None  # number of images, set by a source that knows it
        self.kept = 0
        self._facts, self._progress = facts, progress
        self._seen = 0
        self._work = ExitStack()
        self._folder = self._work.enter_context(scratch(self.out))
        self._quarantine = Quarantine(self._folder / QUARANTINE)
        self.problem, self.problems = self._quarantine.add, self._quarantine.kinds  # reports one; counts by kind
        self._log = RowLog()
        self._pool = ThreadPoolExecutor(cores())
        self._copies: ImageWriter | None = None

    def suggest(self, *, recipe: str, time_steps: int, cut: str = "count") -> None:
        """Set how the stream is cut by default, whatever the times are; the last call counts."""
        self._log.is_suggested = True
        self._facts = replace(self._facts, recipe=recipe, time_steps=time_steps, cut=cut)

    def keep_cut(self) -> None:
        """Cut the stream as it was published, even where that is a poor cut of few images."""
        self._log.is_published = True

    def draw_tests(self, share: float) -> None:
        """Draw this share of the labeled images as test images, as the source names none."""
        self._log.test_share = share

    def refer(
        self, file: Values, *, row: RowNumbers = None, listed_in: str | None = None, **known: Unpack[Columns]
    ) -> None:
        """Add images below the root, which stay there; `listed_in` and `row` say where they are listed."""
        columns: dict[str, Values] = {"file": file, **known}
        count = next(len(values) for values in columns.values() if not isinstance(values, str | None))
        for start in range(0, count, BATCH):
            part = slice(start, min(start + BATCH, count))
            cut = {name: v if isinstance(v, str | None) else v[part] for name, v in columns.items()}
            self._add(cut, part.stop - start, None if row is None else row[part], listed_in, {})

    def pixels(self, images: npt.NDArray[np.uint8], *, listed_in: str, **known: Unpack[Columns]) -> None:
        """Add square uint8 images [n, side, side] or [n, side, side, 3], which are copied into one array."""
        self._copies = self._copies or ImageWriter(self._folder)
        try:
            offset = self._copies.pixels(images)
        except ValueError as error:
            raise UserError(f"{self.file_root.path(listed_in)}: {error}") from None
        columns = {**known, "file": IMAGES, "id": offset, "offset": offset}
        self._add(columns, len(images), offset.tolist(), listed_in, {})

    def encoded(
        self, images: Sequence[bytes | None], *, row: RowNumbers = None, listed_in: str, **known: Unpack[Columns]
    ) -> None:
        """Add images that are bytes of some format (None: missing), which are copied into shards."""
        if not images:
            return
        self._copies = self._copies or ImageWriter(self._folder)
        first = self._copies.count
        row = range(first, first + len(images)) if row is None else row
        if self.verify == "decode":
            faults = list(self._pool.map(fault_of, images))
        else:
            faults = [None if data else NO_IMAGE for data in images]
        pairs = zip(images, faults, strict=True)
        written = [("", -1, 1) if fault else self._copies.encoded(data or b"") for data, fault in pairs]
        file, offset, length = map(list, zip(*written, strict=True))
        columns: dict[str, Values] = {**known, "file": file, "offset": offset, "length": length}
        if columns.get("id") is None:
            columns["id"] = [f"{listed_in}#{number}" for number in row]
        self._add(columns, len(images), row, listed_in, {i: fault for i, fault in enumerate(faults) if fault})

    def close(self) -> Path:
        """Move all files to where they belong, the manifest last, and return its path."""
        self._pool.shutdown()
        if self._copies is not None:
            self._copies.close()
        if self.kept:
            drawn = self._log.draw_tests()
            facts = self._log.fit(replace(self._facts, root=self._root()), drawn)
            self._writer.facts = facts
            self._writer.__exit__(None)
            self.kept -= self._log.rewrite(self._folder / MANIFEST, facts, drawn, self.problem)
        self._quarantine.close()
        has_problems = bool(set(self.problems) - {NOT_AN_IMAGE})
        names = [path.name for path in self._folder.iterdir()] if self.kept else [QUARANTINE] * has_problems
        for name in sorted(names, key=lambda name: name == MANIFEST):
            if name != QUARANTINE and (self.out / name).exists():
                raise UserError(f"{self.out / name}: exists already and is not overwritten; choose another --out")
            (self._folder / name).replace(self.out / name)
        self._work.close()
        if not self.kept:
            if has_problems:
                raise UserError(f"{self.out / QUARANTINE}: every image has a problem, listed there; correct these")
            raise UserError(f"{self.file_root.root}: no images were found; check the path and --kind")
        return self.out / MANIFEST

    def abandon(self) -> None:
        """Remove everything that was written."""
        self._pool.shutdown(cancel_futures=True)
        self._quarantine.close()
        self._work.close()

    def relative(self, file: pa.Array) -> pa.Array:
        """Make absolute paths that lead into the root relative to it; many tables have them."""
        if self._copies is not None or not self.file_root.is_local:
            return file
        inside = f"{self.file_root.root}/"
        return pc.if_else(pc.starts_with(file, inside), pc.utf8_slice_codeunits(file, len(inside)), file)

    @cached_property
    def _writer(self) -> Writer:
        return Writer(self._folder / MANIFEST)

    def _root(self) -> str:
        """Return the root of the files for the manifest: relative to it if both move together."""
        if self._copies is not None:
            return "."
        if not self.file_root.is_local:
            return self.file_root.root
        root, out = Path(self.file_root.root).resolve(), self.out.resolve()
        return str(root.relative_to(out)) if root.is_relative_to(out) else str(root)

    def _add(
        self, columns: dict[str, Values], count: int, row: RowNumbers, listed_in: str | None, faults: Faults
    ) -> None:
        file, offset = self.relative(texts(columns["file"], count)), numbers(columns.get("offset"), count, -1)
        label, bad_labels = labels(columns.get("label"), count)
        time, bad_times = times(columns.get("time"), count)
        split, length = texts(columns.get("split", "train"), count), numbers(columns.get("length"), count, None)
        ids = default_ids(file, offset) if columns.get("id") is None else texts(columns["id"], count)
        table = pa.table([ids, file, offset, label, time, split, length], SCHEMA.names)
        faults = bad_labels | bad_times | faults
        for fault, where in (
            ("the path leads outside the folder", outside(file)),
            ("the image is empty", pc.fill_null(pc.less(length, 1), False)),
        ):
            faults |= dict.fromkeys(np.flatnonzero(where.to_numpy(zero_copy_only=False)).tolist(), fault)
        if self._copies is None and self.verify == "decode":
            faults |= faults_of_rows(
                self.file_root, self._pool, table, faults, lambda done: self._progress(self._seen + done, self.total)
            )
        for i, fault in sorted(faults.items()):
            name, number = file[i].as_py(), None if row is None else int(row[i])
            sentence = fault if listed_in is None or self._copies is not None else f"{fault}: {name}"
            self.problem(listed_in or name, number, sentence)
        good = np.ones(count, np.bool_)
        good[list(faults)] = False
        table = table.filter(pa.array(good))
        if len(table):
            self._log.add(table, listed_in, None if row is None else np.asarray(row)[good])
            self._writer.write(table)
        self.kept += len(table)
        self._seen += count
        self._progress(self._seen, self.total)
