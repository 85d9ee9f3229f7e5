"""`dietcl predict`: classify images with the model of a run."""

import csv
import glob
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dietcl.checked_options import CheckedOptions, Count, Valid
from dietcl.cli.config_options import parse
from dietcl.cli.progress import progress_bar
from dietcl.errors import UserError
from dietcl.execution import SIZE_ADVICE, Execution, is_size
from dietcl.plural import plural
from dietcl.streams.decode import Unreadable
from dietcl.streams.options import IMAGE_SUFFIXES

if TYPE_CHECKING:
    from dietcl.model import Model

DESCRIPTION = """Classify images with the model of a run: class names and probabilities.

Examples:
  dietcl predict runs/photos new/cat.jpg
  dietcl predict runs/photos new/ 'more/*.png' --top 3
  dietcl predict runs/photos new/ --csv > answers.csv
  find new -name '*.jpg' | dietcl predict runs/photos - --json
  dietcl predict runs/photos https://example.org/cat.jpg

PATHS are files, folders (searched for images), patterns, https addresses, or - for a list on standard input, one a
line. Images that cannot be read are listed in the end and do not stop the others."""


@dataclass(frozen=True, kw_only=True)
class Options(CheckedOptions):
    """The model, the images and how the answers are printed."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = Path()
    """Folder of a finished run."""
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS", help_behavior_hint="")] = ()
    """Images to classify."""
    top: Count = 1
    """How many of the most probable classes to print."""
    json: bool = False
    """Print one JSON object a line."""
    csv: bool = False
    """Print CSV with a header."""
    batch: Count = 64
    """Images classified at a time."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int | None = None
    """CPU threads (all cores by default)."""
    cache_size: Annotated[str, Valid(is_size, SIZE_ADVICE)] = Execution.cache_size
    """Features of images that a frozen encoder computed, kept on disk for the next time; the oldest make room."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.json and self.csv:
            raise UserError("--json --csv: give one of them")


def main(arguments: list[str]) -> int:
    """Classify the images and print what they are."""
    options = parse(Options(), arguments, "dietcl predict", DESCRIPTION)
    if not options.run.parts:
        raise UserError("predict: give the folder of a run, then the images; `dietcl predict --help` has examples")
    if not options.paths:
        raise UserError(f"predict {options.run}: give images to classify: files, folders, patterns, or - for a list")
    from dietcl.engine.device import set_threads
    from dietcl.model import load_model

    images = list(find_images(options.paths))
    set_threads(options.threads)
    model = load_model(options.run, options.device, cache_size=options.cache_size)
    broken = _print_answers(model, images, options)
    if broken:
        print(f"{len(broken)} of {plural(len(images), 'image')} could not be read:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in broken), file=sys.stderr)
    return 2 if len(broken) == len(images) else 0


def _print_answers(model: "Model", images: list[str], options: Options) -> list[str]:
    """Print JSON or CSV image by image, or a table at the end; returns the images that cannot be read, and why."""
    top = min(options.top, len(model.classes))
    titles = ["image", "class", *(f"{i}." for i in range(2, top + 1))]
    table = Table(*(Column(title, overflow="fold") for title in titles), box=box.SIMPLE_HEAD, pad_edge=False)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if options.csv:
        numbers = [""] if top == 1 else [f"_{i}" for i in range(1, top + 1)]
        writer.writerow(["file", *(f"{name}{i}" for i in numbers for name in ("class", "probability")), "error"])
    broken = []
    with progress_bar("classifying", "images", len(images)) as update:
        for number, (_, answer) in enumerate(model.iterate(images, options.top, options.batch)):
            image, error, pairs = images[number], "", []
            if isinstance(answer, Unreadable):
                error = str(answer)
                broken.append(f"{image}: {error}")
            else:
                pairs = list(zip(answer.classes, answer.probabilities, strict=True))
            if options.json:
                classes = [{"class": name, "probability": share} for name, share in pairs]
                found = {"error": error} if error else {"classes": classes}
                print(json.dumps({"file": image, **found}, ensure_ascii=False))
            elif options.csv:
                values = [value for name, share in pairs for value in (name, f"{share:.6f}")]
                writer.writerow([image, *(values or [""] * 2 * top), error])
            elif not error:
                table.add_row(*map(Text, (image, *(f"{name} {share:.1%}" for name, share in pairs))))
            update(number + 1)
    if table.row_count:
        console = Console() if sys.stdout.isatty() else Console(width=200)
        console.print(table)
    return broken


def find_images(paths: Sequence[str]) -> Iterator[str]:
    """Yield the images that some files, folders, patterns, addresses or a list on standard input name."""
    from dietcl.streams.image_input import is_address

    for text in paths:
        path = Path(text)
        if text == "-":
            listed = [line for line in map(str.strip, sys.stdin) if line]
            if not listed:
                raise UserError("-: the list on standard input is empty; give it a path or an address a line")
            yield from listed
        elif is_address(text) or path.is_file():
            yield text
        elif path.is_dir():
            files = (file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
            found = sorted(map(str, files))
            if not found:
                raise UserError(f"{text}: the folder holds no image; its files must end in .jpg, .png or the like")
            yield from found
        else:
            found = sorted(name for name in glob.glob(text, recursive=True) if Path(name).is_file())
            if not found:
                raise UserError(f"{text}: no such file, folder or pattern; is the path right?")
            yield from found
