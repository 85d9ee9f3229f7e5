"""`dietcl data check`: read and decode every image of a manifest."""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dietcl.errors import UserError
from dietcl.launch import cores
from dietcl.rng import numpy_generator
from dietcl.streams.index import open_manifest
from dietcl.streams.verify import find_problems, remarks

if TYPE_CHECKING:
    from dietcl.streams.verify import Problem

DESCRIPTION = """Read and decode every image of a manifest; list those that cannot be, and say what the manifest lacks.

Examples:
  dietcl data check data/photos/manifest.parquet
  dietcl data check data/photos/manifest.parquet --sample 10000
  dietcl data check data/photos/manifest.parquet --out problems.csv --jobs 8

The exit code is 0 if every image can be read and 1 if one cannot."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is checked, and where the list goes."""

    manifest: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST")]
    """The manifest (.parquet)."""
    sample: int | None = None
    """Check so many images only, drawn at random."""
    out: Path | None = None
    """Table of the problems, if there are any (manifest.problems.csv beside the manifest by default)."""
    jobs: int | None = None
    """Images at a time (as many as there are cores)."""

    def __post_init__(self) -> None:
        for name in ("sample", "jobs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: give at least 1, or leave it out")


def main(arguments: list[str]) -> int:
    """Check the images and print what was found."""
    options = tyro.cli(Options, args=arguments, prog="dietcl data check", description=DESCRIPTION)

    index = open_manifest(options.manifest)
    rows = np.arange(len(index))
    if options.sample is not None and options.sample < len(rows):
        rows = np.sort(numpy_generator(0, index.hash, "check").choice(len(rows), options.sample, replace=False))
    console = Console(stderr=True)
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TextColumn("images"))
    clocks = (TimeElapsedColumn(), TimeRemainingColumn())
    problems: list[Problem] = []
    with Progress(*columns, *clocks, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=len(rows))
        for problem in find_problems(index, rows, options.jobs or cores(), lambda n: bars.update(bar, completed=n)):
            problems.append(problem)
    print(f"{options.manifest}: {len(rows):,} of {len(index):,} images looked at, {len(problems):,} cannot be read")
    for kind, count in Counter(problem.kind for problem in problems).most_common():
        print(f"  {count:,}  {kind}")
    for remark in remarks(index):
        print(remark)
    default = options.manifest.with_name(f"{options.manifest.stem}.problems.csv")
    if problems:
        print(f"listed in: {_write(problems, options.out or default)}")
    elif options.out is None and len(rows) == len(index):
        default.unlink(missing_ok=True)  # the problems of an earlier check are mended
    return 1 if problems else 0


def _write(problems: "list[Problem]", path: Path) -> Path:

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "row", "problem"), *problems])
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another --out") from None
    return path
