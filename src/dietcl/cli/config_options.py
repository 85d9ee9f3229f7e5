"""Parses options in two stages: the choices that decide which options there are, then those options."""

import argparse
import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import tyro

from dietcl import config_builder as builder
from dietcl.config import RunConfig
from dietcl.errors import UserError
from dietcl.files import default_cache
from dietcl.plural import plural
from dietcl.streams.options import Recipe, RecipeOptions

Options = TypeVar("Options")
Field = tuple[str, Any, Any]  # name, type, default
FLAT = tyro.conf.arg(name="")


def pick(arguments: list[str], **choices: str) -> tuple[argparse.Namespace, list[str]]:
    """Take a verb's choices, given with their defaults, out of the arguments."""
    parser = argparse.ArgumentParser(prog="dietcl", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    for name, default in choices.items():
        parser.add_argument(f"--{name}", default=default)
    return parser.parse_known_args(arguments)


def pick_stream(stream: str) -> str:
    """Return the stream of a choice; a folder or table of images is prepared in the cache first, with progress."""
    if not Path(stream).exists() or Path(stream).suffix in (".parquet", ".zip"):
        return stream
    from dietcl.cli.progress import notify, progress_bar
    from dietcl.streams.quarantine import QUARANTINE
    from dietcl.streams.sources.registry import stream_name

    try:
        with progress_bar(f"preparing {stream}", "images") as update:
            manifest = stream_name(stream, update)
    except UserError as error:
        why = str(error).partition(" (in Python:")[0]
        raise UserError(f"{why} (`dietcl data prepare {stream}` takes further options)") from None
    quarantine = Path(manifest).with_name(QUARANTINE)
    if quarantine.is_file() and (bad := len(quarantine.read_text(encoding="utf-8").splitlines()) - 1) > 0:
        notify(f"{stream}: {plural(bad, 'problem')}, listed in {quarantine}; the rest is used")
    return manifest


def take_first(arguments: list[str], flags: Collection[str]) -> tuple[str, list[str]]:
    """Take out the first argument that is no option and no option's value; `flags` are options without a value."""
    found, rest, is_value = "", [], False
    for argument in arguments:
        if re.match(r"--?[A-Za-z]", argument):
            is_value = "=" not in argument and argument.replace("_", "-") not in flags
        elif not is_value and not found:
            found = argument
            continue
        else:
            is_value = False
        rest.append(argument)
    return found, rest


def flags(*options: type) -> set[str]:
    """Return the flags (options without a value) of some classes of options, as they are written."""
    names = [name for kind in options for name, type in get_type_hints(kind).items() if type is bool]
    words = [name.replace("_", "-") for name in names]
    return {"-h", "--help", *(f"--{word}" for word in words), *(f"--no-{word}" for word in words)}


def parse(defaults: Options, arguments: list[str], program: str, description: str) -> Options:
    """Parse options over their defaults; prints help, and mistakes with exit code 2."""
    return tyro.cli(type(defaults), default=defaults, args=arguments, prog=program, description=description)


def gather(*fields: Field) -> Any:
    """Build a dataclass of (name, type, default) fields, filled with the defaults."""
    defaults = [(name, kind, dataclasses.field(default=value)) for name, kind, value in fields]
    return dataclasses.make_dataclass("Options", defaults, kw_only=True)()


def flat(name: str, options: Any) -> Field:
    """Return a field of options that have no prefix on the command line."""
    return name, Annotated[type(options), FLAT], options


def option(name: str, kind: Any, default: Any, text: str) -> Field:
    """Return a field of one option with its help text."""
    return name, Annotated[kind, tyro.conf.arg(help=text)], default


def source_fields(source: Any) -> list[Field]:
    """Return the field of a built-in stream's own options; a manifest has no such field."""
    return [("source", type(source), source)] if source else []


def parse_stream(
    stream: str, arguments: list[str], own: Options, program: str, description: str
) -> tuple[Path, Recipe, Options]:
    """Parse the options of a stream and a verb's own; returns the manifest, the resolved recipe and the latter."""
    source = builder.open_source(stream)
    recipe = builder.recipe_options(builder.default_recipe(source or builder.manifest_facts(Path(stream))))
    fields = (flat("recipe", recipe), *source_fields(source), flat("own", own))
    parsed = parse(gather(*fields), arguments, program, description)
    source = parsed.source if source else None
    recipe = builder.resolve_recipe(parsed.recipe, stream, source)
    return source.prepare(default_cache()) if source else Path(stream), recipe, parsed.own


def parse_data_stream(
    arguments: list[str], own: Options, verb: str, description: str
) -> tuple[str, Path, Recipe, Options]:
    """Do as `parse_stream` for a verb of `dietcl data`, whose first argument is the stream; returns that, too."""
    stream, rest = take_first(arguments, flags(type(own), RecipeOptions))
    program = f"dietcl data {verb} STREAM"
    if not stream:
        parse(gather(flat("recipe", RecipeOptions()), flat("own", own)), rest, program, description)
        raise UserError(f"data {verb}: there is no STREAM; give a manifest (.parquet) or a built-in stream first")
    return stream, *parse_stream(stream, rest, own, program, description)


def shared_fields(config: RunConfig) -> list[Field]:
    """Return the options that every method has, with the values of a configuration as their defaults."""
    prices = "Price of an image with gradient: 1, or its FLOPs over those of a full pass."
    weights = "auto, random, shipped, a checkpoint file, or a timm name to download."
    steps = "Learn only this many time steps (all by default)."
    return [
        option("budget", str, config.budget, "Per time step: 500 (updates), 2e15flops or 2h."),
        option("accounting", Literal["images", "flops"], config.accounting, prices),
        option("first_time_steps", int | None, config.first_time_steps, steps),
        *source_fields(config.source),
        option("weights", str, "auto", weights),
        flat("recipe", builder.recipe_options(config.recipe)),
        *(flat(name, getattr(config, name)) for name in ("training", "augmentation", "model", "evaluation")),
    ]


def with_values(config: RunConfig, **values: Any) -> RunConfig:
    """Return a configuration with the parsed values of `shared_fields` and others."""
    values["weights"] = builder.resolve_weights(values["weights"], values["model"])
    values["recipe"] = builder.resolve_recipe(values["recipe"], config.stream, values.get("source"))
    return dataclasses.replace(config, **values)
