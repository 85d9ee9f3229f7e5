"""What was spent: charges summed by purpose and operation, and the receipt of a time step."""

from dataclasses import asdict, dataclass
from typing import Any


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
