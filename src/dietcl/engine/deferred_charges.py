"""What work cost and which images it missed: noted where it is done, and counted in every process alike."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dietcl.budget.ledger import Ledger, Note
from dietcl.streams.loader import Loader


@dataclass
class Notes:
    """The charges of some work, and how many images could not be read for it."""

    charges: list[Note] = field(default_factory=list)
    substituted: int = 0


@contextmanager
def noting(ledger: Ledger, loader: Loader) -> Iterator[Notes]:
    """Take notes of work instead of counting it."""
    before, notes = loader.substituted, Notes()
    with ledger.noting() as notes.charges:
        yield notes
    notes.substituted, loader.substituted = loader.substituted - before, before


def settle(ledger: Ledger, loader: Loader, notes: Notes) -> None:
    """Count what was noted; Overdraft at the first charge that does not fit."""
    loader.substituted += notes.substituted
    ledger.settle(notes.charges)
