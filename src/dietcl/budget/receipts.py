"""Receipts: what a time step spent, by purpose and operation."""

from dataclasses import dataclass


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
