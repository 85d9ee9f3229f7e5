"""Parses the options of a run in two stages: the choices that decide which options there are, then those options."""

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from dietcl.config import Evaluation, RunConfig, Training
from dietcl.config_builder import (
    default_recipe,
    manifest_facts,
    open_source,
    recipe_options,
    resolve_recipe,
    resolve_weights,
)
from dietcl.files import default_cache
from dietcl.models.presets import ModelConfig
from dietcl.streams.options import Augmentation, Recipe, RecipeOptions

Options = TypeVar("Options")
Field = tuple[str, Any, Any]  # name, type, default
FLAT = tyro.conf.arg(name="")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What decides which further options there are."""

    stream: str = "glyphs"
    method: str = "dietcl"
    preset: str = ""
    encoder: str = ""


def pick(arguments: list[str], **choices: str) -> tuple[Choices, list[str]]:
    """Take a verb's choices, given with their defaults, out of the arguments."""
    parser = argparse.ArgumentParser(prog="dietcl", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    for name, default in choices.items():
        parser.add_argument(f"--{name}", default=default)
    found, rest = parser.parse_known_args(arguments)
    return Choices(**vars(found)), rest


def parse(defaults: Options, arguments: list[str], program: str, description: str) -> Options:
    """Parse options over their defaults; help and mistakes are printed here, the latter with exit code 2."""
    return tyro.cli(type(defaults), default=defaults, args=arguments, prog=program, description=description)


def gather(*fields: Field) -> Any:
    """Build a dataclass of (name, type, default) fields, filled with the defaults."""
    options = dataclasses.make_dataclass(
        "Options", [(name, kind, dataclasses.field(default=value)) for name, kind, value in fields], kw_only=True
    )
    return options()


def source_fields(source: Any) -> list[Field]:
    """Return the field of a built-in stream's own options; a manifest has no such field."""
    return [("source", type(source), source)] if hasattr(source, "prepare") else []


def stream_fields(stream: str) -> list[Field]:
    """Return the options of a stream: its recipe, and its own if it is built in."""
    source = open_source(stream)
    default = default_recipe(source or manifest_facts(Path(stream)))
    return [("recipe", Annotated[RecipeOptions, FLAT], recipe_options(default)), *source_fields(source)]


def parsed_stream(stream: str, parsed: Any) -> tuple[Path, Recipe]:
    """Return a stream's manifest and resolved recipe from the parsed values of `stream_fields`."""
    source = getattr(parsed, "source", None)
    recipe = resolve_recipe(parsed.recipe, stream, source)
    return source.prepare(default_cache()) if source else Path(stream), recipe


def shared_fields(config: RunConfig) -> list[Field]:
    """Return the options that every method has, with the values of a configuration as their defaults."""
    return [
        (
            "budget",
            Annotated[str, tyro.conf.arg(help="Per time step: 500 (updates), 2e15flops or 2h.")],
            config.budget,
        ),
        (
            "accounting",
            Annotated[
                Literal["images", "flops"],
                tyro.conf.arg(help="Price of an image with gradient: 1, or its FLOPs over those of a full pass."),
            ],
            config.accounting,
        ),
        (
            "first_time_steps",
            Annotated[int | None, tyro.conf.arg(help="Learn only this many time steps (all by default).")],
            config.first_time_steps,
        ),
        *source_fields(config.source),
        (
            "weights",
            Annotated[str, tyro.conf.arg(help="auto, random, shipped, a checkpoint file, or a timm name to download.")],
            "auto",
        ),
        ("recipe", Annotated[RecipeOptions, FLAT], recipe_options(config.recipe)),
        ("training", Annotated[Training, FLAT], config.training),
        ("augmentation", Annotated[Augmentation, FLAT], config.augmentation),
        ("model", Annotated[ModelConfig, FLAT], config.model),
        ("evaluation", Annotated[Evaluation, FLAT], config.evaluation),
    ]


def with_values(config: RunConfig, **values: Any) -> RunConfig:
    """Return a configuration with the parsed values of `shared_fields` and others."""
    values["weights"] = resolve_weights(values["weights"], values["model"])
    values["recipe"] = resolve_recipe(values["recipe"], config.stream, values.get("source"))
    return dataclasses.replace(config, **values)
