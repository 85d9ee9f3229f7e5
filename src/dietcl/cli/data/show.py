"""`dietcl data show`: draw a stream before anything is learned from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dietcl.cli.config_options import FLAT, Field, gather, parse, parsed_stream, stream_fields
from dietcl.cli.data import flags, take_first
from dietcl.config import stream_title
from dietcl.errors import UserError
from dietcl.files import make_folder
from dietcl.streams.index import open_manifest
from dietcl.streams.options import RecipeOptions
from dietcl.streams.stream import remarks
from dietcl.streams.stream_cache import cached_stream

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
    name, rest = take_first(arguments, flags(Options, RecipeOptions))
    own: Field = ("options", Annotated[Options, FLAT], Options())
    if not name:
        parse(gather(own, ("recipe", Annotated[RecipeOptions, FLAT], RecipeOptions())), rest, PROGRAM, DESCRIPTION)
        raise UserError("data show: there is no STREAM; give a manifest or a built-in stream first")
    parsed: Any = parse(gather(own, *stream_fields(name)), rest, PROGRAM, DESCRIPTION)

    from dietcl.report.stream_pictures import draw_stream

    options: Options = parsed.options
    manifest, recipe = parsed_stream(name, parsed)
    index = open_manifest(manifest)
    title = stream_title(name if hasattr(parsed, "source") else str(manifest.absolute()))
    stream = cached_stream(title, index, recipe, options.seed)
    out = make_folder(options.out or Path("runs") / f"show-{title}")
    try:
        pictures = draw_stream(stream, index, recipe.label_rate, out, options.per_cell, options.classes)
    except OSError as error:
        raise UserError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    for remark in remarks(stream, index):
        print(remark)
    for picture in pictures:
        print(picture)
    return 0
