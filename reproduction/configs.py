"""What a cell is run with: a dataset, a method and its rates as a configuration, and a hash of all that."""

from dataclasses import replace

from dietcl import PRESETS, RunConfig, build_config, weights_identity
from reproduction.datasets import Dataset, dataset_named
from reproduction.run_cache import Cell
from reproduction.trials import Trial


def config_of(name: str, method: str, trial: Trial | None, updates: int, seed: int) -> RunConfig:
    """Return a configuration with the dataset's name in the place of its manifest, the same on every machine."""
    dataset, base = dataset_named(name), method.partition(":")[0]
    mirrors = dataset.reader is None or dataset.reader.mirror
    config = build_config(
        "glyphs",
        method,
        dataset.preset,
        budget=updates,
        seed=seed,
        test_images=dataset.test_images,
        flip=mirrors and PRESETS[dataset.preset].augmentation.flip,
        **({} if trial is None else trial.options(base)),
    )
    if trial is not None:
        config = replace(config, training=trial.training(config.training))
    return replace(config, stream=name, source=None, recipe=dataset.recipe)


def cell_of(key: str, config: RunConfig, dataset: Dataset) -> Cell:
    """Return a cell that is another one with other first weights, or with images that are read otherwise."""
    return Cell(key, config, replace(config, weights=weights_identity(config), source=dataset.reader).hash())
