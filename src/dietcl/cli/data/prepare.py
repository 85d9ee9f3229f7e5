"""`dietcl data prepare`: turn images, wherever they are, into a manifest."""

import argparse
import contextlib
import difflib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dietcl.cli.config_options import gather, parse
from dietcl.cli.data import flags, take_first
from dietcl.cli.data.replace_folder import replaced
from dietcl.errors import UserError, reason
from dietcl.plural import plural
from dietcl.streams.filesystem import is_remote
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import SPLITS, read_facts
from dietcl.streams.quarantine import QUARANTINE
from dietcl.streams.sources.registry import READERS, locate, prepare, recognize
from dietcl.streams.times import format_spans
from dietcl.streams.verify import remarks

if TYPE_CHECKING:
    from dietcl.streams.index import Index
    from dietcl.streams.sources.reader import Reader
    from dietcl.streams.sources.registry import Prepared

DESCRIPTION = """Turn a folder, a file or an address of images into a manifest; image files stay where they are.

Examples:
  dietcl data prepare photos/
  dietcl data prepare photos/ --out data/photos --test-share 0.2
  dietcl data prepare s3://bucket/photos --kind folder --out data/photos --verify none

PATH comes first: a folder, a file or an address that fsspec reaches (s3://, gs://, hf://). What cannot be used is left
out and listed in quarantine.csv. The kind of data is recognized, or named by --kind, and decides which further options
there are; name it, or PATH, and ask for --help again:"""

PROGRAM = "dietcl data prepare PATH [--kind KIND]"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the manifest goes, and how carefully it is made."""

    out: Path | None = None
    """Folder of the manifest (data/NAME by default, with the last part of PATH)."""
    verify: Literal["decode", "none"] = "decode"
    """decode: read and decode every image; none: trust them, which is quick."""
    fresh: bool = False
    """Replace the manifest that is there, and what was made with it."""
    check: bool = False
    """Afterwards, check the counts against the published ones (as dietcl data stats --check auto)."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Find the kind, parse its options, prepare the data and say what came of it."""
    path, rest = take_first(arguments, flags(Options, *READERS.values()))
    kind, rest = _take_kind(rest)
    description = "\n".join([DESCRIPTION, *(f"  {name:<17}{_summary(reader)}" for name, reader in READERS.items())])
    if not path and not kind and {"-h", "--help"} & set(rest):
        parse(Options(), ["--help"], PROGRAM, description)
    reader = _named(kind, READERS) if kind else _recognized(path)
    required = any(field.default is field.default_factory is MISSING for field in fields(reader))  # type: ignore[arg-type]
    own = tyro.MISSING_NONPROP if required else reader()
    flat = tyro.conf.arg(name="")
    options: Any = parse(
        gather(("reader", Annotated[reader, flat], own), ("options", Annotated[Options, flat], Options())),
        rest,
        PROGRAM,
        description,
    )
    if not path:
        raise UserError("data prepare: there is no PATH; give a folder, a file or an address of images first")
    return _prepare(options.reader, path, options.options)


def _take_kind(arguments: list[str]) -> tuple[str, list[str]]:

    parser = argparse.ArgumentParser(prog="dietcl data prepare", add_help=False, allow_abbrev=False)
    parser.add_argument("--kind", default="")
    found, rest = parser.parse_known_args(arguments)
    return found.kind, rest


def _summary(reader: "type[Reader]") -> str:
    return (reader.__doc__ or "").strip().partition("\n")[0]


def _named(kind: str, readers: Any) -> "type[Reader]":
    if kind not in readers:
        near = difflib.get_close_matches(kind, readers, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(readers)}"
        raise UserError(f"--kind {kind}: no such kind of data; {hint}")
    chosen: type[Reader] = readers[kind]
    return chosen


def _recognized(path: str) -> "type[Reader]":

    if not path:
        raise UserError("data prepare: there is no PATH; give a folder, a file or an address of images first")
    with _reachable(path):
        return recognize(*locate(path))


@contextlib.contextmanager
def _reachable(path: str) -> Iterator[None]:
    """Make a sentence of what file systems, near and far, raise when something cannot be reached."""
    try:
        yield
    except UserError:
        raise
    except UnicodeEncodeError as error:
        raise UserError(f"{path}: a name in there is not UTF-8 ({str(error.object)[:80]!r}); rename it") from None
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            path = str(error.filename)
        elif not is_remote(path) and not isinstance(error, OSError):
            raise
        words = (
            "is the address right, and may you read it?"
            if is_remote(path)
            else "make room there, or give yourself the right"
        )
        raise UserError(f"{path}: cannot be reached ({reason(error)}); {words}") from None


def _prepare(reader: "Reader", path: str, options: Options) -> int:

    with _reachable(path):
        file_root, name = locate(path)
    out = options.out or Path("data") / _title(file_root.path(name) if name else file_root.root, is_file=bool(name))
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("images"))
    bars = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    with _reachable(path), replaced(out, path, options.fresh), bars:
        bar = bars.add_task("reading" if options.verify == "none" else "decoding", total=None)

        def advance(done: int, total: int | None) -> None:
            bars.update(bar, completed=done, total=total)

        prepared = prepare(reader, path, out, options.verify, advance)
    facts = _facts(reader, prepared)
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        _show(facts)
    if not options.check:
        return 0

    # What follows JSON on the same channel would spoil it.
    with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
        code: int = import_module("dietcl.cli.data.stats").main([str(prepared.manifest), "--check", "auto"])
    return code


def _title(path: str, is_file: bool) -> str:
    """Return the last part of a path, fit for the name of a folder."""
    name = path.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^\w.-]+", "-", name.partition(".")[0] or name if is_file else name).strip("-.")
    return name or "images"


def _facts(reader: "Reader", prepared: "Prepared") -> dict[str, Any]:
    """Return what came of it as plain values."""
    index = open_manifest(prepared.manifest)
    return {
        "manifest": str(prepared.manifest),
        "kind": reader.name,
        "images": prepared.kept,
        **counts(index),
        "remarks": remarks(index),
        "problems": dict(sorted(prepared.problems.items(), key=lambda entry: -entry[1])),
        "quarantine": str(prepared.manifest.with_name(QUARANTINE)),
        "hash": index.hash,
        "says": asdict(read_facts(prepared.manifest)),
    }


def counts(index: "Index") -> dict[str, Any]:
    """Return how many images a manifest has of what, and from when to when."""
    of_split = np.bincount(index.split, minlength=len(SPLITS)).tolist()
    times = index.time[~np.isnan(index.time)]
    return {
        **dict(zip(SPLITS, of_split, strict=True)),
        "labeled": int((index.label >= 0).sum()),
        "labeled_test": int((index.label[index.split == SPLITS.index("test")] >= 0).sum()),
        "classes": len(index.classes),
        "time": [float(times.min()), float(times.max())] if len(times) else None,
        "timed": len(times),
    }


def _show(facts: dict[str, Any]) -> None:

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("images kept", Text(f"{facts['images']:,} ({facts['kind']})"))
    table.add_row("train, test", f"{facts['train']:,}, {facts['test']:,}{_uncounted(facts)}")
    table.add_row("classes", _of(facts["classes"], facts["labeled"], facts["images"], "label"))
    times = facts["time"]
    table.add_row("time", _of(format_spans([times])[0], facts["timed"], facts["images"], "time") if times else "none")
    table.add_row("stream", _cut(facts["says"]))
    left_out = sum(facts["problems"].values())
    table.add_row("left out", f"{left_out:,}" if left_out else "nothing")
    for problem, count in facts["problems"].items():
        table.add_row("", Text(f"{count:,}  {problem}"))
    console = Console(highlight=False)
    console.print(table)
    manifest = facts["manifest"]
    lines = [f"listed in: {facts['quarantine']}"] if left_out else []
    stream = shlex.quote(manifest)
    lines += facts["remarks"]
    verb = "train" if facts["labeled"] else "pretrain"
    lines += [f"manifest: {manifest}", f"next: dietcl data show {stream}", f"      dietcl {verb} --stream {stream}"]
    console.print("\n".join(lines), soft_wrap=True, markup=False)


_CUTS = {
    "count": " of equal count",
    "duration": " of equal duration",
    "value": ", one per distinct time",
    "day": ", one per day",
}


def _uncounted(facts: dict[str, Any]) -> str:
    """Say how many test images count, if some do not."""
    counted = facts["labeled_test"]
    return "" if counted == facts["test"] else f" ({counted:,} of them count, as the others have no label)"


def _cut(says: dict[str, Any]) -> str:
    """Say how the stream is cut unless the user says otherwise."""
    steps = f"{says['time_steps']:,} time step{'s' if says['time_steps'] > 1 else ''}"
    cut = _CUTS[says["cut"]] if says["recipe"] == "time" else ""
    labels = "all labels" if says["label_rate"] == 1 else f"{says['label_rate']:.2%} of the labels"
    return f"by {says['recipe']}, {steps}{cut}, {labels} revealed"


def _of(what: Any, known: int, count: int, name: str) -> str:
    text = f"{what:,}" if isinstance(what, int) else str(what)
    return text if known == count else f"{text} ({plural(count - known, 'image')} without a {name})"
