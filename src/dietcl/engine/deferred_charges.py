"""Charges that one process defers while it works, and that every process books."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dietcl.budget.ledger import Ledger, Note
from dietcl.streams.loader import Loader


@dataclass
class DeferredCharges:
    """The charges of some work, and how many images could not be read for it."""

    charges: list[Note] = field(default_factory=list)
    substituted: int = 0


@contextmanager
def deferring(ledger: Ledger, loader: Loader) -> Iterator[DeferredCharges]:
    """Defer the charges of work instead of booking them."""
    before, deferred = loader.substituted, DeferredCharges()
    with ledger.deferring() as deferred.charges:
        yield deferred
    deferred.substituted, loader.substituted = loader.substituted - before, before


def settle(ledger: Ledger, loader: Loader, deferred: DeferredCharges) -> None:
    """Book what was deferred; Overdraft at the first charge that does not fit."""
    loader.substituted += deferred.substituted
    ledger.settle(deferred.charges)
