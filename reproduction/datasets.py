"""Setups: the streams that suites learn, each with its data, its cut, its size and its regime."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dietcl.config import PRESETS
from dietcl.errors import UserError
from dietcl.files import default_cache, digest, write_bytes
from dietcl.streams.holdout import holdout
from dietcl.streams.recipes import Recipe
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs
from dietcl.streams.sources.builtin.source_cache import prepare_pack
from dietcl.streams.sources.readers.npz import Arrays
from dietcl.streams.sources.readers.webp_zip import Strips

Progress = Callable[[int, int | None], None]
AT = "@"
"""Between the name of a setup and another size than its own."""
HELD_OUT_SHARE = 0.1
"""Share of the training images on which hyperparameters are judged, in the place of the test images."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A stream, how it is cut, and at which size and budget it is learned."""

    title: str
    recipe: Recipe
    preset: str = "nano"
    test_images: int | None = 2000
    """Size of the fixed sample of test images; None: all."""
    reader: Any = None
    """A built-in source, or what reads the pack; None if a manifest must be given."""
    pack: str = ""
    """Name of the file that holds the images; empty for a built-in source."""
    is_even: bool = False
    """Whether every time step reveals equally many labels."""
    is_binary: bool = False
    """Whether there are two classes only."""
    updates: int | None = None
    """The paper's budget per time step; None: 1.25 times the budget at which Replay peaks here, after a search."""


# One more line here makes another stream known to every suite.
SETUPS: dict[str, Setup] = {
    "cifar100": Setup(
        title="CIFAR-100",
        recipe=Recipe(recipe="class"),
        is_even=True,
        reader=Strips(),
        pack="cifar100_32_webp.zip",
    ),
    "fruits360": Setup(
        title="Fruits-360",
        recipe=Recipe(recipe="time", label_rate=0.02),
        reader=Strips(label="first-word"),
        pack="fruits360_32_webp.zip",
    ),
    "glyphs": Setup(title="glyphs", recipe=Recipe(recipe="class", label_rate=0.02), is_even=True, reader=Glyphs()),
    "yearbook": Setup(
        title="Yearbook",
        recipe=Recipe(recipe="time"),
        is_binary=True,
        test_images=None,  # few of them are of early years
        reader=Arrays(label="gender", time="year", split="split", test="1", unknown="-1"),
        pack="yearbook_32.npz",
    ),
    "imagenet10k": Setup(
        title="ImageNet10k", recipe=Recipe(recipe="class"), preset="base", test_images=None, updates=500
    ),
    "cloc": Setup(
        title="CLOC",
        recipe=Recipe(recipe="time", label_rate=0.005),
        preset="base",
        test_images=None,
        updates=1000,
    ),
    "cglm": Setup(
        title="CGLM",
        recipe=Recipe(recipe="time", label_rate=0.05),
        preset="base",
        test_images=None,
        updates=600,
    ),
}


def setup_named(name: str) -> Setup:
    """Return a setup by its name, at its own size or at that of a preset after it, as in cifar100@micro."""
    stream, at, size = name.partition(AT)
    if stream not in SETUPS:
        raise UserError(f"--stream {name}: no such setup; choose from {', '.join(SETUPS)}")
    setup = SETUPS[stream]
    if not at:
        return setup
    if size == setup.preset:
        raise UserError(f"--stream {name}: {size} is its own size; leave {at}{size} out")
    if size not in PRESETS:
        raise UserError(f"--stream {name}: no such size; choose from {', '.join(PRESETS)}")
    return replace(setup, title=f"{setup.title} ({size})", preset=size)


def manifest_of(name: str, data: Path | None, progress: Progress = lambda done, total: None) -> Path:
    """Return the manifest of a setup, prepared in the cache from its pack in the folder `data`, or given by it."""
    setup = setup_named(name)
    if data is not None and data.suffix == ".parquet":
        return data
    if setup.reader is None:
        raise UserError(f"--stream {name}: give its manifest (`dietcl data prepare` makes it): --data MANIFEST.parquet")
    if not setup.pack:
        return Path(setup.reader.prepare(default_cache(), progress))
    pack = (data or Path("data")) / setup.pack
    if not pack.is_file():
        raise UserError(f"{pack}: no such file; give the folder that holds {setup.pack}: --data FOLDER")
    reader = replace(setup.reader, path=pack) if isinstance(setup.reader, Strips) else setup.reader
    facts = {"pack": digest(pack), "reader": repr(setup.reader)}

    def fill(folder: Path) -> None:
        from dietcl.streams.sources.registry import prepare

        prepare(reader, str(pack), folder, progress=progress)

    return prepare_pack(default_cache(), name.partition(AT)[0], facts, fill)


def held_out(manifest: Path) -> Path:
    """Return a manifest beside this one without its test images, in whose place a tenth of the others stands."""
    path = manifest.with_name(f"{manifest.stem}-held-out.parquet")
    if not path.is_file() or path.stat().st_mtime_ns < manifest.stat().st_mtime_ns:
        table = pq.read_table(manifest)
        table = table.filter(pc.equal(table["split"], "train"))
        split = pa.array(holdout(table["id"].to_pylist(), HELD_OUT_SHARE))
        table = table.set_column(table.schema.get_field_index("split"), table.schema.field("split"), split)
        content = io.BytesIO()
        pq.write_table(table, content, compression="zstd")
        write_bytes(path, content.getvalue())
    return path
