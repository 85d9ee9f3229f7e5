"""How the leader of a suite compares with the other arms, and what the search gave each of them, as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.leads import common_seeds, lead_words, number_testable, paired, place_words
from reproduction.measures import Measure, average
from reproduction.show.figure_data import percent
from reproduction.show.scale import Scale
from reproduction.show.table_formats import Sheet
from reproduction.study import Measured, Study
from reproduction.suites import Point, Suite
from reproduction.trials import SOLVED, Search
from reproduction.verdicts import Contrast

_PAIRED = "Points, paired by seed, with 95 % intervals"
PLACE_RULE = (
    "best: above every other arm, judged on all differences of the suite together, at 5 % by Holm's method; below: one "
    "of the intervals is below 0 as it is"
)


@dataclass(frozen=True)
class Pair:
    """The leader and another arm at the same point."""

    ours: Measured
    other: Measured

    def less(self, measure: Measure) -> Contrast:
        """Return the difference in a measure."""
        return paired(self.ours, self.other, measure)

    def text(self, measure: Measure) -> str:
        """Write the difference; the reference, which learns the stream at once, has no A."""
        if measure is average and self.other.arm.group == "reference":
            return ""
        contrast = self.less(measure)
        return contrast.text if contrast.values else "–"

    @property
    def label(self) -> str:
        """What is subtracted from what."""
        return f"{self.ours.arm.title} less {self.other.arm.title}"

    @property
    def seeds(self) -> str:
        """How many seeds both have."""
        return str(len(common_seeds(self.ours, self.other)))


def lead_sheets(suite: Suite, measured: Sequence[Measured], measures: dict[str, Measure], scale: Scale) -> list[Sheet]:
    """Return the leader's lead over every other arm at the same point, if there is one, judged if the suite is."""
    pairs = list(pairs_of(suite, measured))
    if not pairs:
        return []
    if not suite.judges_leader:
        return [_differences(suite, pairs, measures, scale)]
    if len(suite.points) == 1:
        return [_verdicts(pairs, measures)]
    return [_differences(suite, pairs, measures, scale), _places(suite, measured, measures, scale)]


def pairs_of(suite: Suite, measured: Sequence[Measured]) -> Iterator[Pair]:
    """Yield a suite's leader with every other arm at the same point."""
    for ours in (entry for entry in measured if entry.arm.title == suite.leader):
        for entry in (entry for entry in measured if entry is not ours and entry.point == ours.point):
            yield Pair(ours, entry)


def _differences(suite: Suite, pairs: Sequence[Pair], measures: dict[str, Measure], scale: Scale) -> Sheet:
    rows = []
    for pair in pairs:
        where = f" at {scale.describe(suite, pair.ours.point)}" if len(suite.points) > 1 else ""
        rows.append((f"{pair.label}{where}", *map(pair.text, measures.values()), pair.seeds))
    return Sheet(f"{_PAIRED}.", ("difference", *measures, "seeds"), tuple(rows))


def _verdicts(pairs: Sequence[Pair], measures: dict[str, Measure]) -> Sheet:
    """Return all differences in all measures, judged together."""
    every = [pair.less(measure) for pair in pairs for measure in measures.values()]
    words = iter(lead_words(every))
    rows = []
    for pair in pairs:
        cells = [cell for measure in measures.values() for cell in (pair.text(measure), next(words))]
        rows.append((pair.label, *cells, pair.seeds))
    columns = [column for name in measures for column in (name, f"verdict on {name}")]
    return Sheet(f"{_PAIRED}. {_together(every)}", ("difference", *columns, "seeds"), tuple(rows))


def _together(contrasts: Sequence[Contrast]) -> str:
    return (
        f"Verdicts are on all {number_testable(contrasts)} differences together, at 5 % by Holm's method; the seeds "
        "that would tell are estimated from the mean and the spread of those that were run."
    )


@dataclass(frozen=True)
class Place:
    """The leader against the best other arm at a point, in a measure, and the verdict."""

    point: Point
    measure: str
    pair: Pair
    text: str
    """The difference."""
    verdict: str


def places(suite: Suite, measured: Sequence[Measured], measures: dict[str, Measure]) -> list[Place]:
    """Return the leader's place at every point in every measure, all of them judged together."""
    pairs = list(pairs_of(suite, measured))
    where = [
        (point, name, measure, own)
        for point in suite.points
        if (own := [pair for pair in pairs if pair.ours.point == point])
        for name, measure in measures.items()
    ]
    words = place_words([[pair.less(measure) for pair in own] for _, _, measure, own in where])
    return [
        Place(point, name, best := _best(own, measure), best.text(measure), word)
        for (point, name, measure, own), word in zip(where, words, strict=True)
    ]


def _places(suite: Suite, measured: Sequence[Measured], measures: dict[str, Measure], scale: Scale) -> Sheet:
    rows = []
    for each in places(suite, measured, measures):
        where, best = scale.describe(suite, each.point), each.pair.other.arm.title
        rows.append((where, each.measure, best, each.text, each.pair.seeds, each.verdict))
    title = f"{suite.leader} at every point, and its difference to the best other arm there. {_PAIRED}; {PLACE_RULE}."
    return Sheet(title, ("at", "measure", "best other arm", f"{suite.leader} less it", "seeds", "verdict"), tuple(rows))


def _best(pairs: Sequence[Pair], measure: Measure) -> Pair:
    return max(pairs, key=lambda pair: float(np.mean(percent(pair.other, measure))))


# The search.


def search_sheets(study: Study, suite: Suite) -> list[Sheet]:
    """Return what every search at the reported budget gave the methods of a suite."""
    if study.dataset.updates is not None:
        return []
    searches = dict.fromkeys(point.protocol.search for point in suite.points)
    return [_search(study, suite, search) for search in searches if search.is_at_budget]


def _search(study: Study, suite: Suite, search: Search) -> Sheet:
    titles = {arm.method: arm.title for arm in reversed(suite.arms) if not arm.tuned_as}
    rows = []
    for method in dict.fromkeys(arm.rates_of for arm in suite.arms if arm.rates_of not in SOLVED):
        choice = study.choice(method, search)
        own = ", ".join(f"{name} = {value:g}" for name, value in choice.trial.options(method.partition(":")[0]).items())
        rates = f"{choice.trial.lr:g}", f"{choice.trial.head_lr:g}", own
        rows.append((titles.get(method, method), *rates, str(choice.tied), f"{100 * choice.error:.2f}"))
    title = (
        f"The search on {study.searcher.dataset.title}: {len(search.trials)} trials of every method, the same for all, "
        f"on the first {search.time_steps} time steps of {len(search.seeds)} other seeds at S = {study.budget}, judged "
        "on training images that are held out. Rates are the geometric mean of all trials within a standard error of "
        "the best; the error, in points of A(T), is that of a difference between two trials."
    )
    header = ("method", "rate of the encoder", "of the head", "own coefficient", "trials averaged", "standard error")
    return Sheet(title, header, tuple(rows))
