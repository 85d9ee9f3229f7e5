"""A budget for one time step: a number of updates, of FLOPs or of seconds."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from dietcl.errors import UserError

Unit = Literal["updates", "flops", "seconds"]

_NUMBER = r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
_UPDATES = re.compile(_NUMBER)
_FLOPS = re.compile(rf"{_NUMBER}\s*([kmgtp]?)flops?")
_DURATION = re.compile(rf"(?:{_NUMBER}\s*h)?\s*(?:{_NUMBER}\s*min)?\s*(?:{_NUMBER}\s*s)?")
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SECONDS = {"h": 3600, "min": 60, "s": 1}


@dataclass(frozen=True)
class Budget:
    """What one time step may spend, in exactly one unit."""

    amount: float
    unit: Unit

    def __post_init__(self) -> None:
        if not (math.isfinite(self.amount) and self.amount > 0):
            raise _refusal(f"{self.amount} {self.unit}")

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read "500" (updates), "2e15flops" or a duration such as "2h", "15min", "90s" or "1h30min"."""
        plain = text.strip().lower()
        amount: float = 0
        unit: Unit = "updates"
        if found := _UPDATES.fullmatch(plain):
            amount = float(plain)
        elif found := _FLOPS.fullmatch(plain):
            amount, unit = float(found[1]) * _PREFIXES[found[2]], "flops"
        elif found := _DURATION.fullmatch(plain):
            parts = zip(found.groups(), _SECONDS.values(), strict=True)
            amount, unit = sum(float(number) * size for number, size in parts if number), "seconds"
        if not (math.isfinite(amount) and amount > 0):
            raise _refusal(text)
        return cls(amount, unit)

    def __str__(self) -> str:
        if self.unit == "updates":
            return _digits(self.amount)
        if self.unit == "flops":
            return f"{_digits(self.amount)}flops"
        for name, size in _SECONDS.items():
            # Beyond 2**53 the quotient is rounded and would not read back as the same amount.
            if self.amount < 2**53 and self.amount % size == 0:
                return f"{_digits(self.amount / size)}{name}"
        return f"{_digits(self.amount)}s"


def _digits(amount: float) -> str:
    """Return a short decimal that reads back as the same float."""
    brief = f"{amount:g}"
    exact = brief if float(brief) == amount and amount >= 1e9 else repr(amount)
    return exact.removesuffix(".0").replace("e+", "e")


def _refusal(text: str) -> UserError:
    return UserError(
        f'--budget "{text}": not a positive number with one unit; write 500 (updates), 2e15flops '
        "or a time such as 2h, 15min, 90s or 1h30min"
    )
