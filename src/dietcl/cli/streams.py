"""`dietcl streams`: list the built-in streams, or show the time steps of one."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dietcl.cli.config_options import parse, parse_stream, pick
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
    if choices.stream:
        _show(choices.stream, *parse_stream(choices.stream, rest, Show(), "dietcl streams", DESCRIPTION))
    else:
        _list(parse(Show(), rest, "dietcl streams", DESCRIPTION).json)
    return 0


def _list(as_json: bool) -> None:
    entries = [
        {"name": name, "recipe": source.recipe, "description": (source.__doc__ or "").strip().splitlines()[0]}
        for name, source in SOURCES.items()
    ]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    for entry in entries:
        print(f"{entry['name']:<17}{entry['recipe']:<7}{entry['description']}")


def _show(name: str, manifest: Path, recipe: Recipe, show: Show) -> None:
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
        return
    columns = (Column(title.replace("_", " "), justify="right") for title in rows[0])
    table = Table(*columns, box=None, header_style="bold", title=Text(f"{name}, identity {stream.identity}"))
    for row in rows:
        table.add_row(*(f"{value:.2%}" if isinstance(value, float) else f"{value:,}" for value in row.values()))
    Console().print(table)
    print(f"realized label rate {stream.realized_rate:.2%}, {plural(len(stream.classes), 'class')} revealed")
    print("\n".join([f"manifest: {manifest}", *remarks(stream, index)]))
