"""`dietcl predict`: classify images with the model of a run."""

import csv
import glob
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dietcl.cli.config_options import parse
from dietcl.errors import UserError
from dietcl.streams.decode import Unreadable
from dietcl.streams.options import IMAGE_SUFFIXES

if TYPE_CHECKING:
    from dietcl.model import Prediction

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
class Options:
    """Which model classifies which images, and how the answers are printed."""

    run: Annotated[Path, tyro.conf.Positional] = Path()
    """Folder of a finished run."""
    paths: Annotated[tuple[str, ...], tyro.conf.Positional] = field(default=())
    """Images to classify."""
    top: int = 1
    """How many of the most probable classes to print."""
    json: bool = False
    """Print one JSON object a line."""
    csv: bool = False
    """Print CSV with a header."""
    batch: int = 64
    """Images classified at a time."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int | None = None
    """CPU threads (all cores by default)."""

    def __post_init__(self) -> None:
        for name in ("top", "batch"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: give at least 1")
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
    model = load_model(options.run, options.device)
    writer = _Writer(options, min(options.top, len(model.classes)))
    broken = []
    for image, answer in _with_progress(model.iterate(images, options.top, options.batch), len(images)):
        if isinstance(answer, Unreadable):
            broken.append(f"{image}: {answer}")
            writer.add(image, None, str(answer))
        else:
            writer.add(image, answer, "")
    writer.close()
    if broken:
        print(f"{len(broken)} of {len(images)} images could not be read:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in broken), file=sys.stderr)
    return 2 if len(broken) == len(images) else 0


def find_images(paths: Sequence[str]) -> Iterator[str]:
    """Yield the images that some files, folders, patterns, addresses or a list on standard input name."""
    from dietcl.streams.image_input import is_address

    for text in paths:
        path = Path(text)
        if text == "-":
            yield from (line for line in map(str.strip, sys.stdin) if line)
        elif is_address(text) or path.is_file():
            yield text
        elif path.is_dir():
            found = sorted(
                str(file) for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
            )
            if not found:
                raise UserError(f"{text}: the folder holds no image; its files must end in .jpg, .png or the like")
            yield from found
        else:
            found = sorted(name for name in glob.glob(text, recursive=True) if Path(name).is_file())
            if not found:
                raise UserError(f"{text}: no such file, folder or pattern; is the path right?")
            yield from found


def _with_progress(answers: Iterator[Any], total: int) -> Iterator[Any]:

    console = Console(stderr=True)
    columns = (TextColumn("classifying"), BarColumn(), MofNCompleteColumn(), TextColumn("images"))
    bars = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    with bars:
        bar = bars.add_task("", total=total)
        for answer in answers:
            yield answer
            bars.advance(bar)


class _Writer:
    """Prints answers as JSON lines or CSV while they come, or as a table in the end."""

    def __init__(self, options: Options, top: int) -> None:
        self._json, self._top = options.json, top
        self._rows: list[tuple[str, ...]] = []
        self._csv = csv.writer(sys.stdout, lineterminator="\n") if options.csv else None
        if self._csv is not None:
            numbers = [""] if top == 1 else [f"_{i}" for i in range(1, top + 1)]
            names = [f"{name}{number}" for number in numbers for name in ("class", "probability")]
            self._csv.writerow(["file", *names, "error"])

    def add(self, image: str, answer: "Prediction | None", error: str) -> None:
        """Print one answer, or keep it for the table."""
        pairs = [] if answer is None else list(zip(answer.classes, answer.probabilities, strict=True))
        if self._json:
            found: dict[str, Any] = {"file": image}
            found |= (
                {"error": error} if answer is None else {"classes": [{"class": n, "probability": p} for n, p in pairs]}
            )
            print(json.dumps(found, ensure_ascii=False))
        elif self._csv is not None:
            values = [value for name, share in pairs for value in (name, f"{share:.6f}")]
            self._csv.writerow([image, *(values or [""] * 2 * self._top), error])
        elif answer is not None:
            self._rows.append((image, *(f"{name} {share:.1%}" for name, share in pairs)))

    def close(self) -> None:
        """Print the table, unless the answers were printed as they came."""
        if not self._rows:
            return

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("image", overflow="fold")
        for i in range(self._top):
            table.add_column("class" if i == 0 else f"{i + 1}.", overflow="fold")
        for row in self._rows:
            table.add_row(*map(Text, row))
        console = Console() if sys.stdout.isatty() else Console(width=200)
        console.print(table)
