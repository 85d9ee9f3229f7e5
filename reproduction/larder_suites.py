"""Suites about Larder: at equal FLOPs, with rates searched at the budget that is reported, and seeds of their own."""

from dataclasses import replace
from functools import partial

from reproduction.protocol import Protocol
from reproduction.suites import (
    ACM,
    DIETCL,
    ER,
    ER_ACE,
    ER_AT_RATES,
    ER_UNIFORM,
    FIXMATCH,
    FROZEN,
    NCM,
    RANPAC,
    Arm,
    Point,
    Suite,
    of_length,
)
from reproduction.trials import SEARCH_AT_BUDGET

POWER = Protocol(search=SEARCH_AT_BUDGET, first_seed=20, tests_all_at_end=True)
TRYING = replace(POWER, first_seed=140, is_held_out=True)  # what was decided by it has seen nothing that is reported
MANY_CLASSES, WIDE = "glyphs1000", "cifar100-wide"
LEARNED_STREAMS = ("cifar100", "glyphs", "fruits360", "yearbook")
FROZEN_STREAMS = ("cifar100-lite", "fruits360-lite", "yearbook-lite")

LARDER = Arm(title="Larder", method="larder", group="semi-supervised")
LARDER_SMALL = Arm(title="Larder small", method="larder:small", tuned_as="larder", group="semi-supervised")
_control = partial(Arm, tuned_as="larder", group="semi-supervised")
LARDER_CONTROLS = (
    _control(title="Larder without guesses", method="larder", options={"guessed": 0.0}),
    _control(title="Larder, guesses as labels", method="larder_hard"),
    _control(title="Larder, guesses not corrected", method="larder_uncorrected"),
    _control(title="Larder, label spreading alone", method="larder_spread"),
    _control(title="Larder, ridge alone", method="larder_ridge"),
    _control(title="Larder, guesses trusted alike", method="larder_alike"),
    _control(title="Larder, guesses forgotten", method="larder_forgetful"),
    _control(title="Larder, answers under the last weights", method="larder_last_weights"),
    _control(title="Larder, guesses of FixMatch", method="larder_fixmatch"),
    _control(title="Larder, true labels", method="larder_oracle"),
)
LARDER_TRIED = (
    _control(title="Larder, at most 4 guesses a label", method="larder", options={"per_label": 4}),
    _control(title="Larder, at most 10 guesses a label", method="larder", options={"per_label": 10}),
    _control(title="Larder, guessed classes balanced", method="larder_balanced"),
    _control(title="Larder, labels and guesses mixed", method="larder_mixed"),
    _control(title="Larder, strong views of guesses", method="larder_strong"),
    _control(title="Larder, guessed twice", method="larder_twice"),
    _control(title="Larder, old guesses looked at again", method="larder_revised"),
    _control(title="Larder with reconstruction", method="larder_reconstruct"),
    _control(title="Larder with the masked loss", method="larder_masked"),
    _control(title="Larder, answers blended with a solved head", method="larder_blended"),
)
ER_UNIFORM_AS_DIETCL = Arm(title="ER uniform at DietCL's rates", method="er:uniform", tuned_as="dietcl")
ER_UNIFORM_AS_LARDER = Arm(title="ER uniform at Larder's rates", method="er:uniform", tuned_as="larder")
ER_AS_LARDER = Arm(title="ER balanced at Larder's rates", method="er", tuned_as="larder")
_ONE_PHASE = {"threshold": "100%"}
ONE_PHASE = replace(DIETCL, title="DietCL in one phase", options=_ONE_PHASE, tuned_as="dietcl")
ONE_PHASE_REPLAY = replace(
    ONE_PHASE,
    title="DietCL in one phase without reconstruction",
    options={**_ONE_PHASE, "unlabeled": 0.0, "labeled": 0.5, "memory": 0.5},
)
UNBROKEN = replace(DIETCL, title="DietCL, unbroken", method="dietcl:unbroken", tuned_as="dietcl")
DIETCL_AVERAGED = replace(DIETCL, title="DietCL, averaged", method="dietcl_averaged", tuned_as="dietcl")
DIETCL_CONTROLS = (ONE_PHASE, ONE_PHASE_REPLAY, UNBROKEN, DIETCL_AVERAGED)

METHODS = (LARDER, ER_UNIFORM, DIETCL, ER, FIXMATCH, ER_ACE, FROZEN, RANPAC, LARDER_SMALL)
AT_RATES = (LARDER, DIETCL, ER_UNIFORM, ER, ER_UNIFORM_AS_DIETCL, ER_AT_RATES, ER_UNIFORM_AS_LARDER, ER_AS_LARDER)
LARDER_PARTS = (LARDER, LARDER_SMALL, *LARDER_CONTROLS, DIETCL, *DIETCL_CONTROLS)
RANPAC_FROZEN = replace(RANPAC, title="RanPAC, frozen", method="ranpac:frozen")
FROZEN_HALF = replace(FROZEN, title="Frozen, solved head, half whitened", options={"scale": "half"})
FROZEN_ARMS = (LARDER, FROZEN, FROZEN_HALF, NCM, ACM, RANPAC_FROZEN, LARDER_SMALL)
_THREE = (LARDER, DIETCL, ER_UNIFORM)


def _powerful(point: Point, protocol: Protocol = POWER) -> Point:
    return replace(point, accounting="flops", protocol=protocol)


_suite = partial(
    Suite,
    place="beyond the paper",
    points=(_powerful(Point()),),
    leader=LARDER.title,
    judges_leader=True,
)
LARDER_SUITES: dict[str, Suite] = {
    "methods": _suite(
        title="Methods at equal FLOPs, among them Larder",
        question="Whether Larder is above every other method.",
        arms=METHODS,
        seeds=8,
    ),
    "methods-at-rates": _suite(
        title="Replay at the rates of others",
        question="What of a lead over Replay is owed to the rates that the search chose.",
        arms=AT_RATES,
        seeds=4,
    ),
    "larder-parts": _suite(
        title="The parts of Larder",
        question="What each part of Larder adds, and what is owed to spending the budget in one phase.",
        arms=LARDER_PARTS,
        seeds=4,
    ),
    "larder-regimes": _suite(
        title="From a starved to a generous budget, with Larder",
        place="beyond the paper: S*/4, 1.25 S* and 4 S*",
        question="Whether Larder's place depends on the budget.",
        arms=(*_THREE, FIXMATCH),
        points=tuple(_powerful(Point(updates=updates)) for updates in (100, 500, 1600)),
        view="lines",
        seeds=4,
    ),
    "larder-label-rate": _suite(
        title="Accuracy along the stream by label rate, with Larder",
        question="Whether Larder's place depends on how many labels there are.",
        arms=_THREE,
        points=tuple(_powerful(Point(label_rate=rate)) for rate in (0.005, 0.01, 0.05, 0.1)),
        view="panels",
    ),
    "larder-stream-length": _suite(
        title="Accuracy along the stream by its length, with Larder",
        question="Whether Larder's place depends on the number of time steps, at the same total budget.",
        arms=_THREE,
        points=tuple(_powerful(of_length(steps)) for steps in (10, 20, 50, 100)),
        view="panels",
    ),
    "larder-many-classes": _suite(
        title="Many classes, one label each",
        question="Whether Larder's lead lasts with one label a class and a hundred new classes a time step.",
        arms=(LARDER, ER_UNIFORM),
        points=(_powerful(Point(updates=100)),),
        seeds=5,
        streams=(MANY_CLASSES,),
    ),
    "larder-wide": _suite(
        title="Few, wide time steps and finer patches",
        question="Whether Larder's lead lasts with finer patches and twenty new classes a time step.",
        arms=(*_THREE, ER),
        seeds=5,
        streams=(WIDE,),
    ),
    "larder-frozen": _suite(
        title="Methods that leave the encoder as it is",
        question="Whether guessed labels are worth as much where features are good and do not change.",
        arms=FROZEN_ARMS,
        seeds=5,
        streams=FROZEN_STREAMS,
    ),
    "larder-tried": _suite(
        title="Ideas that were tried on Larder",
        place="beyond the paper: on held-out training images",
        question="What ideas would add that Larder does without.",
        arms=(LARDER, *LARDER_TRIED),
        points=(_powerful(Point(), TRYING),),
        seeds=4,
        streams=LEARNED_STREAMS,
    ),
}
