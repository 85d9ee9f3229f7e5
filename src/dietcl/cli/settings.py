"""The options of a run that all methods share, and a run's configuration from them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dietcl.cli.config_options import default_recipe, manifest_facts, open_source, own_options
from dietcl.config import Evaluation, Preset, RunConfig, Training
from dietcl.methods import method_config
from dietcl.models.presets import OWN_PATCHES, ModelConfig
from dietcl.streams.augmentation import Augmentation
from dietcl.streams.recipes import Recipe

FLAT = tyro.conf.arg(name="")
Field = tuple[str, Any, Any]


def shared_fields(sizes: Preset, stream: str) -> list[Field]:
    """Return (name, type, default) of the options that every method has on this stream at this size."""
    source = open_source(stream) or manifest_facts(Path(stream))
    augmentation = sizes.augmentation
    if not source.mirror:
        augmentation = dataclasses.replace(augmentation, flip=False)
    fields: list[Field] = [
        (
            "budget",
            Annotated[str, tyro.conf.arg(help="Per time step: 500 (updates), 2e15flops or 2h.")],
            sizes.budget,
        ),
        (
            "accounting",
            Annotated[
                Literal["images", "flops"],
                tyro.conf.arg(help="Price of an image with gradient: 1, or its FLOPs over those of a full pass."),
            ],
            "images",
        ),
        (
            "first_time_steps",
            Annotated[int | None, tyro.conf.arg(help="Learn the first so many time steps only (all by default).")],
            None,
        ),
        (
            "weights",
            Annotated[str, tyro.conf.arg(help="auto, random, shipped, a checkpoint file, or a timm name to download.")],
            "auto",
        ),
        ("recipe", Annotated[Recipe, FLAT], default_recipe(source)),
        ("training", Annotated[Training, FLAT], sizes.training),
        ("augmentation", Annotated[Augmentation, FLAT], augmentation),
        ("model", Annotated[ModelConfig, FLAT], sizes.model),
        ("evaluation", Annotated[Evaluation, FLAT], Evaluation()),
    ]
    fields[3:3] = own_options(source)
    return fields


def method_defaults(method: str, sizes: Preset) -> Any:
    """Return the options of METHOD or METHOD:VARIANT at this size."""
    return dataclasses.replace(method_config(method), **sizes.methods.get(method.partition(":")[0], {}))


def run_config(stream: str, method: str, method_options: Any, seed: int, shared: Mapping[str, Any]) -> RunConfig:
    """Put a run's configuration together; `shared` has the values of `shared_fields`."""
    values = dict(shared)
    weights = values.pop("weights")
    if weights == "auto":
        weights = "shipped" if values["model"].encoder in OWN_PATCHES else values["model"].encoder
    return RunConfig(
        method=method.partition(":")[0],
        method_config=method_options,
        stream=stream,
        source=values.pop("source", None),
        weights=None if weights == "random" else weights,
        seed=seed,
        **values,
    )
