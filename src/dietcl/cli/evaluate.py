"""`dietcl evaluate`: measure the model of a run on other images, by class."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dietcl.checked_options import CheckedOptions, Valid
from dietcl.cli.config_options import parse
from dietcl.cli.progress import progress_bar
from dietcl.errors import UserError
from dietcl.execution import SIZE_ADVICE, Execution, is_size
from dietcl.plural import plural
from dietcl.report.confusion import Confusion

DESCRIPTION = """Measure the model of a run on the labeled images of a manifest: accuracy by class and what is confused.

Examples:
  dietcl evaluate runs/photos data/new-photos/manifest.parquet
  dietcl evaluate runs/photos data/photos/manifest.parquet --split train --out measured
  dietcl evaluate runs/photos data/new-photos/manifest.parquet --json

`dietcl data prepare` turns a folder or a table into a manifest. Writes evaluation.html and evaluation.json to --out."""

WORST = 10  # classes that the terminal shows


@dataclass(frozen=True, kw_only=True)
class Options(CheckedOptions):
    """The model, the images and the folder of the page."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = Path()
    """Folder of a finished run."""
    manifest: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MANIFEST", help_behavior_hint="")] = Path()
    """Manifest (.parquet) with labels."""
    split: Literal["auto", "train", "test", "all"] = "auto"
    """Images to measure on; auto: the test split, or all if that has no label."""
    out: Path | None = None
    """Folder of the page and the numbers (RUN/evaluation-NAME by default)."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int | None = None
    """CPU threads (all cores by default)."""
    cache_size: Annotated[str, Valid(is_size, SIZE_ADVICE)] = Execution.cache_size
    """Features of images that a frozen encoder computed, kept on disk for the next time; the oldest make room."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Measure the model, print the worst classes and write the page."""
    options = parse(Options(), arguments, "dietcl evaluate", DESCRIPTION)
    if not options.run.parts or not options.manifest.parts:
        raise UserError("evaluate: give the folder of a run, then a manifest; `dietcl evaluate --help` has examples")
    if options.manifest.suffix != ".parquet":
        advice = f"create one: dietcl data prepare {options.manifest}"
        raise UserError(f"{options.manifest}: is not a manifest (.parquet); {advice}")
    from dietcl.engine.device import set_threads
    from dietcl.measure import measure
    from dietcl.model import load_model
    from dietcl.report.evaluation import write_evaluation

    set_threads(options.threads)
    with progress_bar("classifying", "images") as update:
        model = load_model(options.run, options.device, cache_size=options.cache_size)
        found = measure(model, options.manifest, options.split, update)
    name = options.manifest.parent.name or options.manifest.stem
    run = options.run if options.run.is_dir() else options.run.parent  # or a file of the model
    out, title = options.out or run / f"evaluation-{name}", f"{run.resolve().name} on {name}"
    lede = f"{plural(found.confusion.total, f'labeled {found.confusion.noun}')} of {options.manifest}."
    page = write_evaluation(out, run, title, lede, found.confusion, found.examples)
    if options.json:
        print(json.dumps({"page": str(page), **found.confusion.as_json()}))
    else:
        _show(found.confusion)
        print(f"page: {page}")
    for sentence in found.unreadable:
        print(f"cannot be read, and left out: {sentence}", file=sys.stderr)
    if unknown := found.confusion.unknown_classes:
        names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        print(f"the model does not know {names}; their images count as wrong", file=sys.stderr)
    return 0


def _show(confusion: Confusion) -> None:
    images, chance = plural(confusion.total, confusion.noun), confusion.chance or 0.0
    numbers = (Column(title, justify="right") for title in ("right", "of"))
    print(f"{confusion.right:,} of {images} right ({confusion.accuracy:.1%}, chance {chance:.1%}); worst classes:")
    table = Table("class", *numbers, "most often taken for", box=None, pad_edge=False)
    for row in confusion.by_class()[:WORST]:
        taken = "" if row.taken_for is None else f"{row.taken_for.predicted} ({row.taken_for.count:,})"
        table.add_row(Text(row.name), f"{row.right:,}", f"{row.total:,}", Text(taken))
    Console().print(table)
