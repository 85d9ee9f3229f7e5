"""What Parquet files of the Hugging Face Hub say by their names, types and metadata."""

import json
import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dietcl.streams.sources.readers.folder import SPLITS
from dietcl.streams.whole import whole_numbers

METADATA = b"huggingface"


def named(numbers: pa.Array, classes: list[str]) -> tuple[npt.NDArray[np.bool_], pa.Array]:
    """Return which numbers are known, and the names of all; -1 is how `datasets` spells a missing label."""
    odd = np.zeros(len(numbers), np.bool_)
    if pa.types.is_floating(numbers.type):
        numbers, odd = whole_numbers(numbers)
    codes = pc.fill_null(numbers.cast(pa.int64(), safe=False), -1).to_numpy(zero_copy_only=False)
    known = (codes >= -1) & (codes < len(classes)) & ~odd
    names = [classes[code] if is_known and code >= 0 else None for code, is_known in zip(codes, known, strict=True)]
    return known, pa.array(names, pa.string())


def is_data(file: str) -> bool:
    """Tell whether a file may hold images; a manifest, or what a tool hides for itself, does not."""
    *folders, name = file.split("/")
    hidden = any(part.startswith(".") for part in (*folders, name))
    return name.lower().endswith(".parquet") and not hidden and not name.startswith("manifest.")


def is_image(field: pa.Field) -> bool:
    """Tell whether a column holds encoded images, by themselves or beside their paths."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = kind.field("bytes").type if kind.get_field_index("bytes") >= 0 else pa.null()
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def split_of(file: str) -> str | None:
    """Return the split that a file's name begins with, or else that of a folder on the way to it."""
    *folders, name = file.lower().split("/")
    words = [re.split(r"[^a-z]", name)[0], *reversed(folders)]
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def class_names(schema: pa.Schema, label: str) -> list[str]:
    """Return the names of a column's numbers, or none if the metadata has none that are of use."""
    try:
        found = json.loads((schema.metadata or {})[METADATA])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(name, str) and name for name in found) else []
