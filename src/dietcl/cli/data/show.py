"""`dietcl data show`: draw a stream before anything is learned from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dietcl.cli.config_options import default_recipe, gather, manifest_facts, open_source, own_options, parse
from dietcl.cli.data import flags, take_first
from dietcl.errors import UserError
from dietcl.files import default_cache, make_folder
from dietcl.streams.recipes import Recipe

DESCRIPTION = """Draw a stream: contact.png (training images by class and time step), label-rate.png and classes.png.

Examples:
  dietcl data show data/photos/manifest.parquet
  dietcl data show data/photos/manifest.parquet --recipe time --time-steps 10 --label-rate 0.05
  dietcl data show glyphs --out pictures --classes 20

STREAM comes first: a built-in stream (dietcl streams lists them), a manifest (.parquet) or a pack (.zip)."""

PROGRAM = "dietcl data show STREAM"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is drawn, and where it goes."""

    out: Path | None = None
    """Folder of the pictures (runs/show-NAME by default)."""
    seed: int = 0
    """Seed of the stream."""
    per_cell: int = 1
    """Images of a class in a time step."""
    classes: int = 12
    """Classes on the contact sheet, those that arrive first (in all, or new at each time step)."""

    def __post_init__(self) -> None:
        for name, most in (("per_cell", 25), ("classes", 100)):
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: give from 1 to {most}")


def main(arguments: list[str]) -> int:
    """Cut the stream and draw it."""
    name, rest = take_first(arguments, flags(Options, Recipe))
    flat = tyro.conf.arg(name="")
    if not name:
        fields: list[tuple[str, Any, Any]] = [("recipe", Annotated[Recipe, flat], Recipe())]
        parse(gather(*fields, ("options", Annotated[Options, flat], Options())), rest, PROGRAM, DESCRIPTION)
        raise UserError("data show: there is no STREAM; give a manifest or a built-in stream first")
    source = open_source(name) or manifest_facts(Path(name))
    parsed: Any = parse(
        gather(
            ("options", Annotated[Options, flat], Options()),
            ("recipe", Annotated[Recipe, flat], default_recipe(source)),
            *own_options(source),
        ),
        rest,
        PROGRAM,
        DESCRIPTION,
    )
    from dietcl.config import stream_title
    from dietcl.report.stream_pictures import draw_stream
    from dietcl.streams.index import open_manifest
    from dietcl.streams.stream import remarks
    from dietcl.streams.stream_cache import open_stream

    options: Options = parsed.options
    manifest = parsed.source.prepare(default_cache()) if hasattr(parsed, "source") else Path(name)
    index = open_manifest(manifest)
    title = stream_title(name if hasattr(parsed, "source") else str(manifest.absolute()))
    stream = open_stream(title, index, parsed.recipe, options.seed)
    out = make_folder(options.out or Path("runs") / f"show-{title}")
    try:
        pictures = draw_stream(stream, index, parsed.recipe.label_rate, out, options.per_cell, options.classes)
    except OSError as error:
        raise UserError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    for remark in remarks(stream):
        print(remark)
    for picture in pictures:
        print(picture)
    return 0
