"""The differences on which the paper's claims rest, computed from finished runs."""

from collections.abc import Sequence

import numpy as np

from reproduction import paper
from reproduction import suites as s
from reproduction.measures import Measure, after, average, final, first, gaps, new_classes, unevenness
from reproduction.study import Missing
from reproduction.suites import SUITES, Arm, Group, Point
from reproduction.verdicts import (
    HELP,
    SIMILAR,
    Contrast,
    Contrasts,
    Evidence,
    Values,
    at_peak,
    common,
    less,
    share,
    within,
)


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
    whole, masked, unmasked, balanced = common(*(evidence.values(arm, final) for arm in arms))
    return [
        less("reconstruction with, less without the masked loss", whole - masked, unmasked - balanced),
        less("reconstruction without the masked loss", unmasked, balanced, share(whole, HELP / 2), is_above=False),
    ]


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
        many, few = common(*(_at_rate(evidence, arm, rate) for rate in (0.05, 0.005)))
        return many - few

    ours = gain(s.DIETCL)
    return [less(f"gain of DietCL less of {arm.title}", ours, gain(arm)) for arm in (s.GDUMB, s.CASSLE)]


def enough_labels(evidence: Evidence) -> list[Contrast]:
    """What the last doubling of labels brings DietCL."""
    many, most = (_at_rate(evidence, s.DIETCL, rate) for rate in (0.05, 0.1))
    return [less("10 % less 5 %", most, many, share(many), is_above=False)]


def _at_rate(evidence: Evidence, arm: Arm, rate: float) -> Values:
    return evidence.values(arm, average, Point(label_rate=rate))


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
                share(usual, SIMILAR),
            )
        ]

    return contrasts


def longer_is_worse(name: str, measure: Measure) -> Contrasts:
    """What GDumb and CaSSLe lose from the shortest to the longest stream: more than what counts as similar."""

    def lost(evidence: Evidence, arm: Arm) -> Contrast:
        short, long = (evidence.values(arm, measure, s.of_length(steps)) for steps in (10, 100))
        return less(f"{name} of {arm.title}, T = 10 less T = 100", short, long, share(short, SIMILAR))

    return lambda evidence: [lost(evidence, arm) for arm in (s.GDUMB, s.CASSLE)]


def same_threshold(evidence: Evidence) -> list[Contrast]:
    """The better of the upper two thresholds less the better of the lower two, after each time step that may choose."""

    def better(t: int, points: Sequence[Point]) -> Values:
        return at_peak(common(*(evidence.values(s.DIETCL, after(t), point) for point in points)))

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


def stage_helps_new(one_stage: Arm) -> Contrasts:
    """What a pre-training stage brings new classes."""
    (point,) = SUITES["two-stage"].points
    return change(f"new classes, TwoStage less {one_stage.title}", s.TWO_STAGE, one_stage, new_classes, point)


def stage_helps_not_all(one_stage: Arm) -> Contrasts:
    """What it brings all seen classes, in A: less than the least help."""
    (point,) = SUITES["two-stage"].points

    def contrasts(evidence: Evidence) -> list[Contrast]:
        two, one = (evidence.values(arm, average, point) for arm in (s.TWO_STAGE, one_stage))
        return [less(f"A, TwoStage less {one_stage.title}", two, one, share(one), is_above=False)]

    return contrasts


def no_gap(evidence: Evidence) -> list[Contrast]:
    """The stability gap of Replay and of DietCL, which has none: less than the least help."""
    (point,) = SUITES["stability-gap"].points
    pairs = zip(*(evidence.study.finished(arm, point) for arm in (s.DIETCL, s.ER)), strict=False)
    both = [pair for pair in pairs if not any(result.failure for result in pair)]
    ours, replay = (100 * np.array(gaps([pair[place] for pair in both])) for place in (0, 1))
    level = evidence.values(s.DIETCL, final, point)
    return [
        less("gap of ER", replay, 0 * replay),
        less("gap of ER less of DietCL", replay, ours),
        less("gap of DietCL", ours, 0 * ours, share(level), is_above=False),
    ]
