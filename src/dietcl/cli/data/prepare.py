"""`dietcl data prepare`: turn images, wherever they are, into a manifest."""

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dietcl.cli.config_options import FLAT, flags, flat, gather, parse, pick, take_first
from dietcl.cli.data.replace_folder import replaced
from dietcl.cli.progress import progress_bar
from dietcl.cli.verbs import hint
from dietcl.errors import UserError, reason
from dietcl.plural import plural
from dietcl.streams.filesystem import is_remote
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import SPLITS, read_facts
from dietcl.streams.quarantine import QUARANTINE
from dietcl.streams.sources.reader import Reader
from dietcl.streams.sources.registry import READERS, Prepared, locate, prepare, recognize
from dietcl.streams.times import format_spans
from dietcl.streams.verify import remarks

DESCRIPTION = """Turn a folder, a file or an address of images into a manifest; image files stay where they are.

Examples:
  dietcl data prepare photos/
  dietcl data prepare photos/ --out data/photos --test-share 0.2
  dietcl data prepare s3://bucket/photos --kind folder --out data/photos --verify none

PATH comes first: a folder, a file or an address that fsspec can read (s3://, gs://, hf://). What cannot be used is left
out and listed in quarantine.csv. The kind of data is recognized, or named by --kind, and decides which further options
there are; name it, or PATH, and ask for --help again:"""

PROGRAM = "dietcl data prepare PATH [--kind KIND]"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The folder of the manifest, and how carefully the data is checked."""

    out: Path | None = None
    """Folder of the manifest (data/NAME by default, with the last part of PATH)."""
    verify: Literal["decode", "none"] = "decode"
    """decode: read and decode every image; none: trust them, which is quick."""
    fresh: bool = False
    """Replace the manifest that is there, and the files that were written with it."""
    check: bool = False
    """Afterwards, check the counts against the published ones (as dietcl data stats --check auto)."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Find the kind, parse its options, prepare the data and print the result."""
    path, rest = take_first(arguments, flags(Options, *READERS.values()))
    choices, rest = pick(rest, kind="")
    if not path and not {"-h", "--help"} & set(rest):
        raise UserError("data prepare: there is no PATH; give a folder, a file or an address of images first")
    own = []
    if path or choices.kind:
        reader = _reader(path, choices.kind)
        required = any(field.default is field.default_factory is MISSING for field in fields(reader))  # type: ignore[arg-type]
        own = [("reader", Annotated[reader, FLAT], tyro.MISSING_NONPROP if required else reader())]
    summaries = {name: (reader.__doc__ or "").strip().partition("\n")[0] for name, reader in READERS.items()}
    description = "\n".join([DESCRIPTION, *(f"  {name:<17}{summary}" for name, summary in summaries.items())])
    parsed = parse(gather(*own, flat("options", Options())), rest, PROGRAM, description)
    return _prepare(parsed.reader, path, parsed.options)


def _reader(path: str, kind: str) -> type[Reader]:
    """Return the reader of a kind of data, or the one that recognizes a path."""
    if not kind:
        with _file_errors(path):
            return recognize(*locate(path))
    if kind not in READERS:
        raise UserError(f"--kind {kind}: no such kind of data; {hint(kind, READERS)}")
    return READERS[kind]


@contextlib.contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Turn what local and remote file systems raise into one sentence."""
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
        remote, local = "check the address and the permissions", "check the free space and the permissions"
        advice = remote if is_remote(path) else local
        raise UserError(f"{path}: cannot be reached ({reason(error)}); {advice}") from None


def _prepare(reader: Reader, path: str, options: Options) -> int:
    with _file_errors(path):
        file_root, name = locate(path)
    out = options.out or Path("data") / _title(file_root.path(name) if name else file_root.root, is_file=bool(name))
    bar = progress_bar("reading" if options.verify == "none" else "decoding", "images")
    with _file_errors(path), replaced(out, path, options.fresh), bar as update:
        prepared = prepare(reader, path, out, options.verify, update)
    facts = _facts(reader, prepared)
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        _show(facts)
    if not options.check:
        return 0
    # Standard output holds JSON and nothing else.
    with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
        code: int = import_module("dietcl.cli.data.stats").main([str(prepared.manifest), "--check", "auto"])
    return code


def _title(path: str, is_file: bool) -> str:
    """Return the last part of a path, fit for the name of a folder."""
    name = path.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^\w.-]+", "-", name.partition(".")[0] or name if is_file else name).strip("-.")
    return name or "images"


def _facts(reader: Reader, prepared: Prepared) -> dict[str, Any]:
    """Return the result as plain values."""
    index = open_manifest(prepared.manifest)
    of_split = np.bincount(index.split, minlength=len(SPLITS)).tolist()
    times = index.time[~np.isnan(index.time)]
    return {
        "manifest": str(prepared.manifest),
        "kind": reader.name,
        "images": prepared.kept,
        **dict(zip(SPLITS, of_split, strict=True)),
        "labeled": int((index.label >= 0).sum()),
        "labeled_test": int((index.label[index.split == SPLITS.index("test")] >= 0).sum()),
        "classes": len(index.classes),
        "time": [float(times.min()), float(times.max())] if len(times) else None,
        "timed": len(times),
        "remarks": remarks(index),
        "problems": dict(sorted(prepared.problems.items(), key=lambda entry: -entry[1])),
        "quarantine": str(prepared.manifest.with_name(QUARANTINE)),
        "hash": index.hash,
        "defaults": asdict(read_facts(prepared.manifest)),
    }


def _show(facts: dict[str, Any]) -> None:
    images, test, counted, times = (facts[name] for name in ("images", "test", "labeled_test", "time"))
    uncounted = "" if counted == test else f" ({counted:,} of them count, as the others have no label)"
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("images kept", Text(f"{images:,} ({facts['kind']})"))
    table.add_row("train, test", f"{facts['train']:,}, {test:,}{uncounted}")
    table.add_row("classes", f"{facts['classes']:,}{_without('label', images - facts['labeled'])}")
    span = f"{format_spans([times])[0]}{_without('time', images - facts['timed'])}" if times else "none"
    table.add_row("time", span)
    table.add_row("stream", _cut(facts["defaults"]))
    left_out = sum(facts["problems"].values())
    table.add_row("left out", f"{left_out:,}" if left_out else "nothing")
    for problem, count in facts["problems"].items():
        table.add_row("", Text(f"{count:,}  {problem}"))
    Console(highlight=False).print(table)
    stream, verb = shlex.quote(facts["manifest"]), "train" if facts["labeled"] else "pretrain"
    lines = [f"listed in: {facts['quarantine']}"] if left_out else []
    lines += [*facts["remarks"], f"manifest: {facts['manifest']}"]
    lines += [f"next: dietcl data show {stream}", f"      dietcl {verb} --stream {stream}"]
    print("\n".join(lines))


def _without(what: str, count: int) -> str:
    return f" ({plural(count, 'image')} without a {what})" if count else ""


_CUTS = {
    "count": " of equal count",
    "duration": " of equal duration",
    "value": ", one per distinct time",
    "day": ", one per day",
}


def _cut(facts: dict[str, Any]) -> str:
    """Describe how the stream is cut by default."""
    cut = _CUTS[facts["cut"]] if facts["recipe"] == "time" else ""
    labels = "all labels" if facts["label_rate"] == 1 else f"{facts['label_rate']:.2%} of the labels"
    return f"by {facts['recipe']}, {plural(facts['time_steps'], 'time step')}{cut}, {labels} revealed"
