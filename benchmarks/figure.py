"""One measured figure and the bar it must meet."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured value with its bar: at most or at least so much, or none."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        """Whether the bar is met."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    def __str__(self) -> str:
        bars = {"at most": self.at_most, "at least": self.at_least}
        bar = ", ".join(f"{word} {bar:g} {self.unit}" for word, bar in bars.items() if bar is not None)
        verdict = "met" if self.met else "MISSED"
        return f"{self.name}: {self.value:.4g} {self.unit} ({f'bar: {bar}, {verdict}' if bar else 'no bar'})"
