"""`dietcl data check`: read and decode every image of a manifest."""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from dietcl.checked_options import CheckedOptions, Limit
from dietcl.cli.progress import progress_bar
from dietcl.errors import UserError
from dietcl.launch import cores
from dietcl.rng import numpy_generator
from dietcl.streams.index import open_manifest
from dietcl.streams.verify import Problem, find_problems, remarks

DESCRIPTION = """Read and decode every image of a manifest; list the unreadable ones and what the manifest lacks.

Examples:
  dietcl data check data/photos/manifest.parquet
  dietcl data check data/photos/manifest.parquet --sample 10000
  dietcl data check data/photos/manifest.parquet --out problems.csv --jobs 8

The exit code is 0 if every image can be read and 1 if one cannot."""


@dataclass(frozen=True, kw_only=True)
class Options(CheckedOptions):
    """What is checked, and the table of the problems."""

    manifest: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST")]
    """The manifest (.parquet)."""
    sample: Limit = None
    """Check only this many images, drawn at random."""
    out: Path | None = None
    """Table of the problems, if there are any (manifest.problems.csv beside the manifest by default)."""
    jobs: Limit = None
    """Images at a time (as many as there are cores)."""


def main(arguments: list[str]) -> int:
    """Check the images and print what was found."""
    options = tyro.cli(Options, args=arguments, prog="dietcl data check", description=DESCRIPTION)
    index = open_manifest(options.manifest)
    rows = np.arange(len(index))
    if options.sample is not None and options.sample < len(rows):
        rows = np.sort(numpy_generator(0, index.hash, "check").choice(len(rows), options.sample, replace=False))
    with progress_bar("decoding", "images", len(rows)) as update:
        problems = list(find_problems(index, rows, options.jobs or cores(), update))
    print(f"{options.manifest}: images read: {len(rows):,} of {len(index):,}, unreadable: {len(problems):,}")
    for kind, count in Counter(problem.kind for problem in problems).most_common():
        print(f"  {count:,}  {kind}")
    for remark in remarks(index):
        print(remark)
    default = options.manifest.with_name(f"{options.manifest.stem}.problems.csv")
    if problems:
        out = options.out or default
        _write(problems, out)
        print(f"listed in: {out}")
    elif options.out is None and len(rows) == len(index):
        default.unlink(missing_ok=True)  # it lists problems that an earlier check found
    return 1 if problems else 0


def _write(problems: list[Problem], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("file", "row", "problem"), *problems])
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another --out") from None
