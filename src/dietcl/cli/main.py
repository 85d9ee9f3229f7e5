"""The command line: a table of verbs, each with its own file beside this one."""

import os
import sys
from typing import Any, NoReturn

from dietcl import __version__
from dietcl.cli.verbs import run_verb
from dietcl.errors import Lost, UserError
from dietcl.launch import ranks

VERBS = {
    "demo": "learn the built-in stream with Larder, DietCL and Replay, and show the result",
    "train": "learn a stream with a method under a budget",
    "predict": "classify images with the model of a run",
    "evaluate": "measure the model of a run on other images, by class",
    "compare": "learn a stream with many methods under the same budget, and show one table",
    "pretrain": "pre-train an encoder by reconstruction on any image set",
    "data": "make a stream of your own images: prepare, pack, check, stats, show",
    "streams": "list the built-in streams, or show the time steps of one",
    "methods": "list the methods",
    "encoders": "list the encoders at hand, and those that timm could fetch",
    "report": "write an HTML page and figures for one or several runs",
    "doctor": "check the installation, the device, precision, fonts and disk",
}

ABOUT = """Keeps an image classifier learning from a sparsely labeled stream
within a fixed amount of computation per time step."""

EXAMPLES = """examples:
  dietcl demo
  dietcl train --stream glyphs --method dietcl --budget 40
  dietcl data prepare photos/ --out data/photos
  dietcl train --stream photos/manifest.parquet --recipe time --label-rate 0.02 --method er --budget 2h
  dietcl predict runs/photos new/*.jpg
  dietcl compare --stream glyphs --methods all --seeds 1
  dietcl encoders 'vit_small*'
  dietcl report runs/*
  dietcl VERB --help"""


def main(argv: list[str] | None = None) -> int:
    """Run a verb; returns the exit code: 2 for what the user can fix, 1 for a lost process, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in ("-V", "--version"):
        print(f"dietcl {__version__}")
        return 0
    try:
        if arguments and arguments[0] in ("demo", "compare", "pretrain"):
            _refuse_several_processes(arguments[0])
        return run_verb(arguments, VERBS, ABOUT, EXAMPLES)
    except UserError as error:
        print(f"dietcl: {error}", file=sys.stderr)
        return 2
    except Lost as error:
        print(f"dietcl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dietcl: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output closed it; Python must not complain about that at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run() -> NoReturn:
    """Run a verb as the program does, and end the process with its exit code."""
    try:
        code: Any = main()
    except SystemExit as stop:
        code = stop.code
    if ranks()[1] > 1 and isinstance(code, int | None):
        # Of several processes one may be aborted by threads of torch.distributed that outlive it, after all is done.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)


def _refuse_several_processes(verb: str) -> None:
    rank, size, *_ = ranks()
    if rank:
        raise SystemExit(2)  # the first process prints the error
    if size > 1:
        raise UserError(f"dietcl {verb}: is for one process; only dietcl train is started by torchrun or srun")
