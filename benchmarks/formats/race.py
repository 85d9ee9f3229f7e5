"""What the measurements share: formats, contenders that take turns, and packages that may be missing."""

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from benchmarks.figure import Figure

SIDE = 224
AT_ONCE = 64
INSTALL = {
    "lance": "pylance",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "kornia_rs": "kornia-rs",
    "torchvision.io": "a torchvision that was built for the same torch",
}
Work = Callable[[], int]  # does something to some images and says to how many
Item = TypeVar("Item")


@dataclass(frozen=True)
class Format:
    """A way to store encoded images: how it is written, and how images are read back by number."""

    write: Callable[[Path, list[bytes]], None]
    open: Callable[[Path], "Reader"]


@dataclass(frozen=True)
class Reader:
    """How images come back: one by number, many at once, or (`walk`) only in the order that the format has."""

    one: Callable[[int], bytes] | None = None
    many: Callable[[npt.NDArray[np.int64]], list[bytes]] | None = None
    walk: Callable[[], Iterator[bytes]] | None = None


@dataclass
class Race:
    """Contenders in turn, in another order every round, and the median time of each.

    Time is the processor's, of all threads: what others do on the machine meanwhile is not counted.
    """

    contenders: Mapping[str, Work]
    clock: Callable[[], float] = time.process_time
    times: dict[str, list[float]] = field(default_factory=dict)

    def run(self, rounds: int) -> "Race":
        """Run every contender `rounds` times, after one time that does not count."""
        generator = np.random.default_rng(0)
        names = list(self.contenders)
        for round_ in range(rounds + 1):
            for name in generator.permutation(names).tolist():
                started = self.clock()
                done = self.contenders[name]()
                taken = (self.clock() - started) / done
                if round_:
                    self.times.setdefault(name, []).append(taken)
        return self

    def seconds(self, name: str) -> float:
        """Return the median time of an image."""
        return statistics.median(self.times[name])

    def figures(self, title: str, reference: str, unit: str = "images/s") -> list[Figure]:
        """Return everybody's speed, its ratio to the reference's, and how far rounds of the reference lie apart."""
        found = []
        for name in self.contenders:
            seconds = self.seconds(name)
            value = 1 / seconds if unit == "images/s" else 1e3 * seconds
            found.append(Figure(f"{title}: {name}", value, unit))
            if name != reference:
                # Above 1: faster than the reference, whatever the unit.
                found.append(Figure(f"{title}: {name} over {reference}", self.seconds(reference) / seconds, "x"))
        low, _, high = statistics.quantiles(self.times[reference], n=4)
        return [*found, Figure(f"{title}: noise, upper over lower quartile of {reference}", high / low, "x")]


def optional(name: str) -> Any:
    """Import a package that the project does not depend on, or say how to get it and return None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name}: not installed, left out (pip install {INSTALL[name]})", file=sys.stderr)
        return None


def each(one: Callable[[Item], object], items: Sequence[Item]) -> int:
    """Do something to every item and return how many they are."""
    for item in items:
        one(item)
    return len(items)
