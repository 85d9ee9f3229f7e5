"""What the figure of a suite shows: its runs at this dataset's size, as numbers and in words."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reproduction.run_cache import Result
from reproduction.show.scale import Scale
from reproduction.study import Measured
from reproduction.suites import Point

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FigureData:
    """Runs by arm and point, and the words around their figure."""

    measured: tuple[Measured, ...]
    scale: Scale
    title: str
    leader: str = "DietCL"
    """Title of the arm that the others are compared with."""

    def arms(self) -> list[list[Measured]]:
        """Return the points of each arm."""
        titles = dict.fromkeys(item.arm.title for item in self.measured)
        return [[item for item in self.measured if item.arm.title == title] for title in titles]

    def points(self) -> list[Point]:
        """Return the points at which some arm is measured."""
        return list(dict.fromkeys(item.point for item in self.measured))

    def heading(self, point: Point) -> str:
        """Say in what a point differs from the others."""
        says = {
            "time_steps": self.scale.say_time_steps(point),
            "updates": self.scale.say_updates(point),
            "label_rate": self.scale.say_rate(point),
        }
        return "\n".join(said for name, said in says.items() if self._varies(name))

    def small(self, seeds: str, *notes: str) -> str:
        """Return the small print: what all points share, how many seeds and how they are shown, and further notes."""
        point = self.points()[0]
        says = {"updates": self.scale.say_updates(point, " per time step"), "label_rate": self.scale.say_rate(point)}
        shared = ", ".join(said for name, said in says.items() if not self._varies(name))
        several = any(len(item.results) > 1 for item in self.measured)
        parts = (shared, self._seeds(), seeds if several else "", *notes)
        return "; ".join(part for part in parts if part) + "."

    def _varies(self, name: str) -> bool:
        return len({getattr(point, name) for point in self.points()}) > 1

    def _seeds(self) -> str:
        numbers = {items[0].arm.title: _range([len(item.results) for item in items]) for items in self.arms()}
        usual = Counter(numbers.values()).most_common(1)[0][0]
        others = [
            f"{number}: {' · '.join(title for title, own in numbers.items() if own == number)}"
            for number in sorted(set(numbers.values()) - {usual})
        ]
        return f"{usual} seed{'' if usual == '1' else 's'}" + (f" ({'; '.join(others)})" if others else "")


def _range(numbers: list[int]) -> str:
    """Write how many there are; an arm may have more seeds at one point than at another."""
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


# Numbers.


def percent(item: Measured, value: Callable[[Result], Any]) -> Floats:
    """Return a figure of every seed, [seeds, ...], in percent."""
    return 100 * np.array([value(result) for result in item.results], dtype=np.float64)


def along(item: Measured) -> Floats:
    """Return A(t) of every seed in percent, [seeds, T]."""
    return percent(item, lambda result: result.along)


def known_mean(values: npt.ArrayLike) -> Floats:
    """Return the mean of what is known along the first axis, and nan where nothing is."""
    table = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(table)
    return _quotient(np.where(known, table, 0.0).sum(axis=0), known.sum(axis=0))


def known_spread(values: npt.ArrayLike) -> Floats:
    """Return the standard deviation of what is known along the first axis, and nan where it needs more values."""
    table = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(table)
    squares = np.where(known, table - known_mean(table), 0.0) ** 2
    return np.sqrt(_quotient(squares.sum(axis=0), known.sum(axis=0) - 1))


def _quotient(above: Any, below: Any) -> Floats:
    quotient = np.full(np.shape(below), np.nan)
    np.divide(above, below, out=quotient, where=np.asarray(below) > 0)
    return quotient


def spread_text(values: npt.ArrayLike) -> str:
    """Write mean ± standard deviation; of a single value, that alone."""
    mean, spread = float(known_mean(values)), float(known_spread(values))
    if np.isnan(mean):
        return "–"
    return f"{mean:.1f}" if np.isnan(spread) else f"{mean:.1f} ± {spread:.1f}"
