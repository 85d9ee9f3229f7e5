"""Parquet files as the `datasets` library writes them: encoded images in a column, class names in the metadata."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.holdout import check_share, holdout
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.hub import METADATA, class_names, is_data, is_image, named, split_of
from dietcl.streams.sources.tabular import Batch, columns_of, has_values, open_parquet, parquet_batches, parquet_schema

ROLES = ("image", "label", "time")
_AT_ONCE = 64  # images that are in memory together
_LOOKED_AT = 1000


@dataclass(frozen=True, kw_only=True)
class HuggingFace:
    """Parquet files of the Hugging Face Hub, as data/train-00000-of-00004.parquet; the images are copied."""

    name: ClassVar[str] = "huggingface"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 20
    label_rate: ClassVar[float] = 0.01
    mirror: ClassVar[bool] = True

    image: str = "image"
    """Column of the images, encoded."""
    label: str = "label"
    """Column of the classes, as names or as numbers that the metadata names."""
    time: str = "time"
    """Column of the times: numbers or dates."""
    test_share: float = 0.1
    """Share of the images that is kept for tests where no file is for them; which ones depends on file and row."""

    def __post_init__(self) -> None:
        check_share(self.test_share)

    @staticmethod
    def fits(place: Place, name: str) -> bool:
        """Take Parquet files with a column of images or the metadata of `datasets`, and folders that begin with one."""
        files = [name] if name else list(islice(place.files(), _LOOKED_AT))
        first = next((file for file in files if is_data(file)), None)
        schema = parquet_schema(place, first) if first else None
        if schema is None:
            return False
        return METADATA in (schema.metadata or {}) or ("image" in schema.names and is_image(schema.field("image")))

    def read(self, name: str, rows: Preparation) -> None:
        """Hand over every row that has an image, file by file."""
        # Links are followed: the Hub's cache is made of them, and only tables are read.
        files = {}
        for file in [name] if name else filter(is_data, rows.place.files()):
            try:
                with open_parquet(rows.place, file) as opened:
                    files[file] = opened.schema_arrow
                    rows.total = (rows.total or 0) + opened.metadata.num_rows
            except UserError as error:
                rows.problem(file, None, f"the file cannot be read ({error})")
        splits = {file: split_of(file) for file in files}
        columns = {file: self._columns(rows.place.path(file), schema) for file, schema in files.items()}
        if any(_has_times(rows.place, file, found["time"]) for file, found in columns.items() if "time" in found):
            rows.suggest(recipe="time", time_steps=self.time_steps)
        for file, schema in files.items():
            if splits[file] is None and any(splits.values()):
                rows.problem(file, None, "neither train nor test by its name")
                continue
            split = splits[file] if "test" in splits.values() else None
            self._read_file(file, columns[file], class_names(schema, self.label), split, rows)

    def _columns(self, path: str, schema: pa.Schema) -> dict[str, str]:
        columns = columns_of(self, ROLES, schema.names, path)
        field = schema.field(columns["image"])
        if not is_image(field):
            raise UserError(
                f"{path}: column {field.name!r} holds {field.type}; --image needs a column of encoded images"
            )
        return columns

    def _read_file(
        self, file: str, columns: dict[str, str], classes: list[str], split: str | None, rows: Preparation
    ) -> None:
        names = list(dict.fromkeys(columns.values()))
        for number, batch in _until_broken(parquet_batches(rows.place, file, names, _AT_ONCE), file, rows):
            found = {role: batch[names.index(column)] for role, column in columns.items()}
            kind = found["label"].type if classes and "label" in found else pa.null()
            if pa.types.is_integer(kind) or pa.types.is_floating(kind):
                known, found["label"] = named(found["label"], classes)
                for i in np.flatnonzero(~known).tolist():
                    label = batch[columns["label"]][i].as_py()
                    rows.problem(file, int(number[i]), f"the label has no name in the metadata ({label})")
                number, found = number[known], {role: column.filter(pa.array(known)) for role, column in found.items()}
            images = found["image"]
            if pa.types.is_struct(images.type):
                images = pc.struct_field(images, "bytes")
            ids = [f"{file}#{row}" for row in number]
            if ids:
                rows.encoded(
                    [data or None for data in images.to_pylist()],
                    label=found.get("label"),
                    time=found.get("time"),
                    split=split or holdout(ids, self.test_share),
                    id=ids,
                    row=number.tolist(),
                    listed_in=file,
                )


def _has_times(place: Place, file: str, column: str) -> bool:
    try:
        return any(has_values(batch[0]) for _, batch in parquet_batches(place, file, [column]))
    except UserError:
        return False  # the quarantine will say so


def _until_broken(batches: Iterator[Batch], file: str, rows: Preparation) -> Iterator[Batch]:
    try:
        yield from batches
    except UserError as error:
        rows.problem(file, None, f"the file cannot be read to its end ({error})")
