"""`dietcl methods`: list the methods."""

import json
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from dietcl.cli.config_options import parse
from dietcl.methods import describe, needed_abilities
from dietcl.models.presets import ABILITIES

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
    if options.json:
        shown = ("name", "description", "keeps", "cost")
        rows = [
            {name: getattr(entry, name) for name in shown}
            | {"needs": sorted(needed_abilities(entry.name)), "variants": list(entry.variants)}
            for entry in describe()
        ]
        print(json.dumps(rows, indent=1))
        return 0
    titles = ("method", "what it does", "keeps", "passes per image")
    table = Table(*titles, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for entry in describe():
        names = "\n".join([entry.name, *(f"  :{variant}" for variant in entry.variants)])
        needs = "".join(f" (needs {ABILITIES[ability]})" for ability in needed_abilities(entry.name))
        table.add_row(names, f"{entry.description.removesuffix('.')}{needs}", entry.keeps, entry.cost)
    Console().print(table)
    return 0
