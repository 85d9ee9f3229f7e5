"""Parquet files as the `datasets` library writes them: encoded images in a column, class names in the metadata."""

import json
import re
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.errors import UserError
from dietcl.streams.column_coercion import whole_numbers
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.parsing.table_rows import columns_of, open_parquet, parquet_batches, parquet_schema
from dietcl.streams.sources.reader import GeneralReader
from dietcl.streams.sources.readers.folder import SPLITS

_METADATA = b"huggingface"
ROLES = ("image", "label", "time")
_AT_ONCE = 64  # images that are in memory together
_LOOKED_AT = 1000


@dataclass(frozen=True, kw_only=True)
class HuggingFace(GeneralReader):
    """Parquet files of the Hugging Face Hub, as data/train-00000-of-00004.parquet; the images are copied."""

    name = "huggingface"

    image: str = "image"
    """Column of the images, encoded."""
    label: str = "label"
    """Column of the classes, as names or as numbers that the metadata names."""
    time: str = "time"
    """Column of the times: numbers or dates."""

    @staticmethod
    def fits(file_root: FileRoot, name: str) -> bool:
        """Accept Parquet files with a column of images or metadata of `datasets`, and folders that begin with one."""
        files = [name] if name else list(islice(file_root.files(), _LOOKED_AT))
        first = next((file for file in files if _is_data(file)), None)
        schema = parquet_schema(file_root, first) if first else None
        if schema is None:
            return False
        return _METADATA in (schema.metadata or {}) or ("image" in schema.names and _is_image(schema.field("image")))

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Add every row that has an image, file by file."""
        # Links are followed: the Hub's cache is made of them, and only tables are read.
        files = {}
        for file in [name] if name else filter(_is_data, rows.file_root.files()):
            try:
                with open_parquet(rows.file_root, file) as opened:
                    files[file] = opened.schema_arrow
                    rows.total = (rows.total or 0) + opened.metadata.num_rows
            except UserError as error:
                rows.problem(file, None, f"the file cannot be read ({error})")
        splits = {file: _split_of(file) for file in files}
        columns = {file: self._columns(rows.file_root.path(file), schema) for file, schema in files.items()}
        if "test" not in splits.values():
            rows.draw_tests(self.test_share)
        for file, schema in files.items():
            if splits[file] is None and any(splits.values()):
                rows.problem(file, None, "neither train nor test by its name")
                continue
            classes = _class_names(schema, self.label)
            try:
                _read_file(file, columns[file], classes, splits[file] or "train", rows)
            except UserError as error:
                rows.problem(file, None, f"the file cannot be read to its end ({error})")

    def _columns(self, path: str, schema: pa.Schema) -> dict[str, str]:
        columns = columns_of(self, ROLES, schema.names, path)
        field = schema.field(columns["image"])
        if not _is_image(field):
            raise UserError(f"{path}: column {field.name!r} holds {field.type}; --image needs encoded images")
        return columns


def _read_file(file: str, columns: dict[str, str], classes: list[str], split: str, rows: ManifestBuilder) -> None:
    for number, batch in parquet_batches(rows.file_root, file, sorted(set(columns.values())), _AT_ONCE):
        found = {role: batch[column] for role, column in columns.items()}
        kind = found["label"].type if classes and "label" in found else pa.null()
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            known, found["label"] = _named(found["label"], classes)
            for i in np.flatnonzero(~known).tolist():
                code = batch[columns["label"]][i].as_py()
                rows.problem(file, int(number[i]), f"the label has no name in the metadata ({code})")
            number, found = number[known], {role: column.filter(pa.array(known)) for role, column in found.items()}
        images = found["image"]
        if pa.types.is_struct(images.type):
            images = pc.struct_field(images, "bytes")
        data = [image or None for image in images.to_pylist()]
        label, time, row = found.get("label"), found.get("time"), number.tolist()
        rows.encoded(data, label=label, time=time, split=split, row=row, listed_in=file)


def _named(numbers: pa.Array, classes: list[str]) -> tuple[npt.NDArray[np.bool_], pa.Array]:
    """Return which numbers are known, and the names of all; -1 is how `datasets` spells a missing label."""
    odd = np.zeros(len(numbers), np.bool_)
    if pa.types.is_floating(numbers.type):
        numbers, odd = whole_numbers(numbers)
    codes = pc.fill_null(numbers.cast(pa.int64(), safe=False), -1).to_numpy(zero_copy_only=False)
    known = (codes >= -1) & (codes < len(classes)) & ~odd
    return known, pa.array(np.array([*classes, None], object)[np.where(known, codes, -1)], pa.string())


def _is_data(file: str) -> bool:
    """Tell whether a file may hold images; a manifest, or a hidden file of a tool, does not."""
    parts = file.split("/")
    is_hidden = any(part.startswith(".") for part in parts)
    return file.lower().endswith(".parquet") and not is_hidden and not parts[-1].startswith("manifest.")


def _is_image(field: pa.Field) -> bool:
    """Tell whether a column holds encoded images, by themselves or beside their paths."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = kind.field("bytes").type if kind.get_field_index("bytes") >= 0 else pa.null()
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _split_of(file: str) -> str | None:
    """Return the split that a file's name begins with, or else that of a folder on the way to it."""
    *folders, name = file.lower().split("/")
    words = [re.split(r"[^a-z]", name)[0], *reversed(folders)]
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def _class_names(schema: pa.Schema, label: str) -> list[str]:
    """Return the names of a column's numbers, or none if the metadata has none that are of use."""
    try:
        found = json.loads((schema.metadata or {})[_METADATA])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(name, str) and name for name in found) else []
