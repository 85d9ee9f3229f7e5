"""How soon help answers."""

import statistics
import subprocess
import sys
import time

from benchmarks.figure import Figure

COMMANDS = (["--help"], ["train", "--help"], ["train", "--method", "dietcl", "--help"], ["methods"], ["streams"])


def run(quick: bool) -> list[Figure]:
    """Take the median over several starts of every command."""
    starts = 5 if quick else 15
    figures = []
    for arguments in COMMANDS:
        times = []
        for _ in range(starts):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", "dietcl", *arguments], capture_output=True, check=True)
            times.append(time.perf_counter() - started)
        figures.append(Figure(f"dietcl {' '.join(arguments)}", statistics.median(times), "s", at_most=0.5))
    return figures
