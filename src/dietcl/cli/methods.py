"""`dietcl methods`: list the methods."""

import json
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from dietcl.cli.config_options import parse
from dietcl.methods import Entry, describe

DESCRIPTION = """List the methods with what they keep between time steps and what an image costs them, in passes.

Examples:
  dietcl methods
  dietcl methods --json
  dietcl train --method dietcl --help     (the options of one method)"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to print."""

    json: bool = False
    """Print a JSON list of objects."""


def main(arguments: list[str]) -> int:
    """Print the registry."""
    options = parse(Options(), arguments, "dietcl methods", DESCRIPTION)
    entries = describe()
    if options.json:
        print(json.dumps([_row(entry) for entry in entries], indent=1))
        return 0

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("method", "what it does", "keeps", "passes per image"):
        table.add_column(title)
    for entry in entries:
        names = "\n".join([entry.name, *(f"  :{variant}" for variant in entry.variants)])
        table.add_row(names, entry.description, entry.keeps, entry.cost)
    Console().print(table)
    return 0


def _row(entry: Entry) -> dict[str, object]:
    row = {name: getattr(entry, name) for name in ("name", "description", "keeps", "cost")}
    return row | {"variants": list(entry.variants)}
