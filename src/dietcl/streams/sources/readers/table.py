"""A table of images: a CSV, TSV or Parquet file that lists paths, classes, times and splits."""

import os
import posixpath
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.errors import UserError
from dietcl.streams.column_coercion import NO_TIME, check_time_format, parse_times
from dietcl.streams.filesystem import FileRoot, is_remote
from dietcl.streams.manifest import outside
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing import table_rows
from dietcl.streams.sources.parsing.path_lists import find_images
from dietcl.streams.sources.reader import GeneralReader
from dietcl.streams.sources.readers.folder import SPLITS

_ROLES = ("path", "label", "time", "split", "id")
_TEXTS = {"path", "split", "id"}


@dataclass(frozen=True, kw_only=True)
class Table(GeneralReader):
    """CSV, TSV or Parquet with a column of paths; quarantine rows: a CSV's header is 1, Parquet starts at 0."""

    name = "table"

    path: str = "path"
    """Column of the images' paths, relative to --root."""
    label: str = "label"
    """Column of the classes; empty: unknown."""
    time: str = "time"
    """Column of the times: numbers, ISO dates, or in the format of --time-format."""
    split: str = "split"
    """Column of train or test (or val, valid, validation)."""
    id: str = "id"
    """Column of unique names (the paths by default)."""
    root: str = ""
    """Folder or URL that relative paths start from (the table's folder by default)."""
    allow_absolute: bool = False
    """Accept paths to anywhere on this machine: absolute ones, and those with '..'."""
    time_format: str = ""
    """Format of the times for Python's strptime, as '%d.%m.%Y %H:%M' (by default: numbers or ISO dates)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_time_format(self.time_format)

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept CSV and TSV files, and Parquet files with a column `path`."""
        if _is_parquet(name):
            schema = table_rows.parquet_schema(file_root, name)
            return schema is not None and "path" in schema.names
        return name.lower().endswith((".csv", ".tsv"))

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every row that has a path."""
        file_root, path = rows.file_root, rows.file_root.path(name)
        if not name:
            raise UserError(f"{file_root.root}: is a folder; give the path of the table")
        if _is_parquet(name):
            with table_rows.open_parquet(file_root, name) as file:
                rows.total, schema = file.metadata.num_rows, file.schema_arrow
            columns = table_rows.columns_of(self, _ROLES, schema.names, path)
            for role in _TEXTS & set(columns):
                _refuse_type(schema.field(columns[role]), role, path)
            batches = partial(table_rows.parquet_batches, file_root, name)
        else:
            columns = table_rows.columns_of(self, _ROLES, table_rows.csv_header(file_root, name)[1], path)
            batches = partial(table_rows.csv_batches, file_root, name, problem=partial(rows.problem, name))
        if "split" not in columns:
            rows.draw_tests(self.test_share)
        images = self._image_root(file_root)
        rows.file_root = FileRoot("/") if self.allow_absolute else images
        for number, batch in batches(sorted(set(columns.values()))):  # one column may have two roles
            self._add(name, number, {role: batch[column] for role, column in columns.items()}, images.root, rows)
        if not rows.kept and NO_TIME in rows.problems:
            raise UserError(f"{path}: {NO_TIME} in any row; give their format as --time-format")

    def _image_root(self, file_root: FileRoot) -> FileRoot:
        """Return the folder that relative paths start from."""
        found: FileRoot | None = FileRoot.of(self.root) if is_remote(self.root) else file_root
        if self.root and not is_remote(self.root):
            folders = [os.path.join(file_root.root, self.root), *([self.root] if file_root.is_local else [])]
            found = next(filter(FileRoot.is_folder, map(FileRoot.of, folders)), None)
        if found is None:
            raise UserError(f"--root {self.root}: no such folder in {file_root.root}, nor in the current folder")
        if self.allow_absolute and not found.is_local:
            raise UserError(f"--allow-absolute: not with images at {found.root}; give paths relative to it")
        return found

    def _add(
        self, name: str, number: table_rows.Numbers, found: dict[str, pa.Array], root: str, rows: ManifestBuilder
    ) -> None:
        for role in _TEXTS & set(found):
            found[role] = pc.fill_null(found[role].cast(pa.string()), "")
        faults = {int(i): "the row has no path" for i in np.flatnonzero(pc.equal(found["path"], ""))}
        splits = [SPLITS.get(text.strip().lower()) for text in found["split"].to_pylist()] if "split" in found else []
        for i in (i for i, split in enumerate(splits) if split is None):
            faults.setdefault(i, f"the split is neither train nor test ({found['split'][i].as_py()[:40]!r})")
        if "time" in found and self.time_format:
            found["time"], bad_times = parse_times(found["time"], self.time_format)
            faults = bad_times | faults
        for i, fault in sorted(faults.items()):
            rows.problem(name, int(number[i]), fault)
        good = np.delete(np.arange(len(number)), list(faults))
        if not len(good):
            return
        found = {role: column.take(pa.array(good)) for role, column in found.items()}
        file = pc.replace_substring_regex(found["path"], r"^(\./+)+", "")  # remote stores do not resolve `.`
        if self.allow_absolute:
            file = pa.array([posixpath.normpath(posixpath.join(root, path))[1:] for path in file.to_pylist()])
        if rows.verify == "decode" and not rows.kept:
            self._require_images(file, rows)
        label, time, row = found.get("label"), found.get("time"), number[good].tolist()
        split = [splits[i] for i in good] if splits else "train"
        ids = pc.if_else(pc.equal(found["id"], ""), file, found["id"]) if "id" in found else None
        rows.refer(file, label=label, time=time, split=split, id=ids, row=row, listed_in=name)

    def _require_images(self, file: pa.Array, rows: ManifestBuilder) -> None:
        """Refuse a table if none of its images exists: most likely its paths start from another folder."""
        file = rows.relative(file)
        if pc.all(outside(file)).as_py():
            advice = "give the folder of the images as --root, or accept paths to anywhere with --allow-absolute"
            raise UserError(f"{file[0].as_py()}: leads outside {rows.file_root.root}; {advice}")
        start = f"--root {self.root}" if self.root else "the table's folder; give another as --root"
        paths = file.filter(pc.invert(outside(file))).to_pylist()
        find_images(rows.file_root, [""], paths, f"paths are relative to {start}")


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def _refuse_type(field: pa.Field, role: str, path: str) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if "string" not in str(kind) and not (role == "id" and pa.types.is_integer(kind)):
        raise UserError(f"{path}: column {field.name!r} holds {field.type}; a column for --{role} must hold strings")
