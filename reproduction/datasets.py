"""Setups: the streams that suites learn, each with its data, its cut, its size and its regime."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dietcl import PRESETS, Recipe, UserError, prepare, reader

Progress = Callable[[int, int | None], None]
AT = "@"
"""Between the name of a dataset and another size than its own."""
SHIPPED = "shipped"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A stream, how it is cut, and at which size and budget it is learned."""

    title: str
    recipe: Recipe
    preset: str = "nano"
    train: str = "full"
    """What of the encoder learns: all, or the head alone (`head`)."""
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
    """A given budget per time step, at the preset's own rates; None: 1.25 times S*, at rates that are searched."""
    peak: int | None = None
    """S*; None: the budget at which Replay peaks here, after a search."""
    like: str = ""
    """Another dataset, whose S and rates it takes; by default it has its own."""
    weights: str = SHIPPED
    """First weights: those of the preset, or a file."""


# One more line here makes another stream known to every suite.
DATASETS: dict[str, Dataset] = {
    "cifar100": Dataset(
        title="CIFAR-100",
        recipe=Recipe(recipe="class"),
        is_even=True,
        reader=reader("strips"),
        pack="cifar100_32_webp.zip",
    ),
    "fruits360": Dataset(
        title="Fruits-360",
        recipe=Recipe(recipe="time", label_rate=0.02),
        reader=reader("strips", label="first-word"),
        pack="fruits360_32_webp.zip",
    ),
    "glyphs": Dataset(
        title="glyphs", recipe=Recipe(recipe="class", label_rate=0.02), is_even=True, reader=reader("glyphs")
    ),
    "yearbook": Dataset(
        title="Yearbook",
        recipe=Recipe(recipe="time"),
        is_binary=True,
        test_images=None,  # few of them are of early years
        reader=reader("arrays", label="gender", time="year", split="split", test="1", unknown="-1"),
        pack="yearbook_32.npz",
    ),
    "glyphs1000": Dataset(
        title="1,000 glyphs",
        recipe=Recipe(recipe="class", time_steps=10, label_rate=0.02),  # 100 classes a time step, one label each
        is_even=True,
        reader=reader("glyphs", classes=1000, per_class=50, test_per_class=5),
        like="glyphs",
    ),
    "cifar100-wide": Dataset(
        title="CIFAR-100, 20 classes a time step",
        recipe=Recipe(recipe="class", time_steps=5),
        preset="micro",
        is_even=True,
        reader=reader("strips"),
        pack="cifar100_32_webp.zip",
        peak=512,  # for the paper's 102 passes a new label; doubling budgets at this size would take days
    ),
    "imagenet10k": Dataset(
        title="ImageNet10k", recipe=Recipe(recipe="class"), preset="base", test_images=None, updates=500
    ),
    "cloc": Dataset(
        title="CLOC",
        recipe=Recipe(recipe="time", label_rate=0.005),
        preset="base",
        test_images=None,
        updates=1000,
    ),
    "cglm": Dataset(
        title="CGLM",
        recipe=Recipe(recipe="time", label_rate=0.05),
        preset="base",
        test_images=None,
        updates=600,
    ),
}


def _frozen(name: str) -> Dataset:
    """Return a dataset under an encoder of photos that does not learn, with more budget than any head needs."""
    own = DATASETS[name]
    return replace(own, title=f"{own.title} (frozen lite)", preset="lite", train="head", updates=200)


DATASETS |= {f"{name}-lite": _frozen(name) for name in ("cifar100", "fruits360", "yearbook")}


def dataset_named(name: str) -> Dataset:
    """Return a dataset by its name, at its own size or at that of a preset after it, as in cifar100@micro."""
    stream, at, size = name.partition(AT)
    if stream not in DATASETS:
        raise UserError(f"--stream {name}: no such dataset; choose from {', '.join(DATASETS)}")
    dataset = DATASETS[stream]
    if not at:
        return dataset
    if size == dataset.preset:
        raise UserError(f"--stream {name}: {size} is its own size; leave {at}{size} out")
    if size not in PRESETS:
        raise UserError(f"--stream {name}: no such size; choose from {', '.join(PRESETS)}")
    # S* and weights are of the dataset's own size.
    like = f"{dataset.like}{AT}{size}" if dataset.like else ""
    return replace(dataset, title=f"{dataset.title} ({size})", preset=size, like=like, peak=None, weights=SHIPPED)


def is_manifest(data: Path) -> bool:
    """Tell whether a path is that of a manifest, rather than of a folder of packs."""
    return data.suffix == ".parquet"


def manifest_of(name: str, data: Path | None, progress: Progress = lambda done, total: None) -> Path:
    """Return the manifest of a dataset, prepared in the cache from its pack in the folder `data`, or given by it."""
    dataset = dataset_named(name)
    if data is not None and is_manifest(data):
        return data
    if dataset.reader is None:
        raise UserError(f"--stream {name}: give its manifest (`dietcl data prepare` makes it): --data MANIFEST.parquet")
    if not dataset.pack:
        return prepare(name, dataset.reader, progress)
    pack = (data or Path("data")) / dataset.pack
    if not pack.is_file():
        raise UserError(f"{pack}: no such file; give the folder that holds {dataset.pack}: --data FOLDER")
    return prepare(pack, dataset.reader, progress)
