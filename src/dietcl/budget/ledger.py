"""The only place where spending happens: charged before it is spent, never overdrawn, receipts for all of it.

Everything is counted in passes: one image forward and backward through the full encoder and head.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from dietcl.budget.budget import Budget
from dietcl.budget.cost import Accounting, CostModel, Operation
from dietcl.budget.receipts import Item, StepReceipt

# Sums of thirds are inexact; the last one must still fit.
TOLERANCE = 1e-9
# A deferred charge: purpose, operation, images, passes and FLOPs; without a purpose it is a call of `require`.
Note = tuple[str | None, str, int, float, float]


class Overdraft(Exception):
    """The charge would exceed the budget of the time step; nothing was booked."""


class Allotment(NamedTuple):
    """Passes and seconds that a segment of work may take, and what the time step had spent before it began."""

    passes: float
    seconds: float
    spent_before: float
    elapsed_before: float


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


class Ledger:
    """The account of a run: opened and closed at every time step, with nothing carried over."""

    def __init__(
        self,
        budget: Budget,
        accounting: Accounting,
        batch: int,
        cost: CostModel,
        clock: Callable[[], float] = time.monotonic,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """`tick` is called whenever the clock must show the current time."""
        self.budget, self.accounting, self.batch, self.cost = budget, accounting, batch, cost
        self.unit: Literal["passes", "seconds"] = "seconds" if budget.unit == "seconds" else "passes"
        self.clock, self.tick = clock, tick
        self.closed: list[StepReceipt] = []  # receipts of the closed time steps
        self._search = Account()
        self._t = 0
        self._step: Account | None = None
        self._paused_at: float | None = None
        self.is_free = False  # whether charges cost nothing now
        self._in_update = False
        self._held_passes = self._most_seconds = 0.0
        self._notes: list[Note] | None = None
        self.pass_seconds = 0.0  # how long a pass of the last update took

    def open(self, t: int, classes: int, spans: int = 1) -> None:
        """Begin a time step with `spans` fresh budgets; `classes` is the width of the head in it."""
        if self._step is not None:
            raise RuntimeError(f"Time step {self._t} is still open: close() it before opening {t}.")
        self._t, self._classes, self._spans = t, classes, spans
        self._step = Account()
        self._known_prices: dict[tuple[Operation, int], tuple[float, int]] = {}
        self._amount = self._seconds = math.inf
        if self.budget.unit == "updates":
            self._amount = spans * self.budget.amount * self.batch
        elif self.budget.unit == "flops":
            self._amount = spans * self.budget.amount / self.pass_flops
        else:
            self._seconds = spans * self.budget.amount
        self.tick()
        self._started = self.clock()

    def charge(self, purpose: str, operation: Operation, images: int, *, prompts: int = 0) -> None:
        """Book the operation on this many images, or raise Overdraft; call it before the work."""
        if not (self.is_free and self._step is None):
            price, flops = self._prices(operation, prompts)
            self._book(purpose, operation, images, images * price, images * flops)

    def require(self, operation: Operation, images: int) -> None:
        """Raise Overdraft unless the operation on this many images fits; for work that is booked in several charges."""
        passes = images * self.price(operation)
        if self._notes is not None:
            self._notes.append((None, operation, images, passes, 0.0))
        elif not self.is_free:
            self._require_room(operation, passes)

    def charge_flops(self, purpose: str, operation: str, flops: float, images: int = 0) -> None:
        """Book work that is no pass of images, such as a closed-form solve, or raise Overdraft."""
        if not (self.is_free and self._step is None):
            self._book(purpose, operation, images, flops / self.pass_flops, flops)

    def price(self, operation: Operation) -> float:
        """Return the passes that the operation costs for one image in this time step."""
        return self._prices(operation)[0]

    @property
    def pass_flops(self) -> int:
        """FLOPs of one pass in this time step."""
        self._require_open()
        return self.cost.pass_flops(self._classes)

    @contextmanager
    def deferring(self) -> Iterator[list[Note]]:
        """Take notes of charges instead of booking them; `settle` books them later, in this and other processes."""
        notes: list[Note] = []
        self._notes = notes
        try:
            yield notes
        finally:
            self._notes = None

    def settle(self, notes: Iterable[Note]) -> None:
        """Book noted charges as if they were charged now; Overdraft at the first one that does not fit."""
        for purpose, operation, images, passes, flops in notes:
            if purpose is not None:
                self._book(purpose, operation, images, passes, flops)
            elif not self.is_free:
                self._require_room(operation, passes)

    def hold(self, passes: float, leave: float = 0.0) -> None:
        """Reserve passes, or their time, until `release`: at most half of the rest, never the last `leave` passes."""
        self._most_seconds = self.remaining_seconds / 2
        self._held_passes = min(passes, self.remaining / 2, max(0.0, self.remaining - leave))

    def release(self) -> None:
        """Give back what `hold` reserved."""
        self._held_passes = self._most_seconds = 0.0

    @property
    def _held_seconds(self) -> float:
        return min(self._held_passes * self.pass_seconds, self._most_seconds) if self._held_passes else 0.0

    def close(self) -> StepReceipt:
        """End the time step and return its receipt."""
        step = self._require_outside("close()")
        budget, spent, unused = self._amount, step.spent, self.remaining
        if self.unit == "seconds":
            elapsed = self.elapsed
            budget, spent, unused = self._seconds, elapsed, max(0.0, self._seconds - elapsed)
        items = step.items()
        receipt = StepReceipt(self._t, self._classes, self.pass_flops, budget, spent, unused, step.spent, items)
        self.closed.append(receipt)
        self._step = None
        return receipt

    @property
    def spent(self) -> float:
        """Passes spent in this time step."""
        return self._require_open().spent

    @property
    def remaining(self) -> float:
        """Passes left in this time step; without limit for budgets in seconds."""
        spent = self.spent
        left = self._amount - spent - self._held_passes
        return left if left > self._amount * TOLERANCE or left == math.inf else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since open() without those inside free()."""
        return (self.clock() if self._paused_at is None else self._paused_at) - self._started

    @property
    def remaining_seconds(self) -> float:
        """Seconds left in this time step; without limit for budgets in other units."""
        self._require_open()
        return max(0.0, self._seconds - self.elapsed - self._held_seconds)

    def remaining_updates(self) -> float:
        """Return how many updates at full price still fit; infinity for budgets in seconds."""
        return self.remaining / self.batch

    def spent_fraction(self, within: Allotment | None = None) -> float:
        """Return the spent share of the time step's budget or of an allotment, in passes or time, from 0 to 1."""
        spent, elapsed, passes, seconds = self.spent, self.elapsed, self._amount, self._seconds
        if within is not None:
            spent, elapsed = spent - within.spent_before, elapsed - within.elapsed_before
            passes, seconds = within.passes, within.seconds
        return max(_fraction(spent, passes), _fraction(elapsed, seconds))

    def affords(self, passes: float, seconds: float = 0.0, within: Allotment | None = None) -> bool:
        """Tell whether work of this many passes that should take this many seconds fits the budget and an allotment."""
        spent, elapsed = self.spent, self.elapsed
        if within is not None and not (
            _fits(spent - within.spent_before + passes, within.passes)
            and _fits(elapsed - within.elapsed_before + seconds, within.seconds)
        ):
            return False
        if self.unit == "seconds":
            return _fits(elapsed + seconds + self._held_seconds, self._seconds)
        return _fits(spent + passes + self._held_passes, self._amount)

    def allot(self, share: float = 1.0, updates: float = math.inf) -> Allotment:
        """Set apart a share of what remains, but at most this many updates, for a segment of work."""
        # A share of what is unlimited is unlimited, even a share of 0.
        left, seconds = (math.inf if x == math.inf else share * x for x in (self.remaining, self.remaining_seconds))
        return Allotment(min(left, updates * self.batch), seconds, self.spent, self.elapsed)

    @contextmanager
    def update(self) -> Iterator[None]:
        """Begin an update; under a budget in seconds one that began in time is finished, even if it overruns."""
        self._in_update = True
        try:
            yield
        finally:
            self._in_update = False

    @contextmanager
    def free(self) -> Iterator[None]:
        """Evaluate: charges inside cost nothing and take no time; in a time step they are booked as "evaluation"."""
        was_free, self.is_free = self.is_free, True
        pauses = self._paused_at is None and self._step is not None
        if pauses:
            self.tick()
            self._paused_at = self.clock()
        try:
            yield
        finally:
            self.is_free = was_free
            if pauses:
                self.tick()
                self._started += self.clock() - (self._paused_at or 0.0)
                self._paused_at = None

    def book_search(self, items: Iterable[Item]) -> None:
        """Add to the search account what a trial spent on its own ledger."""
        for item in items:
            self._search.book(**asdict(item))

    def receipts(self) -> dict[str, Any]:
        """Return the receipts of all closed time steps and of the search as plain JSON."""
        # Of the last time step: the head grows.
        pass_flops = self.closed[-1].pass_flops if self.closed else self.cost.pass_flops(0)
        steps, search = [asdict(step) for step in self.closed], [asdict(item) for item in self._search.items()]
        facts = {"accounting": self.accounting, "unit": self.unit, "pass_flops": pass_flops}
        return {**facts, "steps": steps, "search": search}

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on later, even within a time step, as plain JSON."""
        step: dict[str, Any] | None = None
        if self._step is not None:
            account = self._require_outside("state()").state()
            # Only a budget in seconds needs the time; elsewhere it would make equal runs differ.
            elapsed = self.elapsed if self.unit == "seconds" else 0.0
            step = {"t": self._t, "classes": self._classes, "spans": self._spans, "elapsed": elapsed}
            step |= {"account": account, "held": [self._held_passes, self._most_seconds]}
        receipts = [asdict(receipt) for receipt in self.closed]
        pace = self.pass_seconds if self.unit == "seconds" else 0.0
        return {"receipts": receipts, "search": self._search.state(), "step": step, "pass_seconds": pace}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what state() returned, in a ledger with the same arguments."""
        self.closed = [
            StepReceipt(**{**receipt, "items": [Item(**item) for item in receipt["items"]]})
            for receipt in state["receipts"]
        ]
        self._search = Account.from_state(state["search"])
        self.pass_seconds = state["pass_seconds"]
        self._step = None
        if (step := state["step"]) is not None:
            self.open(step["t"], step["classes"], step["spans"])
            self._step = Account.from_state(step["account"])
            self._started -= step["elapsed"]
            self._held_passes, self._most_seconds = step["held"]

    def _book(self, purpose: str, operation: str, images: int, passes: float, flops: float) -> None:
        if images < 0 or not flops >= 0:
            raise ValueError(f"A charge cannot be negative: {operation} of {images} images, {flops} FLOPs.")
        if self._notes is not None:
            self._notes.append((purpose, operation, images, passes, flops))
        elif self.is_free:
            self._require_open().book("evaluation", operation, images, 0.0, 0.0)
        else:
            self._require_room(operation, passes)
            self._require_open().book(purpose, operation, images, passes, flops)

    def _prices(self, operation: Operation, prompts: int = 0) -> tuple[float, int]:
        """Return the passes and the FLOPs of the operation for one image in this time step."""
        self._require_open()
        if (operation, prompts) not in self._known_prices:
            flops = self.cost.flops(operation, self._classes, prompts)
            passes = flops / self.pass_flops
            by_image = self.cost.per_image(operation, self._classes, prompts) if self.accounting == "images" else None
            price = passes if by_image is None else by_image
            self._known_prices[operation, prompts] = price, flops
        return self._known_prices[operation, prompts]

    def _require_room(self, operation: str, passes: float) -> None:
        if not (self.affords(passes) or (self.unit == "seconds" and self._in_update)):
            left = f"{self.remaining_seconds} s" if self.unit == "seconds" else f"{self.remaining} passes"
            raise Overdraft(f"Time step {self._t}: {operation} costs {passes} passes; {left} left.")

    def _require_open(self) -> Account:
        if self._step is None:
            raise RuntimeError("No time step is open: call open() first.")
        return self._step

    def _require_outside(self, call: str) -> Account:
        if self._paused_at is not None:
            raise RuntimeError(f"{call} is not possible inside free().")
        return self._require_open()


def _fits(total: float, limit: float) -> bool:
    return total <= limit * (1 + TOLERANCE)


def _fraction(part: float, total: float) -> float:
    return min(1.0, part / total) if total > 0 else 1.0
