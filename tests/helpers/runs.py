"""Short runs, in this process or by a command, and what they leave behind."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from dietcl.execution import Execution
from dietcl.run import execute

CLOCK = {"seconds", "data_wait"}


def nothing(t, fraction):
    """Take no note of progress."""


def run(config, folder, progress=nothing, notify=lambda sentence: None, **options):
    """Carry out a run on the CPU; that labels are hidden, which every run here says first, is left out."""

    def notify_rest(sentence):
        if "labels revealed" not in sentence:
            notify(sentence)

    execute(config, folder, Execution(device="cpu", **options), progress=progress, notify=notify_rest)


def outcome(folder):
    """Everything a run leaves behind, the time it took apart."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    arrays = {}
    for file in ("counts.npz", "confusion.npz", "samples.npz"):
        with np.load(folder / file) as content:
            arrays |= {f"{file}/{name}": content[name].tolist() for name in content}
    return {
        "weights": {n: (v.dtype, v.tolist()) for n, v in load_file(folder / "model.safetensors").items()},
        "arrays": arrays,
        "receipts": json.loads((folder / "receipts.json").read_text()),
        "events": [{name: value for name, value in event.items() if name not in CLOCK} for event in events],
    }


def interrupt(at_t, at_fraction):
    """Return a progress that breaks the run off."""

    def progress(t, fraction):
        if t == at_t and fraction >= at_fraction:
            raise KeyboardInterrupt

    return progress


def signal_at(number, at_t, at_fraction):
    """Return a progress that sends this process a signal, once."""
    sent = []

    def progress(t, fraction):
        if t == at_t and fraction >= at_fraction and not sent:
            sent.append(True)
            os.kill(os.getpid(), number)

    return progress


def small(manifest: Path, *more: str) -> list[str]:
    """Options of a run that takes seconds."""
    recipe = ["--time-steps", "3", "--label-rate", "0.2"]
    model = ["--preset", "micro", "--image-size", "16", "--decoder-dim", "16", "--weights", "random"]
    return ["--stream", str(manifest), *recipe, *model, "--batch", "12", "--micro-batch", "6", "--budget", "2", *more]


@dataclass(frozen=True)
class Said:
    """What a command ended with."""

    code: int
    out: str
    err: str
