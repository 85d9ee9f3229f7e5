"""How the paper's numbers become those of a dataset."""

from dataclasses import dataclass

from reproduction.study import Measured
from reproduction.suites import Point, Suite, scaled


@dataclass(frozen=True)
class Scale:
    """How a dataset's updates, label rates and time steps compare to those of the paper."""

    updates: float
    """Of this dataset per update of the paper."""
    label_rate: float
    """Of this dataset over the paper's."""
    time_steps: float
    """Of this dataset per time step of the paper."""
    batch: int
    """Images of an update."""

    def count(self, updates: int) -> int:
        """Return how many updates correspond to `updates` of the paper."""
        return scaled(updates, self.updates)

    def regime(self, entry: Measured) -> dict[str, float]:
        """Return the passes of a time step over its labels, over all labels of the stream, and over its images."""
        passes = self.count(entry.point.updates) * self.batch
        counts = {"S·b/n_t": "labels_per_step", "S·b/Σn": "labels", "S·b/N_t": "arriving_per_step"}
        return {name: passes / entry.results[0].facts[fact] for name, fact in counts.items()}

    def describe(self, suite: Suite, point: Point) -> str:
        """Name a point by what the suite's points differ in."""

        def varies(name: str) -> bool:
            return len({getattr(other, name) for other in suite.points}) > 1

        if varies("label_rate"):
            return self.say_rate(point)
        if varies("time_steps"):
            return self.say_time_steps(point)
        if varies("threshold"):
            return f"B = {self.count(point.threshold):,}{_paper(f'{point.threshold:,}', self.updates)}"
        if varies("accounting"):
            return "equal FLOPs" if point.accounting == "flops" else "equal images"
        return f"S = {self.count(point.updates):,}{_paper(f'{point.updates:,}', self.updates)}"

    def tick(self, updates: int) -> str:
        """Write a number of updates, the paper's below in brackets."""
        return f"{updates:,}" if self.updates == 1 else f"{self.count(updates):,}\n({updates:,})"

    def axis(self, text: str) -> str:
        """Write the title of an axis with such ticks."""
        return text if self.updates == 1 else f"{text} (in brackets: the paper's)"

    def say_updates(self, point: Point, each: str = "") -> str:
        """Write the budget of a time step."""
        return f"{self.count(point.updates):,} updates{each}{_paper(f'{point.updates:,}', self.updates)}"

    def say_time_steps(self, point: Point) -> str:
        """Write the length of the stream."""
        return f"{round(point.time_steps * self.time_steps)} time steps{_paper(f'{point.time_steps}', self.time_steps)}"

    def say_rate(self, point: Point) -> str:
        """Write the label rate."""
        paper = 100 * point.label_rate
        return f"{paper * self.label_rate:g} % labels{_paper(f'{paper:g} %', self.label_rate)}"


def _paper(value: str, factor: float) -> str:
    return "" if factor == 1 else f" (paper: {value})"
