"""One measured figure and the bar it must meet."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured value; `at_most` is the bar, None where there is none."""

    name: str
    value: float
    unit: str
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the bar is met."""
        return self.at_most is None or self.value <= self.at_most

    def __str__(self) -> str:
        bar = "no bar" if self.at_most is None else f"bar: at most {self.at_most:g} {self.unit}"
        verdict = "" if self.at_most is None else (", met" if self.met else ", MISSED")
        return f"{self.name}: {self.value:.3g} {self.unit} ({bar}{verdict})"
