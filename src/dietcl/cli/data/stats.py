"""`dietcl data stats`: what a stream holds per time step, and whether that is what was published."""

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dietcl.cli.config_options import parse_data_stream
from dietcl.config import stream_title
from dietcl.errors import UserError
from dietcl.plural import plural
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.statistics import DIFFERS, PAPER, Difference, Spread, Statistics, differences, statistics
from dietcl.streams.stream_cache import cached_stream

DESCRIPTION = """Show what a stream holds: classes, labeled, unlabeled and test images per time step, and in all.

Examples:
  dietcl data stats photos/manifest.parquet
  dietcl data stats in10k/manifest.parquet --check auto
  dietcl data stats cglm/manifest.parquet --label-rate 0.02 --seed 1 --json

STREAM is a manifest (.parquet), a pack (.zip) or a built-in stream. A manifest uses its own
defaults unless overridden. With --check the exit code is 1 if anything differs from what was published."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """What to count and how to print."""

    seed: int = 0
    """Seed of the stream."""
    check: str = ""
    """Compare with what is published: imagenet10k, imagenet2k, cloc, cglm, or auto for its source."""
    json: bool = False
    """Print JSON."""


def main(arguments: list[str]) -> int:
    """Print the statistics of one stream."""
    name, manifest, recipe, show = parse_data_stream(arguments, Show(), "stats", DESCRIPTION)
    source = read_facts(manifest).source
    benchmark = show.check if show.check != "auto" else source or ""
    if show.check and benchmark not in PAPER:
        origin = f"; {manifest} was prepared from {source or 'an unknown source'}" if show.check == "auto" else ""
        raise UserError(
            f"--check {show.check}: nothing is published about that{origin}; choose from {', '.join(PAPER)}"
        )
    index = open_manifest(manifest)
    found = statistics(cached_stream(name, index, recipe, show.seed), index, recipe.label_rate)
    held = differences(benchmark, found) if benchmark else []
    if show.json:
        facts = {"name": name, "manifest": str(manifest), "recipe": asdict(recipe), "statistics": asdict(found)}
        checked = {"check": benchmark, "differences": [asdict(one) for one in held]} if held else {}
        print(json.dumps(facts | checked, indent=1))
    else:
        _tables(stream_title(name), found, benchmark, held)
    return int(any(one.verdict == DIFFERS for one in held))


def _tables(name: str, found: Statistics, benchmark: str, held: list[Difference]) -> None:
    titles = ("Split", "Classes per split", "Labeled per split", "Unlabeled per split", "Inference data per split")
    table = Table("Dataset", *(Column(title, justify="right") for title in titles), box=None, header_style="bold")
    spreads = (found.classes_per_step, found.labeled, found.unlabeled, found.test)
    table.add_row(Text(name), f"{found.time_steps}", *map(_spread, spreads))
    console = Console()
    console.print(table)
    least, median, most = found.images_per_class
    asked = f", {found.label_rate:.2%} asked" if found.label_rate is not None else ""
    only = f", {found.test_only_classes:,} more in test images only" if found.test_only_classes else ""
    print(f"{found.train_images:,} training and {found.test_images:,} test images")
    print(f"{plural(found.classes, 'class')} ({found.revealed_classes:,} revealed){only}")
    print(f"realized label rate {found.realized_rate:.2%}{asked}")
    print(f"training images per class: {least:,} to {most:,}, median {median:,.10g}")
    if not held:
        return
    numbers = (Column(title, justify="right") for title in ("published", "found"))
    title = f"beside what is published about {benchmark}"
    checks = Table("quantity", *numbers, "verdict", "note", box=None, header_style="bold", title=title)
    for one in held:
        number = f"{one.found:.2%}" if "rate" in one.quantity else f"{one.found:,.10g}"
        checks.add_row(one.quantity, one.expected, number, one.verdict, one.note)
    console.print("", checks, sep="\n")


def _spread(spread: Spread) -> str:
    mean = f"{spread.mean:,.10g}" if spread.mean < 100 else f"{spread.mean:,.0f}"
    return mean if spread.least == spread.most else f"{mean} ({spread.least:,}-{spread.most:,})"
