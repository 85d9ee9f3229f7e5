"""The paper's claims, each as differences that are paired by seed, and whether they hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dietcl.experiments import paper
from dietcl.experiments import suites as s
from dietcl.experiments.evidence import Contrast, Evidence, Values, less, within
from dietcl.experiments.show.views import Measure, after, average, final, gap, new_classes, unevenness
from dietcl.experiments.study import Missing, Study
from dietcl.experiments.suites import Arm, Group, Point

MARGIN = 1.0
"""Points that count as no difference where the paper says that there is none."""
LENGTH_MARGIN = 2.7
"""The same over stream lengths, where the paper calls 24.9 and 22.2 similar."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, its number, the suite that tests it, and the differences that must all lie so."""

    text: str
    paper: str
    suite: str
    contrasts: Callable[[Evidence], list[Contrast]]


def contrasts_of(claim: Claim, study: Study) -> list[Contrast]:
    """Return a claim's differences as far as they were measured on a setup; none if that is not far enough."""
    try:
        return claim.contrasts(Evidence(study))
    except Missing:
        return []


def _lead(groups: tuple[Group, ...], is_in_paper: bool) -> Callable[[Evidence], list[Contrast]]:
    """DietCL's lead in A(T) over every other method of some groups, of the paper's or of further ones."""
    others = [
        arm
        for arm in s.EVERY
        if arm.group in groups and arm is not s.DIETCL and (arm.title in paper.TABLE1) == is_in_paper
    ]

    def over(evidence: Evidence, arm: Arm) -> Contrast:
        ours, label = evidence.values(s.DIETCL, final), f"DietCL less {arm.title}"
        try:
            return less(label, ours, evidence.values(arm, final))
        except Missing:
            return Contrast(label, ())

    def contrasts(evidence: Evidence) -> list[Contrast]:
        return [over(evidence, arm) for arm in others]

    return contrasts


def _step(label: str, with_it: Arm, without: Arm, measure: Measure = final) -> Callable[[Evidence], list[Contrast]]:
    """What one change brings."""
    return lambda evidence: [less(label, evidence.values(with_it, measure), evidence.values(without, measure))]


def _little_without_mask(evidence: Evidence) -> list[Contrast]:
    arms = (s.WHOLE, s.MASKED_BALANCED, s.UNMASKED, s.BALANCED)
    whole, masked, unmasked, balanced = (evidence.values(arm, final)[: _common(evidence, arms)] for arm in arms)
    return [
        less("reconstruction with, less without the masked loss", whole - masked, unmasked - balanced),
        less("reconstruction without the masked loss", unmasked, balanced, MARGIN, is_above=False),
    ]


def _common(evidence: Evidence, arms: Sequence[Arm]) -> int:
    return min(len(evidence.results(arm, Point())) for arm in arms)


def _collapse(evidence: Evidence) -> list[Contrast]:
    """Half of DietCL's accuracy less CaSSLe's, where the paper has a third (5.78 of 16.82)."""
    return [
        less(
            f"half of DietCL less CaSSLe at {updates}",
            evidence.values(s.DIETCL, final, Point(updates=updates)) / 2,
            evidence.values(s.CASSLE, final, Point(updates=updates)),
        )
        for updates in (100, 500)
    ]


def _overfits(arm: Arm) -> Callable[[Evidence], list[Contrast]]:
    """Replay at its peak less Replay with the largest budget."""
    return lambda evidence: [
        less(
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
    return [less(f"share that remains, {arm.title} less GDumb", remains(arm), gdumb) for arm in (s.DIETCL, s.CASSLE)]


def _early_drop(evidence: Evidence) -> list[Contrast]:
    """How much is lost from time step 1 to 5, of another method less of DietCL."""

    def lost(arm: Arm) -> Values:
        return evidence.values(arm, after(1)) - evidence.values(arm, after(5))

    ours = lost(s.DIETCL)
    return [less(f"loss by t = 5, {arm.title} less DietCL", lost(arm), ours) for arm in (s.EWC, s.MAS, s.CASSLE)]


def _more_labels(evidence: Evidence) -> list[Contrast]:
    a = {rate: evidence.values(s.DIETCL, average, Point(label_rate=rate)) for rate in (0.005, 0.01, 0.05)}
    return [less("1 % less 0.5 %", a[0.01], a[0.005]), less("5 % less 1 %", a[0.05], a[0.01])]


def _enough_labels(evidence: Evidence) -> list[Contrast]:
    a = {rate: evidence.values(s.DIETCL, average, Point(label_rate=rate)) for rate in (0.05, 0.1)}
    return [less("10 % less 5 %", a[0.1], a[0.05], MARGIN, is_above=False)]


def _stable_budget(evidence: Evidence) -> list[Contrast]:
    usual = evidence.values(s.DIETCL, average)
    return [
        contrast
        for updates in (1500, 2500)
        for contrast in within(
            f"{updates:,} less 500 updates", evidence.values(s.DIETCL, average, Point(updates=updates)), usual, MARGIN
        )
    ]


def _stable_length(evidence: Evidence) -> list[Contrast]:
    """By A(T), which is of all classes; A has easier beginnings the fewer classes a time step brings."""
    usual = evidence.values(s.DIETCL, final)
    return [
        contrast
        for steps in (10, 50, 100)
        for contrast in within(
            f"T = {steps} less T = 20", evidence.values(s.DIETCL, final, s.of_length(steps)), usual, LENGTH_MARGIN
        )
    ]


_LONGER = s.SUITES["balance-phase"].points[0]


def _evens_out(evidence: Evidence) -> list[Contrast]:
    without, with_it = (evidence.values(arm, unevenness, _LONGER) for arm in (s.JOINT_ONLY, s.DIETCL))
    return [less("deviation over origins, without less with", without, with_it)]


def _phase_improves(evidence: Evidence) -> list[Contrast]:
    without, with_it = (evidence.values(arm, final, _LONGER) for arm in (s.JOINT_ONLY, s.DIETCL))
    return [less("A(T), with less without", with_it, without)]


_GAP = s.SUITES["stability-gap"].points[0]
_STAGES = s.SUITES["two-stage"].points[0]


def _no_gap(evidence: Evidence) -> list[Contrast]:
    ours, replay = (evidence.values(arm, gap, _GAP) for arm in (s.DIETCL, s.ER))
    return [
        less("gap of ER less of DietCL", replay, ours),
        less("gap of DietCL", ours, 0 * ours, MARGIN, is_above=False),
    ]


def _stage(label: str, measure: Measure, bound: float, is_above: bool) -> Callable[[Evidence], list[Contrast]]:
    return lambda evidence: [
        less(
            f"{label}, TwoStage less OneStage",
            evidence.values(s.TWO_STAGE, measure, _STAGES),
            evidence.values(s.ONE_STAGE, measure, _STAGES),
            bound,
            is_above,
        )
    ]


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "DietCL is above every supervised method",
        "+1.9, +1.0 and +1.5 over Replay, the next best",
        "table1",
        _lead(("supervised", "frozen encoder"), is_in_paper=True),
    ),
    Claim(
        "DietCL is above supervised methods that the paper leaves out",
        "not measured",
        "table1",
        _lead(("supervised", "frozen encoder"), is_in_paper=False),
    ),
    Claim(
        "DietCL is above every semi-supervised method",
        "+11.0, +4.1 and +17.2 over CaSSLe, the next best",
        "table1",
        _lead(("semi-supervised",), is_in_paper=True),
    ),
    Claim(
        "DietCL is above semi-supervised methods that the paper leaves out",
        "not measured",
        "table1",
        _lead(("semi-supervised",), is_in_paper=False),
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
    Claim("The memory-only phase evens accuracy out", "C.3", "balance-phase", _evens_out),
    Claim("The memory-only phase improves accuracy", "C.3", "balance-phase", _phase_improves),
    Claim("DietCL has no stability gap, and ER has one", "C.1", "stability-gap", _no_gap),
    Claim(
        "A pre-training stage helps new classes",
        "C.2",
        "two-stage",
        _stage("new classes", new_classes, 0.0, is_above=True),
    ),
    Claim(
        "A pre-training stage does not help all seen classes",
        "C.2",
        "two-stage",
        _stage("A", average, MARGIN, is_above=False),
    ),
)
