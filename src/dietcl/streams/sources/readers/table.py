"""A table of images: a CSV, TSV or Parquet file that lists paths, classes, times and splits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.holdout import check_share, holdout
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.shards import is_hostile
from dietcl.streams.sources.parsing.table_rows import csv_batches, csv_header
from dietcl.streams.sources.readers.folder import SPLITS
from dietcl.streams.sources.tabular import (
    Batch,
    Problem,
    columns_of,
    has_values,
    open_parquet,
    parquet_batches,
    parquet_schema,
)

ROLES = ("path", "label", "time", "split", "id")


@dataclass(frozen=True, kw_only=True)
class Table:
    """CSV, TSV or Parquet with a column of paths; the quarantine counts a CSV's header as row 1, Parquet from 0."""

    name: ClassVar[str] = "table"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    path: str = "path"
    """Column of the images' paths."""
    label: str = "label"
    """Column of the classes; an empty one is unknown."""
    time: str = "time"
    """Column of the times: numbers or dates."""
    split: str = "split"
    """Column that says train or test (or val, valid, validation)."""
    id: str = "id"
    """Column of unique names; without one, images go by their paths."""
    root: str = ""
    """Folder that the paths start from, below the table's own."""
    test_share: float = 0.1
    """Share of the images that is kept for tests where there is no column of splits; which ones depends on paths."""

    def __post_init__(self) -> None:
        check_share(self.test_share)
        if is_hostile(self.root) or "://" in self.root:
            raise UserError(f"--root {self.root}: leads outside the table's folder; move the table above the images")

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take CSV and TSV files, and Parquet files with a column `path`."""
        if _is_parquet(name):
            schema = parquet_schema(place, name)
            return schema is not None and "path" in schema.names
        return name.lower().endswith((".csv", ".tsv"))

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every row that has a path."""
        place, path = rows.place, rows.place.path(name)
        if not name:
            raise UserError(f"{place.root}: is a folder; give the path of the table itself")
        if _is_parquet(name):
            with open_parquet(place, name) as file:
                rows.total, schema = file.metadata.num_rows, file.schema_arrow
            columns = columns_of(self, ROLES, schema.names, path)
            for role in {"path", "split", "id"} & set(columns):
                _refuse_type(schema.field(columns[role]), role, path)
        else:
            columns = columns_of(self, ROLES, csv_header(place, name)[1], path)
        names = list(dict.fromkeys(columns.values()))  # one column may play two roles
        for number, batch in _batches(place, name, names, lambda row, sentence: rows.problem(name, row, sentence)):
            found = {role: batch[names.index(column)] for role, column in columns.items()}
            self._hand_over(name, number, found, rows)

    def _hand_over(
        self, name: str, number: npt.NDArray[np.int64], found: dict[str, pa.Array], rows: Preparation
    ) -> None:
        for role in {"path", "split", "id"} & set(found):
            found[role] = pc.fill_null(found[role].cast(pa.string()), "")
        faults = {int(i): "the row has no path" for i in np.flatnonzero(pc.equal(found["path"], ""))}
        splits = [SPLITS.get(text.strip().lower()) for text in found["split"].to_pylist()] if "split" in found else []
        for i in (i for i, split in enumerate(splits) if split is None):
            faults.setdefault(i, f"the split is neither train nor test ({found['split'][i].as_py()[:40]!r})")
        for i, fault in sorted(faults.items()):
            rows.problem(name, int(number[i]), fault)
        good = np.delete(np.arange(len(number)), list(faults))
        if not len(good):
            return
        found = {role: column.take(pa.array(good)) for role, column in found.items()}
        if "time" in found and has_values(found["time"]):
            rows.suggest(recipe="time", time_steps=self.time_steps)
        file = pc.replace_substring_regex(found["path"], r"^(\./+)+", "")  # far stores do not know what `.` is
        if root := self.root.strip("/"):
            file = pc.binary_join_element_wise(root, file, "/")
        rows.refer(
            file,
            label=found.get("label"),
            time=found.get("time"),
            split=[splits[i] for i in good] if splits else holdout(file, self.test_share),
            id=pc.if_else(pc.equal(found["id"], ""), file, found["id"]) if "id" in found else None,
            row=number[good].tolist(),
            listed_in=name,
        )


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def _batches(place: Place, name: str, columns: list[str], problem: Problem) -> Iterator[Batch]:
    return parquet_batches(place, name, columns) if _is_parquet(name) else csv_batches(place, name, columns, problem)


def _refuse_type(field: pa.Field, role: str, path: str) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if "string" not in str(kind) and not (role == "id" and pa.types.is_integer(kind)):
        raise UserError(f"{path}: column {field.name!r} holds {field.type}; a column for --{role} must hold strings")
