"""`dietcl data`: everything between a heap of images and a stream, a table of verbs with a file each."""

import difflib
import importlib
import re
from collections.abc import Collection
from typing import get_type_hints

from dietcl.errors import UserError

VERBS = {
    "prepare": "turn a folder, a table, an archive or a known dataset into a manifest",
    "pack": "copy the images of a manifest, made smaller, into files that are quick to read",
    "check": "read and decode every image of a manifest, and list those that cannot be",
    "stats": "count classes, images and labels along a stream, against published numbers if wanted",
    "show": "draw a contact sheet of a stream, its label rate and its classes",
}

EXAMPLES = """Examples:
  dietcl data prepare photos/ --out data/photos
  dietcl data check data/photos/manifest.parquet
  dietcl data show data/photos/manifest.parquet --recipe time --time-steps 10
  dietcl data VERB --help"""


def main(arguments: list[str]) -> int:
    """Run one of the verbs."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    verb = arguments[0]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(VERBS)}"
        raise UserError(f"data {verb}: no such verb; {hint}")
    run = importlib.import_module(f"dietcl.cli.data.{verb}").main
    code: int = run(arguments[1:])
    return code


def take_first(arguments: list[str], flags: Collection[str]) -> tuple[str, list[str]]:
    """Take the one argument that is no option nor an option's value out of the arguments; empty if there is none.

    `flags` are the options that have no value. PATH must be known before the options are, as it decides which there
    are.
    """
    found, rest, is_value = "", [], False
    for argument in arguments:
        if re.match(r"--?[A-Za-z]", argument):
            is_value = "=" not in argument and argument.replace("_", "-") not in flags
        elif not is_value and not found:
            found = argument
            continue
        else:
            is_value = False
        rest.append(argument)
    return found, rest


def flags(*options: type) -> set[str]:
    """Return how the options without a value that some classes of options have are written."""
    names = [name for kind in options for name, type in get_type_hints(kind).items() if type is bool]
    words = [name.replace("_", "-") for name in names]
    return {"-h", "--help", *(f"--{word}" for word in words), *(f"--no-{word}" for word in words)}


def _help() -> str:
    verbs = "\n".join(f"  {name:<10}{summary}" for name, summary in VERBS.items())
    return f"usage: dietcl data VERB [options]\n\nMakes streams of your own images.\n\nverbs:\n{verbs}\n\n{EXAMPLES}"
