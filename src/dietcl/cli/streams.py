"""`dietcl streams`: list the built-in streams, or show the time steps of one."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from dietcl.cli.config_options import FLAT, gather, parse, parsed_stream, pick, stream_fields
from dietcl.plural import plural
from dietcl.streams.options import Recipe
from dietcl.streams.sources import SOURCES

DESCRIPTION = """List the built-in streams; with --stream, show what arrives at each time step.

Examples:
  dietcl streams
  dietcl streams --stream glyphs --time-steps 10 --label-rate 0.05
  dietcl streams --stream photos/manifest.parquet --recipe time --cut duration --json

--stream is a built-in stream, a manifest (.parquet) or a pack (.zip); name it and ask for --help to see its options."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """How to print."""

    seed: int = 0
    """Seed of the stream."""
    json: bool = False
    """Print JSON."""


def main(arguments: list[str]) -> int:
    """Print the list, or one stream."""
    choices, rest = pick(arguments, stream="")
    if not choices.stream:
        options = parse(Show(), rest, "dietcl streams", DESCRIPTION)
        return _list(options.json)
    fields = (*stream_fields(choices.stream), ("show", Annotated[Show, FLAT], Show()))
    parsed = parse(gather(*fields), rest, "dietcl streams", DESCRIPTION)
    return _show(choices.stream, *parsed_stream(choices.stream, parsed), parsed.show)


def _list(as_json: bool) -> int:
    entries = [
        {"name": name, "recipe": source.recipe, "description": (source.__doc__ or "").strip().splitlines()[0]}
        for name, source in SOURCES.items()
    ]
    if as_json:
        print(json.dumps(entries, indent=1))
        return 0
    for entry in entries:
        print(f"{entry['name']:<17}{entry['recipe']:<7}{entry['description']}")
    return 0


def _show(name: str, manifest: Path, recipe: Recipe, show: Show) -> int:
    from dietcl.streams.index import open_manifest
    from dietcl.streams.stream import remarks
    from dietcl.streams.stream_cache import cached_stream

    index = open_manifest(manifest)
    stream = cached_stream(name, index, recipe, show.seed)
    rows = [
        {
            "t": step.t,
            "labeled": len(step.labeled),
            "unlabeled": len(step.unlabeled),
            "test": len(test.rows),
            "classes": len(step.classes),
            "new_classes": len(step.new_classes),
            "realized_rate": step.realized_rate,
        }
        for step, test in zip(stream.steps, stream.tests, strict=True)
    ]
    if show.json:
        facts = {
            "name": name,
            "manifest": str(manifest),
            "identity": stream.identity,
            "recipe": asdict(recipe),
            "realized_rate": stream.realized_rate,
            "remarks": remarks(stream, index),
            "steps": rows,
        }
        print(json.dumps(facts, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", title=Text(f"{name}, identity {stream.identity}"))
    for title in rows[0]:
        table.add_column(title.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.2%}" if isinstance(value, float) else f"{value:,}" for value in row.values()))
    console = Console()
    console.print(table)
    console.print(
        f"realized label rate {stream.realized_rate:.2%}, {plural(len(stream.classes), 'class')} revealed\n"
        f"manifest: {manifest}",
        soft_wrap=True,
        markup=False,
    )
    for remark in remarks(stream, index):
        console.print(remark, soft_wrap=True, markup=False)
    return 0
