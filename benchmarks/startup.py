"""How soon `import dietcl`, help and the prediction of one image answer from the shell."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import dietcl
from benchmarks.figure import Figure

HELP = (["--help"], ["train", "--help"], ["train", "--method", "dietcl", "--help"], ["methods"], ["streams"])
IMPORT = "import sys, dietcl; assert 'torch' not in sys.modules"


def run(quick: bool) -> list[Figure]:
    """Take the median over several starts of every command."""
    starts = 5 if quick else 15
    bare = _seconds(["-c", ""], starts)
    figures = [
        Figure("python, doing nothing", bare, "s"),
        Figure("import dietcl", _seconds(["-c", IMPORT], starts) - bare, "s", at_most=0.3),
    ]
    for arguments in HELP:
        seconds = _seconds(["-m", "dietcl", *arguments], starts)
        figures.append(
            Figure(f"dietcl {' '.join(arguments)}", seconds, "s", at_most=0.3 if len(arguments) == 1 else 0.5)
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dietcl.train("glyphs", "ncm", preset="micro", budget=2, time_steps=1, test_images=20, out=folder / "run")
        Image.new("RGB", (640, 480), "olive").save(folder / "image.jpg")
        predict = ["-m", "dietcl", "predict", str(folder / "run"), str(folder / "image.jpg")]
        seconds = _seconds(predict, max(3, starts // 3))
        figures.append(Figure("dietcl predict, one image, micro", seconds, "s", at_most=3.0))
    return figures


def _seconds(arguments: Sequence[str], starts: int) -> float:
    times = []
    for _ in range(starts):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
