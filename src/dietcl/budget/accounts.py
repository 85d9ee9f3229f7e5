"""The ledger's parts: prices per image, the allotment of a phase, accounts and receipts."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dietcl.budget.ledger import Ledger

# Sums of thirds are inexact; the last one must still fit.
TOLERANCE = 1e-9


class Terms(NamedTuple):
    """Passes and seconds that a segment of work may take, and what the time step had spent before it began."""

    passes: float
    seconds: float
    spent_before: float
    elapsed_before: float


class Allotment:
    """A limit on one segment of work, such as a phase; `Ledger.allot` returns one."""

    def __init__(self, ledger: "Ledger", terms: Terms) -> None:
        self.terms = terms
        self.passes, self.seconds = terms.passes, terms.seconds
        self._ledger = ledger

    @property
    def fraction(self) -> float:
        """The spent share of the allotment, in passes or in time, whichever is more; from 0 to 1."""
        spent, elapsed = self._used
        return max(fraction(spent, self.passes), fraction(elapsed, self.seconds))

    def affords(self, passes: float, seconds: float = 0.0) -> bool:
        """Tell whether the work fits both the allotment and the ledger."""
        spent, elapsed = self._used
        is_within = fits(spent + passes, self.passes) and fits(elapsed + seconds, self.seconds)
        return is_within and self._ledger.affords(passes, seconds)

    @property
    def _used(self) -> tuple[float, float]:
        return self._ledger.spent - self.terms.spent_before, self._ledger.elapsed - self.terms.elapsed_before


def fits(total: float, limit: float) -> bool:
    """Tell whether a sum stays within a limit."""
    return total <= limit * (1 + TOLERANCE)


def part(share: float, whole: float) -> float:
    """Return a share of a quantity; of an unlimited one, all of it."""
    return whole if whole == math.inf else share * whole


def fraction(part: float, whole: float) -> float:
    """Return part / whole, at most 1; 1 if the whole is 0."""
    return min(1.0, part / whole) if whole > 0 else 1.0


@dataclass(frozen=True)
class Item:
    """All charges of one purpose and operation, summed."""

    purpose: str
    operation: str
    images: int
    passes: float
    flops: float


@dataclass(frozen=True)
class StepReceipt:
    """Where the budget of one time step went; budget, spent and unused are in the unit of `Ledger.unit`."""

    t: int
    classes: int
    pass_flops: int
    budget: float
    spent: float  # in seconds it can exceed the budget by what the last update overran its estimate
    unused: float
    passes: float
    items: list[Item]


class Account:
    """Charges that are summed together: those of a time step, or of the search."""

    def __init__(self) -> None:
        self.spent = 0.0
        self._sums: dict[tuple[str, str], tuple[int, float, float]] = {}

    def book(self, purpose: str, operation: str, images: int, passes: float, flops: float) -> None:
        """Add a charge."""
        sums = self._sums.get((purpose, operation), (0, 0.0, 0.0))
        self._sums[purpose, operation] = (sums[0] + images, sums[1] + passes, sums[2] + flops)
        self.spent += passes

    def items(self) -> list[Item]:
        """Return the charges by purpose and operation."""
        return [Item(purpose, operation, *sums) for (purpose, operation), sums in self._sums.items()]

    def state(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"spent": self.spent, "items": [asdict(item) for item in self.items()]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Account":
        """Return the account that `state` described."""
        account = cls()
        for item in state["items"]:
            account.book(**item)
        account.spent = state["spent"]  # summed in another order above, so not the same to the last bit
        return account
