"""The differences on which the paper's claims about budgets rest (Figures 2 and 4), computed from finished runs."""

from collections.abc import Sequence

from reproduction import suites as s
from reproduction.measures import Measure, average, final
from reproduction.suites import PAPER_THRESHOLD, PAPER_UPDATES, SUITES, Arm, Point
from reproduction.verdicts import (
    Contrast,
    Contrasts,
    Evidence,
    Values,
    at_peak,
    common,
    less,
    peaks,
    share,
    within,
)

BUDGETS = tuple(point.updates for point in SUITES["budget"].points)
SMALLEST, LARGEST = BUDGETS[0], BUDGETS[-1]


def lead_at_budgets(others: Sequence[Arm], budgets: Sequence[int], measure: Measure) -> Contrasts:
    """DietCL's lead at several budgets."""
    return lambda evidence: [
        less(
            f"DietCL less {arm.title} at {updates:,}",
            evidence.values(s.DIETCL, measure, Point(updates=updates)),
            evidence.values(arm, measure, Point(updates=updates)),
        )
        for arm in others
        for updates in budgets
    ]


def collapses(updates: int) -> Contrasts:
    """Half of DietCL's accuracy less CaSSLe's, where the paper has a third (5.78 of 16.82)."""
    return lambda evidence: [
        less(
            f"half of DietCL less CaSSLe at {updates:,}",
            evidence.values(s.DIETCL, final, Point(updates=updates)) / 2,
            evidence.values(s.CASSLE, final, Point(updates=updates)),
        )
    ]


def converges_slowly(evidence: Evidence) -> list[Contrast]:
    """What CaSSLe gains from the usual budget to the largest, less what DietCL does."""
    slow, fast = (_gain(evidence, arm, final, PAPER_UPDATES, LARGEST) for arm in (s.CASSLE, s.DIETCL))
    return [less(f"gain from {PAPER_UPDATES} to {LARGEST:,}, CaSSLe less DietCL", slow, fast)]


def has_converged(evidence: Evidence) -> list[Contrast]:
    """What DietCL gains from the usual budget to the largest: less than the least help."""
    usual, most = (evidence.values(s.DIETCL, final, Point(updates=updates)) for updates in (PAPER_UPDATES, LARGEST))
    return [less(f"DietCL at {LARGEST:,} less at {PAPER_UPDATES}", most, usual, share(usual), is_above=False)]


def degrades(evidence: Evidence) -> list[Contrast]:
    """What Replay loses from where it peaks in the paper to the smallest budget: more than the least help."""
    enough, few = (evidence.values(s.ER, final, Point(updates=updates)) for updates in (PAPER_THRESHOLD, SMALLEST))
    return [less(f"{s.ER.title} at {PAPER_THRESHOLD} less at {SMALLEST}", enough, few, share(enough))]


def overfits(arm: Arm) -> Contrasts:
    """A(T) at the peak before the largest budget, less at that."""

    def contrasts(evidence: Evidence) -> list[Contrast]:
        last, *rest = _by_budget(evidence, arm)
        found = sorted({place for place in peaks(rest) if place is not None})
        where = " or ".join(f"{BUDGETS[place]:,}" for place in found) or "none"
        return [less(f"{arm.title} at its peak ({where}) less at {LARGEST:,}", at_peak(rest), last)]

    return contrasts


def overfits_less(evidence: Evidence) -> list[Contrast]:
    """What Replay loses from its peak to the largest budget, and that less what DietCL does."""

    def fall(arm: Arm) -> Values:
        last, *rest = _by_budget(evidence, arm)
        return at_peak(rest) - last

    loss = less(f"loss past the peak, {s.ER.title} less DietCL", fall(s.ER), fall(s.DIETCL))
    return [*overfits(s.ER)(evidence), loss]  # where Replay does not overfit, nobody does so less


def hurt_by_little(evidence: Evidence) -> list[Contrast]:
    """What the smallest budget costs every method, in A."""
    losses = ((arm, _decline(evidence, arm)) for arm in s.THREE)
    return [less(f"{arm.title} at {PAPER_UPDATES} less at {SMALLEST}", lost, 0 * lost) for arm, lost in losses]


def hurt_most(evidence: Evidence) -> list[Contrast]:
    """What the smallest budget costs GDumb, less what it costs another method."""
    gdumb = _decline(evidence, s.GDUMB)
    return [less(f"loss of GDumb less of {arm.title}", gdumb, _decline(evidence, arm)) for arm in (s.DIETCL, s.CASSLE)]


def stable_budget(evidence: Evidence) -> list[Contrast]:
    """DietCL's A at larger budgets, neither better nor worse than at the usual one (the smallest hurts all methods)."""
    usual = evidence.values(s.DIETCL, average)
    return [
        contrast
        for updates in (1500, LARGEST)
        for contrast in within(
            f"{updates:,} less {PAPER_UPDATES} updates",
            evidence.values(s.DIETCL, average, Point(updates=updates)),
            usual,
            share(usual),
        )
    ]


def _by_budget(evidence: Evidence, arm: Arm) -> list[Values]:
    """Return an arm's A(T) at the largest budget, then at all smaller ones."""
    return common(*(evidence.values(arm, final, Point(updates=updates)) for updates in (LARGEST, *BUDGETS[:-1])))


def _decline(evidence: Evidence, arm: Arm) -> Values:
    return _gain(evidence, arm, average, SMALLEST, PAPER_UPDATES)


def _gain(evidence: Evidence, arm: Arm, measure: Measure, few: int, many: int) -> Values:
    before, after = common(*(evidence.values(arm, measure, Point(updates=updates)) for updates in (few, many)))
    return after - before
