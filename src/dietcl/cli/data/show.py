"""`dietcl data show`: draw a stream before anything is learned from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dietcl.checked_options import CheckedOptions, Valid
from dietcl.cli.config_options import parse_data_stream
from dietcl.config import stream_title
from dietcl.errors import UserError
from dietcl.files import make_folder
from dietcl.streams.index import open_manifest
from dietcl.streams.stream import remarks
from dietcl.streams.stream_cache import cached_stream

DESCRIPTION = """Draw a stream: contact.png (training images by class and time step), label-rate.png and classes.png.

Examples:
  dietcl data show data/photos/manifest.parquet
  dietcl data show data/photos/manifest.parquet --recipe time --time-steps 10 --label-rate 0.05
  dietcl data show glyphs --out pictures --classes 20

STREAM comes first: a built-in stream (dietcl streams lists them), a manifest (.parquet) or a pack (.zip)."""


@dataclass(frozen=True, kw_only=True)
class Options(CheckedOptions):
    """What is drawn, and the folder for it."""

    out: Path | None = None
    """Folder of the pictures (runs/show-NAME by default)."""
    seed: int = 0
    """Seed of the stream."""
    per_cell: Annotated[int, Valid(lambda count: 1 <= count <= 25, "give from 1 to 25")] = 1
    """Images of a class in a time step."""
    classes: Annotated[int, Valid(lambda count: 1 <= count <= 100, "give from 1 to 100")] = 12
    """Classes on the contact sheet, those that arrive first (in all, or new at each time step)."""


def main(arguments: list[str]) -> int:
    """Cut the stream and draw it."""
    name, manifest, recipe, options = parse_data_stream(arguments, Options(), "show", DESCRIPTION)
    from dietcl.report.stream_pictures import draw_stream

    index = open_manifest(manifest)
    title = stream_title(str(manifest.absolute()) if manifest == Path(name) else name)
    stream = cached_stream(title, index, recipe, options.seed)
    out = make_folder(options.out or Path("runs") / f"show-{title}")
    try:
        pictures = draw_stream(stream, index, recipe.label_rate, out, options.per_cell, options.classes)
    except OSError as error:
        raise UserError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    for line in (*remarks(stream, index), *pictures):
        print(line)
    return 0
