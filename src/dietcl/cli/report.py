"""`dietcl report`: one self-contained page and PNG figures for runs."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from dietcl.cli.config_options import parse
from dietcl.report.runs import RunRecord, find_runs
from dietcl.report.tables import comparison_rows, comparison_table

DESCRIPTION = """Write report.html (one self-contained page) and PNG figures for one or several runs.

Examples:
  dietcl report runs/glyphs-dietcl-1a2b3c
  dietcl report runs/* --out reports/all
  dietcl report runs/* --json

A folder without a run of its own stands for the runs directly in it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which runs, and where the page goes."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run folders."""
    out: Path | None = None
    """Folder of the page (the folder named if it is a single one, else reports/)."""
    json: bool = False
    """Print the comparison as JSON, too."""


def main(arguments: list[str]) -> int:
    """Write the page and print the comparison."""
    options = parse(Options(), arguments, "dietcl report", DESCRIPTION)
    from dietcl.report.page import write_report

    out = options.out or (options.runs[0] if len(options.runs) == 1 else Path("reports"))
    folders, others = find_runs(options.runs)
    # Without any run, reading what the user named raises an error that says why.
    page = write_report(folders or options.runs, out)
    if others:
        print(f"dietcl report: left out, as not a run: {', '.join(map(str, others))}", file=sys.stderr)
    runs = [RunRecord.read(folder) for folder in folders]
    if options.json:
        print(json.dumps({"page": str(page), "runs": comparison_rows(runs)}, indent=1))
    else:
        console = Console()
        console.print(comparison_table(runs, console))
        print(f"report: {page}")
    return 0
