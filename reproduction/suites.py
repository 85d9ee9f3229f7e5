"""Suites: every table and figure of the paper as data, in the paper's own terms.

A method or a control joins a suite by one more `Arm` in its list; a stream joins all suites by one more line in
`datasets.DATASETS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from reproduction.protocol import Protocol

PAPER_UPDATES = 500
PAPER_RATE = 0.01
PAPER_THRESHOLD = 400
PAPER_TIME_STEPS = 20
THRESHOLD_STEPS = (2, 3, 4)
"""Time steps after which the paper would choose B."""

Group = Literal["reference", "supervised", "semi-supervised", "frozen encoder"]
View = Literal["table", "curves", "lines", "panels", "steps", "gap", "stages", "origins", "spending", "heads"]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One row of a table or line of a figure: a method, with options that differ from its own."""

    title: str
    method: str
    """METHOD or METHOD:VARIANT."""
    options: Mapping[str, Any] = field(default_factory=dict)
    tuned_as: str = ""
    """The method whose searched rates it takes, if another."""
    group: Group = "supervised"
    is_decisive: bool = False
    """The paper's claims rest on it, so that most suites give it two seeds more."""

    @property
    def rates_of(self) -> str:
        """The method whose searched rates it takes."""
        return self.tuned_as or self.method


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where arms are measured, as the paper says it of ImageNet10k; a dataset scales it to its own size."""

    updates: int = PAPER_UPDATES
    """Per time step."""
    label_rate: float = PAPER_RATE
    time_steps: int = PAPER_TIME_STEPS
    first_time_steps: int | None = None
    curves: int = 0
    threshold: int = PAPER_THRESHOLD
    """DietCL's B: updates' worth of passes that its joint phase may take."""
    accounting: Literal["images", "flops"] = "images"
    protocol: Protocol = Protocol()  # noqa: RUF009 (it is frozen)
    is_for_decisive: bool = False
    """Whether decisive arms alone are measured here."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A table or figure: every arm at every point that is for it."""

    title: str
    place: str
    """Where it is in the paper."""
    question: str
    """What a reader should look for."""
    arms: tuple[Arm, ...]
    points: tuple[Point, ...] = (Point(),)
    view: View = "table"
    seeds: int = 3
    """Runs of each arm, unless the user says otherwise."""
    more_seeds: bool = False
    """Give decisive arms two seeds more."""
    streams: tuple[str, ...] = ()
    """The datasets that it is for, if not for all."""
    leader: str = "DietCL"
    """Title of the arm that the others are compared with."""
    judges_leader: bool = False
    """Whether its tables say if the leader is above the others, corrected for the number of differences."""

    def points_of(self, arm: Arm) -> tuple[Point, ...]:
        """Return where an arm is measured."""
        return tuple(point for point in self.points if arm.is_decisive or not point.is_for_decisive)


def scaled(updates: int, scale: float) -> int:
    """Return how many updates correspond to `updates` of the paper."""
    return max(1, round(updates * scale))


UPPER_BOUND = Arm(title="Upper bound (joint)", method="joint", group="reference")
EWC = Arm(title="EWC", method="ewc")
MAS = Arm(title="MAS", method="mas")
ER = Arm(title="ER balanced", method="er", is_decisive=True)
ER_UNIFORM = Arm(title="ER uniform", method="er:uniform", is_decisive=True)
GDUMB = Arm(title="GDumb", method="gdumb")
ER_ACE = Arm(title="ER-ACE", method="er_ace")
L2P = Arm(title="L2P", method="l2p")
DERPP = Arm(title="DER++", method="derpp")
LWF = Arm(title="LwF", method="lwf")
NAIVE = Arm(title="Fine-tuning", method="naive")
DUALNET = Arm(title="DualNet", method="dualnet", group="semi-supervised")
CASSLE = Arm(title="CaSSLe", method="cassle", group="semi-supervised")
CCIC = Arm(title="CCIC", method="ccic", group="semi-supervised")
FIXMATCH = Arm(title="FixMatch", method="fixmatch", group="semi-supervised", is_decisive=True)
TWO_STAGE = Arm(title="TwoStage", method="two_stage", group="semi-supervised")
DIETCL = Arm(title="DietCL", method="dietcl", group="semi-supervised", is_decisive=True)
FROZEN = Arm(title="Frozen, solved head", method="linear_probe", group="frozen encoder", is_decisive=True)
RANPAC = Arm(title="RanPAC", method="ranpac", group="frozen encoder", is_decisive=True)
NCM = Arm(title="NCM", method="ncm", group="frozen encoder")
ACM = Arm(title="ACM", method="acm", group="frozen encoder")

EVERY = (
    *(UPPER_BOUND, EWC, MAS, ER, ER_UNIFORM, GDUMB, ER_ACE, L2P, DERPP, LWF, NAIVE),
    *(FROZEN, RANPAC, NCM, ACM, DUALNET, CASSLE, CCIC, FIXMATCH, TWO_STAGE, DIETCL),
)
DECISIVE = tuple(arm for arm in EVERY if arm.is_decisive)


def _part(title: str, **options: Any) -> Arm:
    """Return DietCL without some of its parts, whose shares of the batch go to the others, at DietCL's rates."""
    return Arm(title=title, method="dietcl", options=options, tuned_as="dietcl", group="semi-supervised")


def of_length(time_steps: int) -> Point:
    """Return the point of a stream cut into `time_steps` parts, at the paper's total budget."""
    return Point(updates=PAPER_TIME_STEPS * PAPER_UPDATES // time_steps, time_steps=time_steps)


_HALVES = {"unlabeled": 0.0, "labeled": 0.5, "memory": 0.5}
REPLAY = _part("Replay in two phases", **_HALVES, mask_classes=False, balance_memory=False)
MASKED = _part("Replay + masked loss", **_HALVES, balance_memory=False)
BALANCED = _part("Replay + balanced memory", **_HALVES, mask_classes=False)
MASKED_BALANCED = _part("Replay + masked loss + balanced memory", **_HALVES)
UNMASKED = _part("Replay + balanced memory + reconstruction", mask_classes=False)
WHOLE = _part("All: DietCL")
LABELED_ONLY = _part("DietCL, reconstructing labeled images only", reconstruct="labeled")
JOINT_ONLY = _part("Without the memory-only phase", threshold="100%")
ER_AT_RATES = Arm(title="ER balanced at DietCL's rates", method="er", tuned_as="dietcl", is_decisive=True)
ONE_STAGE = Arm(title="OneStage", method="er:uniform")
ONE_STAGE_AT_RATES = Arm(title="OneStage at TwoStage's rates", method="er:uniform", tuned_as="two_stage")
MAE_ONLY = Arm(
    title="Reconstruction only",
    method="two_stage",
    options={"pretrain": 1.0},
    tuned_as="two_stage",
    group="semi-supervised",
)
THREE = (DIETCL, CASSLE, GDUMB)

# In the order of their worth.
SUITES: dict[str, Suite] = {
    "table1": Suite(
        title="Methods under the same budget",
        place="Table 1",
        question="Accuracy after the last time step, A(T), and its mean along the stream, A.",
        arms=EVERY,
        more_seeds=True,
    ),
    "regimes": Suite(
        title="The decisive methods from a starved to a generous budget",
        place="beyond the paper: S*/4, 1.25 S* and 4 S*",
        question="Whether the order of the methods depends on the budget.",
        arms=DECISIVE,
        points=(Point(updates=100), Point(), Point(updates=1600)),
        view="lines",
    ),
    "ablation": Suite(
        title="The parts of DietCL",
        place="Table 2",
        question="What the masked loss, the balanced memory and the reconstruction add to Replay in two phases.",
        arms=(ER, ER_AT_RATES, REPLAY, MASKED, MASKED_BALANCED, WHOLE, LABELED_ONLY),
    ),
    "ablation-orders": Suite(
        title="The parts of DietCL in other orders",
        place="Appendix B.4",
        question="Whether what a part adds depends on the parts that are there already.",
        arms=(ER, REPLAY, BALANCED, MASKED_BALANCED, UNMASKED, WHOLE),
    ),
    "sampling": Suite(
        title="Uniform and balanced sampling in Replay",
        place="Table 5",
        question="Whether half a batch of new labels is better than all labels alike.",
        arms=(ER_UNIFORM, ER),
        more_seeds=True,
    ),
    "budget": Suite(
        title="Accuracy by budget",
        place="Figure 2",
        question="Where Replay stops gaining or overfits, and how slowly CaSSLe converges.",
        # Replay at DietCL's rates is a control, of three seeds.
        arms=(ER, replace(ER_AT_RATES, is_decisive=False), ER_UNIFORM, CASSLE, DIETCL),
        points=tuple(Point(updates=updates) for updates in (100, 200, 400, 500, 1500, 2500)),
        view="lines",
        more_seeds=True,
    ),
    "curves": Suite(
        title="Accuracy along the stream",
        place="Figure 3",
        question="Which methods drop early, and which one stays on top.",
        arms=EVERY,
        view="curves",
        more_seeds=True,
    ),
    "label-rate": Suite(
        title="Accuracy along the stream by label rate",
        place="Figure 5",
        question="Whether more labels help, at the same budget.",
        arms=THREE,
        points=tuple(Point(label_rate=rate) for rate in (0.005, 0.01, 0.05, 0.1)),
        view="panels",
        more_seeds=True,
    ),
    "budget-curves": Suite(
        title="Accuracy along the stream by budget",
        place="Figure 4",
        question="Which method suffers most from the smallest budget.",
        arms=THREE,
        points=tuple(Point(updates=updates) for updates in (100, 500, 1500, 2500)),
        view="panels",
        more_seeds=True,
    ),
    "stream-length": Suite(
        title="Accuracy along the stream by its length",
        place="Figure 6",
        question="Whether many short time steps are harder than few long ones, at the same total budget.",
        arms=THREE,
        points=tuple(map(of_length, (10, 20, 50, 100))),
        view="panels",
        more_seeds=True,
    ),
    "threshold": Suite(
        title="The threshold B by accuracy after few time steps",
        place="Table 6",
        question="Whether time steps 2, 3 and 4 would all choose the same B.",
        arms=(DIETCL,),
        points=tuple(
            Point(threshold=threshold, first_time_steps=THRESHOLD_STEPS[-1]) for threshold in (300, 350, 400, 450)
        ),
        view="steps",
    ),
    "stability-gap": Suite(
        title="Within the third time step",
        place="Appendix C.1",
        question="Whether accuracy on earlier classes drops while new ones are learned.",
        arms=(ER, DIETCL),
        points=(Point(updates=300, first_time_steps=3, curves=30),),
        view="gap",
    ),
    "two-stage": Suite(
        title="A pre-training stage in every time step",
        place="Appendix C.2",
        question="Whether it helps new classes, and all seen ones.",
        arms=(ONE_STAGE, ONE_STAGE_AT_RATES, TWO_STAGE),
        points=(Point(updates=2500, label_rate=0.005),),
        view="stages",
    ),
    "balance-phase": Suite(
        title="The memory-only phase",
        place="Appendix C.3",
        question="Whether it evens accuracy out over the time steps of origin.",
        arms=(JOINT_ONLY, DIETCL),
        points=(Point(updates=600),),
        view="origins",
    ),
    "cost": Suite(
        title="What the same budget costs, and the decisive methods at equal FLOPs",
        place="beyond the paper",
        question="Where FLOPs go, and whether DietCL's cheaper passes are owed to it.",
        arms=EVERY,
        points=(Point(), Point(accounting="flops", is_for_decisive=True)),
        view="spending",
        more_seeds=True,
    ),
    "solved-heads": Suite(
        title="The encoders under a head that is solved",
        place="beyond the paper",
        question="What each method taught its encoder, apart from its head.",
        arms=(FROZEN, MAE_ONLY, ER, ER_AT_RATES, ER_UNIFORM, FIXMATCH, DIETCL),
        view="heads",
        more_seeds=True,
    ),
}
