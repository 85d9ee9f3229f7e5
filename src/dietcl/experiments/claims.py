"""The paper's claims, each as differences that are paired by seed, and whether they hold: computed, not written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dietcl.experiments import suites as s
from dietcl.experiments.cells import Result
from dietcl.experiments.show.views import Measure, after, average, drop, final, new_classes, unevenness
from dietcl.experiments.study import Missing, Study
from dietcl.experiments.suites import Arm, Group, Point
from dietcl.metrics import paired_difference

Verdict = Literal["holds", "does not hold", "cannot tell"]
Values = npt.NDArray[np.float64]
MARGIN = 1.0
"""Points that count as no difference where the paper says that there is none."""
LENGTH_MARGIN = 2.7
"""Points between the paper's best and worst A over stream lengths, which it calls similar."""


@dataclass(frozen=True)
class Contrast:
    """A difference by seed, in points, and on which side of a bound the claim puts it."""

    label: str
    values: tuple[float, ...]
    bound: float = 0.0
    is_above: bool = True

    @property
    def interval(self) -> tuple[float, float, float]:
        """Mean, and the 95 % interval of the mean."""
        return paired_difference(self.values, [0.0] * len(self.values))

    @property
    def verdict(self) -> Verdict:
        """Whether the whole interval lies on the claimed side, on the other one, or neither."""
        if len(self.values) < 2:
            return "cannot tell"
        _, low, high = self.interval
        above, below = low > self.bound, high < self.bound
        if above == below:
            return "cannot tell"
        return "holds" if above == self.is_above else "does not hold"

    def __str__(self) -> str:
        mean, low, high = self.interval
        text = f"{self.label}: {mean:+.1f}"
        return f"{text} [{low:+.1f}, {high:+.1f}]" if len(self.values) > 1 else text


@dataclass(frozen=True)
class Evidence:
    """The finished runs of a study."""

    study: Study

    def values(self, arm: Arm, measure: Measure, point: Point = Point()) -> Values:  # noqa: B008 (it is frozen)
        """Return a measure of an arm by seed, in percent."""
        return 100 * np.array([measure(result) for result in self.results(arm, point)])

    def results(self, arm: Arm, point: Point) -> tuple[Result, ...]:
        """Return the results of an arm by seed; raises Missing if there are none."""
        return self.study.finished(arm, point)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its number, the suite that tests it, and the differences that must all lie so."""

    text: str
    paper: str
    suite: str
    contrasts: Callable[[Evidence], list[Contrast]]


def judge(contrasts: Sequence[Contrast]) -> Verdict:
    """Return what follows from all differences together."""
    verdicts = {contrast.verdict for contrast in contrasts}
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts == {"holds"} else "cannot tell"


def contrasts_of(claim: Claim, study: Study) -> list[Contrast]:
    """Return a claim's differences as far as they were measured on a setup; none if that is not far enough."""
    try:
        return claim.contrasts(Evidence(study))
    except Missing:
        return []


def _less(label: str, one: Values, other: Values, bound: float = 0.0, is_above: bool = True) -> Contrast:
    common = min(len(one), len(other))
    return Contrast(label, tuple((one[:common] - other[:common]).tolist()), bound, is_above)


def _lead(groups: tuple[Group, ...]) -> Callable[[Evidence], list[Contrast]]:
    """DietCL's lead in A(T) over every other method of some groups; without values over one that was not run."""

    def over(evidence: Evidence, arm: Arm) -> Contrast:
        ours, label = evidence.values(s.DIETCL, final), f"DietCL less {arm.title}"
        try:
            return _less(label, ours, evidence.values(arm, final))
        except Missing:
            return Contrast(label, ())

    def contrasts(evidence: Evidence) -> list[Contrast]:
        return [over(evidence, arm) for arm in s.EVERY if arm.group in groups and arm is not s.DIETCL]

    return contrasts


def _step(label: str, with_it: Arm, without: Arm, measure: Measure = final) -> Callable[[Evidence], list[Contrast]]:
    """What one change brings."""
    return lambda evidence: [_less(label, evidence.values(with_it, measure), evidence.values(without, measure))]


def _little_without_mask(evidence: Evidence) -> list[Contrast]:
    arms = (s.WHOLE, s.MASKED_BALANCED, s.UNMASKED, s.BALANCED)
    whole, masked, unmasked, balanced = (evidence.values(arm, final)[: _common(evidence, arms)] for arm in arms)
    return [_less("reconstruction with, less without the masked loss", whole - masked, unmasked - balanced)]


def _common(evidence: Evidence, arms: Sequence[Arm]) -> int:
    return min(len(evidence.results(arm, Point())) for arm in arms)


def _collapse(evidence: Evidence) -> list[Contrast]:
    """Half of DietCL's accuracy less CaSSLe's, where the paper has a third (5.78 of 16.82)."""
    return [
        _less(
            f"half of DietCL less CaSSLe at {updates}",
            evidence.values(s.DIETCL, final, Point(updates=updates)) / 2,
            evidence.values(s.CASSLE, final, Point(updates=updates)),
        )
        for updates in (100, 500)
    ]


def _overfits(arm: Arm) -> Callable[[Evidence], list[Contrast]]:
    """Replay at its peak less Replay with the largest budget."""
    return lambda evidence: [
        _less(
            f"{arm.title} at 400 less at 2,500",
            evidence.values(arm, final, Point(updates=400)),
            evidence.values(arm, final, Point(updates=2500)),
        )
    ]


def _hurt_most(evidence: Evidence) -> list[Contrast]:
    """What remains of A at the smallest budget, of another method less of GDumb."""

    def remains(arm: Arm) -> Values:
        few, usual = (evidence.values(arm, average, Point(updates=updates)) for updates in (100, 500))
        common = min(len(few), len(usual))
        return 100 * few[:common] / usual[:common]

    gdumb = remains(s.GDUMB)
    return [_less(f"share that remains, {arm.title} less GDumb", remains(arm), gdumb) for arm in (s.DIETCL, s.CASSLE)]


def _early_drop(evidence: Evidence) -> list[Contrast]:
    """How much is lost from time step 1 to 5, of another method less of DietCL."""

    def lost(arm: Arm) -> Values:
        return evidence.values(arm, after(1)) - evidence.values(arm, after(5))

    ours = lost(s.DIETCL)
    return [_less(f"loss by t = 5, {arm.title} less DietCL", lost(arm), ours) for arm in (s.EWC, s.MAS, s.CASSLE)]


def _more_labels(evidence: Evidence) -> list[Contrast]:
    a = {rate: evidence.values(s.DIETCL, average, Point(label_rate=rate)) for rate in (0.005, 0.01, 0.05)}
    return [_less("1 % less 0.5 %", a[0.01], a[0.005]), _less("5 % less 1 %", a[0.05], a[0.01])]


def _enough_labels(evidence: Evidence) -> list[Contrast]:
    a = {rate: evidence.values(s.DIETCL, average, Point(label_rate=rate)) for rate in (0.05, 0.1)}
    return [_less("10 % less 5 %", a[0.1], a[0.05], MARGIN, is_above=False)]


def _stable_budget(evidence: Evidence) -> list[Contrast]:
    a = {updates: evidence.values(s.DIETCL, average, Point(updates=updates)) for updates in (500, 2500)}
    return [_less("500 less 2,500 updates", a[500], a[2500], MARGIN, is_above=False)]


def _stable_length(evidence: Evidence) -> list[Contrast]:
    def at(arm: Arm, steps: int) -> Values:
        return evidence.values(arm, average, s.of_length(steps))

    return [_less("T = 20 less T = 100", at(s.DIETCL, 20), at(s.DIETCL, 100), LENGTH_MARGIN, is_above=False)]


def _evens_out(evidence: Evidence) -> list[Contrast]:
    point = Point(updates=600)
    return [
        _less(
            "deviation over origins, without less with",
            evidence.values(s.JOINT_ONLY, unevenness, point),
            evidence.values(s.DIETCL, unevenness, point),
        ),
        _less(
            "A(T), with less without",
            evidence.values(s.DIETCL, final, point),
            evidence.values(s.JOINT_ONLY, final, point),
        ),
    ]


_GAP = s.SUITES["stability-gap"].points[0]
_STAGES = s.SUITES["two-stage"].points[0]


def _no_gap(evidence: Evidence) -> list[Contrast]:
    return [
        _less(
            "fall of earlier classes, ER less DietCL",
            evidence.values(s.ER, drop, _GAP),
            evidence.values(s.DIETCL, drop, _GAP),
        )
    ]


def _stage(label: str, measure: Measure, is_above: bool) -> Callable[[Evidence], list[Contrast]]:
    return lambda evidence: [
        _less(
            f"{label}, TwoStage less OneStage",
            evidence.values(s.TWO_STAGE, measure, _STAGES),
            evidence.values(s.ONE_STAGE, measure, _STAGES),
            is_above=is_above,
        )
    ]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "DietCL is above every supervised method",
        "+1.9, +1.0 and +1.5 over Replay, the next best",
        "table1",
        _lead(("supervised", "frozen encoder")),
    ),
    Claim(
        "DietCL is above every semi-supervised method",
        "+11.0, +4.1 and +17.2 over CaSSLe, the next best",
        "table1",
        _lead(("semi-supervised",)),
    ),
    Claim("The masked loss helps", "+0.9", "ablation", _step("masked loss", s.MASKED, s.REPLAY)),
    Claim("Reconstruction helps", "+0.9", "ablation", _step("reconstruction", s.WHOLE, s.MASKED_BALANCED)),
    Claim(
        "Reconstruction helps only little without the masked loss",
        "+0.2 without, +0.9 with it",
        "ablation-orders",
        _little_without_mask,
    ),
    Claim(
        "It is the unlabeled images that help",
        "not measured",
        "ablation",
        _step("unlabeled less labeled", s.WHOLE, s.LABELED_ONLY),
    ),
    Claim(
        "The balanced memory helps a little",
        "+0.1",
        "ablation",
        _step("balanced memory", s.MASKED_BALANCED, s.MASKED),
    ),
    Claim(
        "Balanced sampling beats uniform in ER", "+2.2", "sampling", _step("balanced less uniform", s.ER, s.ER_UNIFORM)
    ),
    Claim("CaSSLe collapses at small budgets", "5.8 against 16.8", "budget", _collapse),
    Claim("ER (balanced, as in the paper) overfits past a budget", "Figure 2", "budget", _overfits(s.ER)),
    Claim("ER (uniform) overfits past a budget", "not measured", "budget", _overfits(s.ER_UNIFORM)),
    Claim("GDumb is hurt most at the smallest budget", "Figure 4", "budget-curves", _hurt_most),
    Claim("EWC, MAS and CaSSLe drop early", "Figure 3", "curves", _early_drop),
    Claim("DietCL gains from more labels, from 0.5 to 5 %", "Figure 5", "label-rate", _more_labels),
    Claim("From 5 to 10 % labels brings DietCL nothing", "Figure 5", "label-rate", _enough_labels),
    Claim("DietCL is stable over budgets", "Figure 4", "budget-curves", _stable_budget),
    Claim("DietCL is stable over stream lengths", "24.9 and 22.2", "stream-length", _stable_length),
    Claim("The memory-only phase evens accuracy out, and improves it", "C.3", "balance-phase", _evens_out),
    Claim("DietCL has less of a stability gap than ER", "C.1", "stability-gap", _no_gap),
    Claim(
        "A pre-training stage helps new classes",
        "C.2",
        "two-stage",
        _stage("new classes", new_classes, is_above=True),
    ),
    Claim(
        "A pre-training stage does not help all seen classes", "C.2", "two-stage", _stage("A", average, is_above=False)
    ),
)
