"""A limit within a budget: how much one stretch of work may take, and how far it is."""

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dietcl.budget.ledger import Ledger

# Sums of thirds are inexact; the last one must still fit.
TOLERANCE = 1e-9


class Terms(NamedTuple):
    """Passes and seconds that a stretch of work may take, and what the time step had spent before it began."""

    passes: float
    seconds: float
    spent_before: float
    elapsed_before: float


class Allotment:
    """A limit on one stretch of work, such as a phase; made by `Ledger.allot`, or from the terms of an earlier one."""

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
