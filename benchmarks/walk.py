"""How far a reader walks through the code in one joint update of DietCL: calls, and switches from file to file."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.figure import Figure
from dietcl.config_builder import build_config
from dietcl.engine.learner import Equipment, assemble
from dietcl.engine.loop import advance
from dietcl.engine.option_search import NullRecorder
from dietcl.run import stream_of

PACKAGE = "dietcl"
UPDATES = 3  # of the second time step, of which the last is watched: the first builds the optimizer
BEFORE = 200  # switches at the version before the layers were drawn


def run(quick: bool) -> list[Figure]:
    """Watch one update of two micro-batches."""
    config = build_config("glyphs", "dietcl", batch=16, micro_batch=8, budget=8, label_rate=0.05, test_images=20)
    stream, index = stream_of(config)
    learner = assemble(config, stream, Equipment(index), NullRecorder())
    moments = advance(learner)
    done = 0
    while done < UPDATES - 1:
        moment = next(moments)
        done += moment == "update" and learner.position.finished == 1
    watch = _Watch()
    sys.setprofile(watch)
    next(moments)
    sys.setprofile(None)
    return [
        Figure("joint update of DietCL: calls of the project's functions", watch.calls, "calls"),
        Figure("joint update of DietCL: switches between files", watch.switches, "switches", at_most=BEFORE / 2),
        Figure("joint update of DietCL: files entered", len(watch.files), "files"),
    ]


class _Watch:
    """Counts calls of the project's functions and how often the next one is in another file."""

    def __init__(self) -> None:
        self.calls = self.switches = 0
        self.files: set[str] = set()
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or PACKAGE not in Path(file).parts:
            return
        self.calls += 1
        self.switches += bool(self._last) and file != self._last
        self.files.add(file)
        self._last = file
