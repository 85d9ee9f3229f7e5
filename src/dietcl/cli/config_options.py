"""Parsing in two stages: the choices that decide which options there are, then those options."""

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import tyro

from dietcl.errors import UserError
from dietcl.files import MANIFEST
from dietcl.streams.recipes import Recipe
from dietcl.streams.sources import SOURCES
from dietcl.streams.sources.readers.webp_zip import Strips

Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What decides which further options there are."""

    stream: str = "glyphs"
    method: str = "dietcl"
    preset: str = "micro"


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


def open_source(stream: str) -> Any:
    """Return the default options of a built-in stream; None if the stream is a manifest."""
    if Path(stream).suffix == ".parquet":
        return None
    if Path(stream).suffix == ".zip":
        return Strips(path=Path(stream))
    if stream not in SOURCES:
        if (Path(stream) / MANIFEST).is_file():
            raise UserError(f"--stream {stream}: is a folder; give the manifest in it, {Path(stream) / MANIFEST}")
        if Path(stream).exists():
            raise UserError(f"--stream {stream}: is no manifest; make one of it: dietcl data prepare {stream}")
        raise UserError(
            f"--stream {stream}: no such stream; choose from {', '.join(SOURCES)}, or give a manifest (.parquet)"
        )
    return SOURCES[stream]()


def own_options(source: Any) -> list[tuple[str, Any, Any]]:
    """Return the field of a built-in stream's own options; a manifest has no such field."""
    return [("source", type(source), source)] if hasattr(source, "prepare") else []


def default_recipe(source: Any) -> Recipe:
    """Return how a stream is cut unless the user says otherwise, by its source or by a manifest's facts."""
    if source is None:
        return Recipe()
    return Recipe(
        recipe=source.recipe,
        time_steps=source.time_steps,
        label_rate=source.label_rate,
        cut=getattr(source, "cut", "count"),
    )


def gather(*fields: tuple[str, Any, Any]) -> Any:
    """Build a dataclass of (name, type, default) fields, filled with the defaults."""
    made = dataclasses.make_dataclass(
        "Options", [(name, kind, dataclasses.field(default=value)) for name, kind, value in fields], kw_only=True
    )
    return made()


def manifest_facts(manifest: Path) -> Any:
    """Return what a manifest says about itself: like a source, it has recipe, time_steps, label_rate and mirror."""
    from dietcl.streams.manifest import read_facts

    facts = read_facts(manifest)
    recipes = get_args(get_type_hints(Recipe)["recipe"])
    numbers = isinstance(facts.time_steps, int) and isinstance(facts.label_rate, int | float)
    try:
        if facts.recipe not in recipes or not numbers:
            raise UserError(f"recipe {facts.recipe!r}, {facts.time_steps!r} time steps, rate {facts.label_rate!r}")
        default_recipe(facts)
    except UserError as error:
        raise UserError(f"{manifest}: says about itself what cannot be ({error}); prepare the data again") from None
    return facts
