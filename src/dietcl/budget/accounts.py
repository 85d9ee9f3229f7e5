"""What the ledger keeps its books with: prices, the allotment of a phase, and receipts."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dietcl.budget.cost import CostModel, Operation

if TYPE_CHECKING:
    from dietcl.budget.ledger import Ledger

Accounting = Literal["images", "flops"]

# What the `images` price list says; operations that are not named cost their FLOPs in both lists.
_PER_IMAGE: dict[Operation, float] = {
    "train": 1.0,
    "importance": 1.0,
    "reconstruct": 1.0,
    "prompt": 1.0,
    "prompt_train": 1.0,
    "forward": 1 / 3,
    "prompt_forward": 1 / 3,
    "reconstruct_forward": 1 / 3,
}


class Prices:
    """The prices under a head of so many classes."""

    def __init__(self, accounting: Accounting, cost: CostModel, classes: int) -> None:
        self.pass_flops = cost.pass_flops(classes)
        self._accounting = accounting
        self._cost = cost
        self._classes = classes
        self._known: dict[tuple[Operation, int], tuple[float, int]] = {}

    def of(self, operation: Operation, prompts: int = 0) -> tuple[float, int]:
        """Return the passes and the FLOPs of the operation for one image."""
        key = (operation, prompts)
        if key not in self._known:
            flops = self._cost.flops(operation, self._classes, prompts)
            passes = flops / self.pass_flops
            self._known[key] = (_PER_IMAGE.get(operation, passes) if self._accounting == "images" else passes, flops)
        return self._known[key]


# Sums of thirds are inexact; the last one must still fit.
TOLERANCE = 1e-9


class Terms(NamedTuple):
    """Passes and seconds that a segment of work may take, and what the time step had spent before it began."""

    passes: float
    seconds: float
    spent_before: float
    elapsed_before: float


class Allotment:
    """A limit on one segment of work, such as a phase; made by `Ledger.allot`, or from the terms of an earlier one."""

    def __init__(self, ledger: "Ledger", terms: Terms) -> None:
        self.terms = terms
        self.passes, self.seconds = terms.passes, terms.seconds
        self._ledger = ledger

    @property
    def fraction(self) -> float:
        """How much of the allotment is gone, in passes or in time, whichever is more; from 0 to 1."""
        spent, elapsed = self._gone
        return max(fraction(spent, self.passes), fraction(elapsed, self.seconds))

    def affords(self, passes: float, seconds: float = 0.0) -> bool:
        """Tell whether the work fits both the allotment and the ledger."""
        spent, elapsed = self._gone
        is_within = fits(spent + passes, self.passes) and fits(elapsed + seconds, self.seconds)
        return is_within and self._ledger.affords(passes, seconds)

    @property
    def _gone(self) -> tuple[float, float]:
        return self._ledger.spent - self.terms.spent_before, self._ledger.elapsed - self.terms.elapsed_before


def fits(total: float, limit: float) -> bool:
    """Tell whether a sum stays within a limit."""
    return total <= limit * (1 + TOLERANCE)


def part(share: float, whole: float) -> float:
    """Return a share of what may be without limit, and then is whole."""
    return whole if whole == math.inf else share * whole


def fraction(part: float, whole: float) -> float:
    """Return a part over the whole, at most 1; of nothing, all is gone."""
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
    items: tuple[Item, ...]


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

    def items(self) -> tuple[Item, ...]:
        """Return the charges by purpose and operation."""
        return tuple(Item(purpose, operation, *sums) for (purpose, operation), sums in self._sums.items())

    def state(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"spent": self.spent, "items": [asdict(item) for item in self.items()]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Account":
        """Take back what `state` returned."""
        account = cls()
        for item in state["items"]:
            account.book(**item)
        account.spent = state["spent"]  # summed in another order above, so not the same to the last bit
        return account


def plain(receipt: StepReceipt) -> dict[str, Any]:
    """Return a receipt as plain JSON."""
    return {**asdict(receipt), "items": [asdict(item) for item in receipt.items]}
