"""The paper's claims, each with its number there, the suite that tests it, and the differences that must all lie so."""

from collections.abc import Callable
from dataclasses import dataclass

from reproduction import budget_contrasts as b
from reproduction import contrasts as c
from reproduction import suites as s
from reproduction.datasets import Dataset
from reproduction.measures import average, final
from reproduction.study import Missing, Study
from reproduction.verdicts import Contrast, Contrasts, Evidence


def _testable(dataset: Dataset) -> str:
    return ""


def _even(dataset: Dataset) -> str:
    return "every time step has equally many labels, so that a balanced memory is the same" if dataset.is_even else ""


def _binary(dataset: Dataset) -> str:
    return "of two classes chance gets half right, so that a share of accuracy says little" if dataset.is_binary else ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper."""

    text: str
    paper: str
    suite: str
    contrasts: Contrasts
    untestable: Callable[[Dataset], str] = _testable
    """Says why a stream cannot test it, if so."""


def contrasts_of(claim: Claim, study: Study) -> list[Contrast]:
    """Return a claim's differences as far as they were measured on a dataset; none if that is not far enough."""
    try:
        return claim.contrasts(Evidence(study))
    except Missing:
        return []


_SUPERVISED: tuple[s.Group, ...] = ("supervised", "frozen encoder")
_SEMI_SUPERVISED: tuple[s.Group, ...] = ("semi-supervised",)
(_LONGER,) = s.SUITES["balance-phase"].points

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "DietCL is above every supervised method",
        "+1.9, +1.0 and +1.5 over Replay, the next best; +4.1 over ER uniform",
        "table1",
        c.lead(_SUPERVISED, is_in_paper=True),
    ),
    Claim(
        "DietCL is above supervised methods that the paper leaves out",
        "not measured",
        "table1",
        c.lead(_SUPERVISED, is_in_paper=False),
    ),
    Claim(
        "DietCL is above every semi-supervised method",
        "+11.0, +4.1 and +17.2 over CaSSLe, the next best",
        "table1",
        c.lead(_SEMI_SUPERVISED, is_in_paper=True),
    ),
    Claim(
        "DietCL is above semi-supervised methods that the paper leaves out",
        "no numbers",
        "table1",
        c.lead(_SEMI_SUPERVISED, is_in_paper=False),
    ),
    Claim(
        "DietCL has the highest A, too",
        "+2.1, +0.4 and +0.9 over Replay",
        "table1",
        c.lead((*_SUPERVISED, *_SEMI_SUPERVISED), is_in_paper=True, measure=average),
    ),
    Claim("The masked loss helps", "+0.9", "ablation", c.change("masked loss", s.MASKED, s.REPLAY)),
    Claim("Reconstruction helps", "+0.9", "ablation", c.change("reconstruction", s.WHOLE, s.MASKED_BALANCED)),
    Claim(
        "Reconstruction helps only little without the masked loss",
        "+0.2 without, +0.9 with it",
        "ablation-orders",
        c.little_without_mask,
        _binary,
    ),
    Claim(
        "It is the unlabeled images that help",
        "not measured",
        "ablation",
        c.change("unlabeled less labeled", s.WHOLE, s.LABELED_ONLY),
    ),
    Claim(
        "The balanced memory helps a little",
        "+0.1",
        "ablation",
        c.change("balanced memory", s.MASKED_BALANCED, s.MASKED),
        _even,
    ),
    Claim(
        "Balanced sampling beats uniform in ER",
        "+2.2",
        "sampling",
        c.change("balanced less uniform", s.ER, s.ER_UNIFORM),
    ),
    Claim("CaSSLe collapses at the usual budget", "5.8 against 16.8", "budget", b.collapses(s.PAPER_UPDATES), _binary),
    Claim("CaSSLe collapses at the smallest budget", "Figure 2", "budget", b.collapses(b.SMALLEST), _binary),
    Claim(
        "CaSSLe stays below DietCL up to the largest budget",
        "Figure 2",
        "budget",
        b.lead_at_budgets((s.CASSLE,), b.BUDGETS, final),
    ),
    Claim("CaSSLe converges more slowly than DietCL", "Figure 2", "budget", b.converges_slowly),
    Claim("DietCL has converged by 500 updates", "Figure 2", "budget", b.has_converged, _binary),
    Claim("DietCL is above Replay at every budget", "Figure 2", "budget", b.lead_at_budgets((s.ER,), b.BUDGETS, final)),
    Claim(
        "DietCL is above Replay at the same rates at every budget",
        "not measured",
        "budget",
        b.lead_at_budgets((s.ER_AT_RATES,), b.BUDGETS, final),
    ),
    Claim(
        "DietCL is above ER uniform at every budget",
        "not measured",
        "budget",
        b.lead_at_budgets((s.ER_UNIFORM,), b.BUDGETS, final),
    ),
    Claim("Small budgets cost Replay much", "Figure 2", "budget", b.degrades, _binary),
    Claim("ER (balanced, as in the paper) overfits past a budget", "Figure 2", "budget", b.overfits(s.ER)),
    Claim(
        "ER (balanced, at DietCL's rates) overfits past a budget", "not measured", "budget", b.overfits(s.ER_AT_RATES)
    ),
    Claim("ER (uniform) overfits past a budget", "not measured", "budget", b.overfits(s.ER_UNIFORM)),
    Claim("Replay overfits, and DietCL less", "Figure 2", "budget", b.overfits_less),
    Claim("The smallest budget hurts all three methods", "Figure 4", "budget-curves", b.hurt_by_little),
    Claim("GDumb is hurt most at the smallest budget", "Figure 4", "budget-curves", b.hurt_most),
    Claim(
        "DietCL is above GDumb and CaSSLe at the smallest budget",
        "Figure 4",
        "budget-curves",
        b.lead_at_budgets((s.GDUMB, s.CASSLE), (b.SMALLEST,), average),
    ),
    Claim("EWC, MAS and CaSSLe drop early", "Figure 3", "curves", c.early_drop),
    Claim("DietCL gains from more labels, from 0.5 to 5 %", "Figure 5", "label-rate", c.more_labels),
    Claim("GDumb and CaSSLe gain less from them", "Figure 5", "label-rate", c.others_gain_less),
    Claim("From 5 to 10 % labels brings DietCL nothing", "Figure 5", "label-rate", c.enough_labels, _binary),
    Claim("DietCL is stable over budgets", "Figure 4", "budget-curves", b.stable_budget, _binary),
    Claim(
        "DietCL is stable over stream lengths, by A",
        "24.4, 24.9, 23.7, 22.2 for T = 10, 20, 50, 100",
        "stream-length",
        c.stable_length("A", average),
        _binary,
    ),
    Claim(
        "DietCL is stable over stream lengths, by A(T)",
        "not measured",
        "stream-length",
        c.stable_length("A(T)", final),
        _binary,
    ),
    Claim(
        "GDumb and CaSSLe are worse on longer streams, by A",
        "Figure 6",
        "stream-length",
        c.longer_is_worse("A", average),
        _binary,
    ),
    Claim(
        "GDumb and CaSSLe are worse on longer streams, by A(T)",
        "not measured",
        "stream-length",
        c.longer_is_worse("A(T)", final),
        _binary,
    ),
    Claim("Time steps 2, 3 and 4 all choose B = 400 to 450", "+0.2, +0.3 and +0.3", "threshold", c.same_threshold),
    Claim("The memory-only phase evens accuracy out", "C.3", "balance-phase", c.evens_out),
    Claim(
        "The memory-only phase improves accuracy",
        "C.3",
        "balance-phase",
        c.change("A(T), with less without", s.DIETCL, s.JOINT_ONLY, point=_LONGER),
    ),
    Claim("DietCL has no stability gap, and ER has one", "C.1", "stability-gap", c.no_gap, _binary),
    Claim("A pre-training stage helps new classes", "C.2", "two-stage", c.stage_helps_new(s.ONE_STAGE)),
    Claim(
        "A pre-training stage helps new classes, at the same rates",
        "not measured",
        "two-stage",
        c.stage_helps_new(s.ONE_STAGE_AT_RATES),
    ),
    Claim(
        "A pre-training stage does not help all seen classes",
        "C.2",
        "two-stage",
        c.stage_helps_not_all(s.ONE_STAGE),
        _binary,
    ),
    Claim(
        "A pre-training stage does not help all seen classes, at the same rates",
        "not measured",
        "two-stage",
        c.stage_helps_not_all(s.ONE_STAGE_AT_RATES),
        _binary,
    ),
)
