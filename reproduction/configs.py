"""What a cell is run with: a dataset, a method and its rates as a configuration, and a hash of all that."""

from dataclasses import fields, replace

from dietcl import PRESETS, Evaluation, RunConfig, UserError, build_config, weights_identity
from reproduction.controls import known_controls
from reproduction.datasets import SHIPPED, Dataset, dataset_named
from reproduction.run_cache import Cell
from reproduction.suites import (
    PAPER_RATE,
    PAPER_THRESHOLD,
    PAPER_TIME_STEPS,
    PAPER_UPDATES,
    Arm,
    Point,
    scaled,
)
from reproduction.trials import Search, Trial

WITH_JOINT_PHASE = ("dietcl", "dietcl_averaged", "er")
"""The methods whose threshold is a number of updates, which the study scales with the budget."""
HELD_OUT = "/held-out"
"""After a dataset's name: its stream with training images in the place of the test images."""


def config_of(name: str, method: str, trial: Trial | None, updates: int, seed: int) -> RunConfig:
    """Return a configuration with the dataset's name in the place of its manifest, the same on every machine."""
    dataset, base = dataset_named(name), method.partition(":")[0]
    mirrors = dataset.reader is None or dataset.reader.mirror
    with known_controls():
        config = build_config(
            "glyphs",
            method,
            dataset.preset,
            budget=updates,
            seed=seed,
            train=dataset.train,
            test_images=dataset.test_images,
            flip=mirrors and PRESETS[dataset.preset].augmentation.flip,
            **({} if trial is None else trial.options(base)),
            **({"scale": "each"} if base == "linear_probe" else {}),  # on every encoder alike; an arm may say otherwise
        )
    if trial is not None:
        config = replace(config, training=trial.training(config.training))
    if dataset.weights != SHIPPED:
        config = replace(config, weights=dataset.weights)
    return replace(config, stream=name, source=None, recipe=dataset.recipe)


def cell_of(key: str, config: RunConfig, dataset: Dataset) -> Cell:
    """Return a cell that is another one with other first weights, or with images that are read otherwise."""
    return Cell(key, config, replace(config, weights=weights_identity(config), source=dataset.reader).hash())


def reported_cell(name: str, arm: Arm, point: Point, trial: Trial | None, budget: int, seed: int) -> Cell:
    """Return the run of an arm at a point, scaled to a dataset whose budget is S, at the rates of a trial."""
    dataset, scale = dataset_named(name), budget / PAPER_UPDATES
    updates, threshold = scaled(point.updates, scale), scaled(point.threshold, scale)
    rate = dataset.recipe.label_rate * point.label_rate / PAPER_RATE
    time_steps = round(dataset.recipe.time_steps * point.time_steps / PAPER_TIME_STEPS)
    config = _with_options(_with_threshold(config_of(name, arm.method, trial, updates, seed), threshold), arm)
    config = replace(
        config,
        recipe=replace(config.recipe, label_rate=rate, time_steps=time_steps),
        accounting=point.accounting,
        evaluation=point.protocol.evaluation(replace(config.evaluation, curves=point.curves)),
        first_time_steps=point.first_time_steps,
    )
    options = "".join(f" {name}={value}" for name, value in sorted(arm.options.items()))
    where = f"S {updates}/B {threshold}/rate {rate:g}/T {time_steps}"
    if point.first_time_steps is not None:
        where += f"/first {point.first_time_steps}"
    if point.curves:
        where += f"/curves {point.curves}"
    if point.accounting != "images":
        where += f"/{point.accounting}"
    if point.protocol.is_held_out:
        where, config = f"{where}{HELD_OUT}", replace(config, stream=f"{name}{HELD_OUT}")
    return cell_of(f"{arm.method}{options} as {arm.rates_of}/{where}/seed {seed}", config, dataset)


def trial_cell(name: str, method: str, trial: Trial, search: Search, updates: int, seed: int) -> Cell:
    """Return the run of a trial of a search on the first time steps of a seed."""
    config = config_of(name, method, trial, updates, seed)
    if search.is_at_budget:
        config = _with_threshold(config, scaled(PAPER_THRESHOLD, updates / PAPER_UPDATES))
        config = replace(config, accounting="flops", evaluation=Evaluation())
    config = replace(config, first_time_steps=search.time_steps)
    return _held_out_cell(f"{search.name}/{method}/{updates} updates/{trial}", config, name)


def peak_cell(name: str, method: str, trial: Trial | None, updates: int, seed: int) -> Cell:
    """Return the run that tells what a budget is worth to a method, on the whole stream."""
    config = config_of(name, method, trial, updates, seed)
    return _held_out_cell(f"peak/{method}/{updates} updates/{trial}", config, name)


def _held_out_cell(key: str, config: RunConfig, name: str) -> Cell:
    held_out = replace(config, stream=f"{name}{HELD_OUT}")
    return cell_of(f"{key}/seed {config.seed}", held_out, dataset_named(name))


def _with_threshold(config: RunConfig, updates: int) -> RunConfig:
    """Return a configuration with DietCL's threshold in updates, if it has one."""
    if config.method not in WITH_JOINT_PHASE:
        return config
    return replace(config, method_config=replace(config.method_config, threshold=str(updates)))


def _with_options(config: RunConfig, arm: Arm) -> RunConfig:
    """Return a configuration with the options of an arm, all of which its method must have."""
    strange = sorted(set(arm.options) - {option.name for option in fields(config.method_config)})
    if strange:
        advice = f"see `dietcl train --method {config.method} --help`"
        raise UserError(f"the arm {arm.title}: {arm.method} has no option {strange[0]}; {advice}")
    return replace(config, method_config=replace(config.method_config, **arm.options))
