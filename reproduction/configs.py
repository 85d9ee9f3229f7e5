"""What a cell is run with: a setup, a method and its rates as a configuration, and a hash of all that."""

from dataclasses import replace

from dietcl.cli.settings import method_defaults
from dietcl.config import Evaluation, RunConfig, preset
from dietcl.files import digest
from dietcl.models.checkpoints import shipped
from dietcl.models.presets import OWN_PATCHES
from reproduction.datasets import Setup, setup_named
from reproduction.run_cache import Cell
from reproduction.trials import Trial


def config_of(name: str, method: str, trial: Trial | None, updates: int, seed: int) -> RunConfig:
    """Return a configuration with the setup's name in the place of its manifest, the same on every machine."""
    setup, base = setup_named(name), method.partition(":")[0]
    sizes = preset(setup.preset)
    own, training, augmentation = method_defaults(method, sizes), sizes.training, sizes.augmentation
    if trial is not None:
        own, training = replace(own, **trial.options(base)), trial.training(training)
    if setup.reader is not None and not setup.reader.mirror:
        augmentation = replace(augmentation, flip=False)
    return RunConfig(
        method=base,
        method_config=own,
        stream=name,
        source=None,
        recipe=setup.recipe,
        model=sizes.model,
        weights="shipped" if sizes.model.encoder in OWN_PATCHES else sizes.model.encoder,
        training=training,
        augmentation=augmentation,
        budget=str(updates),
        evaluation=Evaluation(test_images=setup.test_images),
        seed=seed,
    )


def cell_of(key: str, config: RunConfig, setup: Setup) -> Cell:
    """Return a cell that is another one with other first weights, or with images that are read otherwise."""
    weights = digest(shipped(config.model.encoder)) if config.weights == "shipped" else config.weights
    return Cell(key, config, replace(config, weights=weights, source=setup.reader).hash())
