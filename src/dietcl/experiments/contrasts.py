"""The differences on which the paper's claims rest, computed from finished runs."""

from collections.abc import Callable, Sequence

import numpy as np

from dietcl.experiments import paper
from dietcl.experiments import suites as s
from dietcl.experiments.evidence import Contrast, Evidence, Values, less, within
from dietcl.experiments.measures import Measure, after, average, final, first, gaps, new_classes, unevenness
from dietcl.experiments.study import Missing
from dietcl.experiments.suites import SUITES, Arm, Group, Point

HELP = 0.05
"""Of the accuracy itself: the least that the paper calls help (0.86 of 16.82); what is less counts as nothing."""
SIMILAR = 0.11
"""The same over stream lengths, where the paper calls 24.9 and 22.2 similar."""
Contrasts = Callable[[Evidence], list[Contrast]]


def lead(groups: tuple[Group, ...], is_in_paper: bool, measure: Measure = final) -> Contrasts:
    """DietCL's lead over every other method of some groups, of the paper's or of further ones."""
    others = [
        arm
        for arm in s.EVERY
        if arm.group in groups and arm is not s.DIETCL and (arm.title in paper.TABLE1) == is_in_paper
    ]

    def over(evidence: Evidence, arm: Arm) -> Contrast:
        ours, label = evidence.values(s.DIETCL, measure), f"DietCL less {arm.title}"
        try:
            return less(label, ours, evidence.values(arm, measure))
        except Missing:
            return Contrast(label, ())

    return lambda evidence: [over(evidence, arm) for arm in others]


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


def change(
    label: str,
    with_it: Arm,
    without: Arm,
    measure: Measure = final,
    point: Point = Point(),  # noqa: B008 (it is frozen)
) -> Contrasts:
    """What one change brings."""
    return lambda evidence: [
        less(label, evidence.values(with_it, measure, point), evidence.values(without, measure, point))
    ]


def little_without_mask(evidence: Evidence) -> list[Contrast]:
    """What reconstruction brings with the masked loss and without, which is little: half of the least help."""
    arms = (s.WHOLE, s.MASKED_BALANCED, s.UNMASKED, s.BALANCED)
    whole, masked, unmasked, balanced = _common(*(evidence.values(arm, final) for arm in arms))
    return [
        less("reconstruction with, less without the masked loss", whole - masked, unmasked - balanced),
        less("reconstruction without the masked loss", unmasked, balanced, _share(whole, HELP / 2), is_above=False),
    ]


def collapse(evidence: Evidence) -> list[Contrast]:
    """Half of DietCL's accuracy less CaSSLe's, where the paper has a third (5.78 of 16.82)."""
    return [
        less(
            f"half of DietCL less CaSSLe at {updates}",
            evidence.values(s.DIETCL, final, Point(updates=updates)) / 2,
            evidence.values(s.CASSLE, final, Point(updates=updates)),
        )
        for updates in (100, 500)
    ]


def overfits(arm: Arm) -> Contrasts:
    """A(T) at the peak before the largest budget, less at that."""
    *smaller, largest = (point.updates for point in SUITES["budget"].points)

    def contrasts(evidence: Evidence) -> list[Contrast]:
        last, *rest = _common(*(evidence.values(arm, final, Point(updates=updates)) for updates in (largest, *smaller)))
        return [less(f"{arm.title} at its peak less at {largest:,}", _at_peak(rest), last)]

    return contrasts


def _at_peak(choices: Sequence[Values]) -> Values:
    """Return each seed where the others are best, as no seed chooses its own peak; nan without others, or a result."""
    table = np.array(choices)
    peaks = np.full(table.shape[1], np.nan)
    complete = np.flatnonzero(~np.isnan(table).any(axis=0))
    for seed in complete:
        others = table[:, complete[complete != seed]]
        if others.size:
            peaks[seed] = table[others.sum(axis=1).argmax(), seed]
    return peaks


def hurt_by_little(evidence: Evidence) -> list[Contrast]:
    """What the smallest budget costs every method, in A."""
    return [_above_zero(f"{arm.title} at 500 less at 100", _decline(evidence, arm)) for arm in s.THREE]


def hurt_most(evidence: Evidence) -> list[Contrast]:
    """What the smallest budget costs GDumb, less what it costs another method."""
    gdumb = _decline(evidence, s.GDUMB)
    return [less(f"loss of GDumb less of {arm.title}", gdumb, _decline(evidence, arm)) for arm in (s.DIETCL, s.CASSLE)]


def _decline(evidence: Evidence, arm: Arm) -> Values:
    usual, few = _common(*(evidence.values(arm, average, Point(updates=updates)) for updates in (500, 100)))
    return usual - few


def early_drop(evidence: Evidence) -> list[Contrast]:
    """How much is lost from the first time step to the fifth, of another method less of DietCL."""

    def lost(arm: Arm) -> Values:
        return evidence.values(arm, first) - evidence.values(arm, after(5))

    ours = lost(s.DIETCL)
    return [less(f"loss by t = 5, {arm.title} less DietCL", lost(arm), ours) for arm in (s.EWC, s.MAS, s.CASSLE)]


def more_labels(evidence: Evidence) -> list[Contrast]:
    """What more labels bring DietCL while they bring something."""
    few, usual, many = (_at_rate(evidence, s.DIETCL, rate) for rate in (0.005, 0.01, 0.05))
    return [less("1 % less 0.5 %", usual, few), less("5 % less 1 %", many, usual)]


def others_gain_less(evidence: Evidence) -> list[Contrast]:
    """What ten times the labels bring DietCL, less what they bring the others."""

    def gain(arm: Arm) -> Values:
        many, few = _common(*(_at_rate(evidence, arm, rate) for rate in (0.05, 0.005)))
        return many - few

    ours = gain(s.DIETCL)
    return [less(f"gain of DietCL less of {arm.title}", ours, gain(arm)) for arm in (s.GDUMB, s.CASSLE)]


def enough_labels(evidence: Evidence) -> list[Contrast]:
    """What the last doubling of labels brings DietCL."""
    many, most = (_at_rate(evidence, s.DIETCL, rate) for rate in (0.05, 0.1))
    return [less("10 % less 5 %", most, many, _share(many), is_above=False)]


def _at_rate(evidence: Evidence, arm: Arm, rate: float) -> Values:
    return evidence.values(arm, average, Point(label_rate=rate))


def stable_budget(evidence: Evidence) -> list[Contrast]:
    """DietCL's A at large budgets, neither better nor worse than at the usual one."""
    usual = evidence.values(s.DIETCL, average)
    return [
        contrast
        for updates in (1500, 2500)
        for contrast in within(
            f"{updates:,} less 500 updates",
            evidence.values(s.DIETCL, average, Point(updates=updates)),
            usual,
            _share(usual),
        )
    ]


def stable_length(name: str, measure: Measure) -> Contrasts:
    """DietCL's A or A(T) on shorter and longer streams, neither better nor worse than on the usual one."""

    def contrasts(evidence: Evidence) -> list[Contrast]:
        usual = evidence.values(s.DIETCL, measure)
        return [
            contrast
            for steps in (10, 50, 100)
            for contrast in within(
                f"{name}, T = {steps} less T = 20",
                evidence.values(s.DIETCL, measure, s.of_length(steps)),
                usual,
                _share(usual, SIMILAR),
            )
        ]

    return contrasts


def longer_is_worse(evidence: Evidence) -> list[Contrast]:
    """What GDumb and CaSSLe lose from the shortest to the longest stream: more than what counts as similar."""

    def lost(arm: Arm) -> Contrast:
        short, long = (evidence.values(arm, final, s.of_length(steps)) for steps in (10, 100))
        return less(f"A(T) of {arm.title}, T = 10 less T = 100", short, long, _share(short, SIMILAR))

    return [lost(arm) for arm in (s.GDUMB, s.CASSLE)]


def same_threshold(evidence: Evidence) -> list[Contrast]:
    """The better of the upper two thresholds less the better of the lower two, after each time step that may choose."""

    def better(t: int, points: Sequence[Point]) -> Values:
        return _at_peak(_common(*(evidence.values(s.DIETCL, after(t), point) for point in points)))

    points = SUITES["threshold"].points
    return [
        less(f"B = 400 or 450 less 300 or 350, A({t})", better(t, points[2:]), better(t, points[:2]))
        for t in s.THRESHOLD_STEPS
    ]


def evens_out(evidence: Evidence) -> list[Contrast]:
    """What the memory-only phase takes off the deviation over time steps of origin."""
    (point,) = SUITES["balance-phase"].points
    without, with_it = (evidence.values(arm, unevenness, point) for arm in (s.JOINT_ONLY, s.DIETCL))
    return [less("deviation over origins, without less with", without, with_it)]


def stage_helps_new(evidence: Evidence) -> list[Contrast]:
    """What a pre-training stage brings new classes, at rates of each one's own and at the same rates."""
    return [
        less(f"new classes, TwoStage less {arm.title}", two, one) for arm, two, one in _stages(evidence, new_classes)
    ]


def stage_helps_not_all(evidence: Evidence) -> list[Contrast]:
    """What it brings all seen classes, in A: less than the least help."""
    return [
        less(f"A, TwoStage less {arm.title}", two, one, _share(one), is_above=False)
        for arm, two, one in _stages(evidence, average)
    ]


def _stages(evidence: Evidence, measure: Measure) -> list[tuple[Arm, Values, Values]]:
    (point,) = SUITES["two-stage"].points
    two = evidence.values(s.TWO_STAGE, measure, point)
    return [(arm, two, evidence.values(arm, measure, point)) for arm in (s.ONE_STAGE, s.ONE_STAGE_AT_RATES)]


def no_gap(evidence: Evidence) -> list[Contrast]:
    """The stability gap of Replay and of DietCL, which has none: less than the least help."""
    (point,) = SUITES["stability-gap"].points
    pairs = zip(*(evidence.study.finished(arm, point) for arm in (s.DIETCL, s.ER)), strict=False)
    both = [pair for pair in pairs if not any(result.failure for result in pair)]
    ours, replay = (100 * np.array(gaps([pair[place] for pair in both])) for place in (0, 1))
    level = evidence.values(s.DIETCL, final, point)
    return [
        _above_zero("gap of ER", replay),
        less("gap of ER less of DietCL", replay, ours),
        less("gap of DietCL", ours, 0 * ours, _share(level), is_above=False),
    ]


def _above_zero(label: str, values: Values) -> Contrast:
    return less(label, values, 0 * values)


def _share(level: Values, share: float = HELP) -> float:
    return share * float(np.nanmean(level))


def _common(*values: Values) -> list[Values]:
    """Return measures over their common seeds."""
    seeds = min(map(len, values))
    return [each[:seeds] for each in values]
