"""Phases that go on where the last one stopped, and sweeps between them that end early and tell the method so."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.budget.ledger import Allotment
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.engine.loop import advance, learn
from dietcl.engine.resume_position import Position, StepPosition
from dietcl.engine.state import restore_state, save_state
from dietcl.methods.base import Phase, PlannedMethod, Reserve, Sweep
from dietcl.streams.options import Augmentation, Mix
from helpers.recording import Notes, equal, run_through, updates_of, weights
from helpers.tiny import tiny_config, tiny_learner

LABELED = Mix(labeled=1)


class Planned(PlannedMethod):
    """Follows a plan that is the same in every time step, and notes what it is asked in which order."""

    def __init__(self, *segments):
        super().__init__(None)
        self.segments, self.log, self.rows = segments, [], []

    def plan(self, step, remaining):
        return self.segments

    def after_update(self, net, phase):
        self.log.append(f"update of {phase.name}")

    def end_phase(self, net, phase):
        self.log.append(f"end of {phase.name}")

    def gather(self, net, sweep, part):
        net.features(part.images, sweep.name)
        return {"rows": part.rows}

    def absorb(self, net, sweep, gathered):
        self.rows.append(gathered["rows"].tolist())
        self.log.append(f"{len(gathered['rows'])} of {sweep.name}")

    def end_sweep(self, net, step, sweep):
        assert sweep in self.segments
        assert net.classes == step.seen_classes
        self.log.append(f"end of {sweep.name}")

    def end_step(self, net, step):
        self.log.append("end")


class Looking(Planned):
    """Looks at what a sweep shows without running the network, which is free."""

    def gather(self, net, sweep, part):
        return {"rows": part.rows}


def learner_of(blobs, method, budget="10", stream=None):
    learner = tiny_learner(tiny_config(blobs, budget=budget), stream)
    learner.method, learner.recorder = method, Notes()
    return learner


def rates_of(blobs, *segments, budget="10"):
    """Return the learning rates of the first time step by phase."""
    events = updates_of(learner_of(blobs, Planned(*segments), budget))
    return [(event["phase"], event["lr"]) for event in events if event["t"] == 1]


def cosine(fraction, scale=1.0):
    """The rate written out for a peak of 1e-3 and a floor of 1e-4."""
    peak, floor = 1e-3 * scale, 1e-4
    return floor + (peak - floor) * (1 + math.cos(math.pi * fraction)) / 2


# The learning rate.


@pytest.mark.parametrize("cuts", [(0.4,), (0.1,), (0.9,), (0.3, 0.5), (0.2, 0.4, 0.6, 0.8)])
def test_phases_that_go_on_have_the_rates_of_one_phase_over_the_same_spending(blobs, cuts):
    whole = [rate for _, rate in rates_of(blobs, Phase(name="whole", mix=LABELED))]
    ends = [0.0, *cuts, 1.0]
    # Of what remains, a phase gets the share that its part of the cosine has of the rest of the cosine.
    parts = [
        Phase(name=f"{first}", mix=LABELED, share=(last - first) / (1 - first), schedule=(first, last))
        for first, last in pairwise(ends)
    ]
    found = rates_of(blobs, *parts)
    assert [rate for _, rate in found] == pytest.approx(whole)
    assert whole == pytest.approx([cosine(k / 10) for k in range(10)])
    made = [sum(name == phase.name for name, _ in found) for phase in parts]
    assert made == [round(10 * (last - first)) for first, last in pairwise(ends)]


def test_a_phase_keeps_to_its_part_of_the_cosine_whatever_it_may_spend(blobs):
    found = rates_of(
        blobs,
        Phase(name="few", mix=LABELED, updates=2, schedule=(0.0, 0.5)),
        Phase(name="more", mix=LABELED, updates=4, schedule=(0.5, 0.75), lr_scale=0.5),
        Phase(name="rest", mix=LABELED, schedule=(0.25, 0.25)),
    )
    by_hand = [cosine(0), cosine(0.25)]
    by_hand += [cosine(0.5 + 0.25 * k / 4, scale=0.5) for k in range(4)]
    by_hand += [cosine(0.25)] * 4  # a phase that begins and ends in one place has one rate
    assert [rate for _, rate in found] == pytest.approx(by_hand)


def test_a_sweep_between_takes_nothing_from_the_cosine(blobs):
    # 8 labels forward are 8/3 of 120 passes: after 4 updates of 12, six of the ten others are left.
    plan = [
        Phase(name="begin", mix=LABELED, share=0.4, schedule=(0.0, 0.4)),
        Sweep(name="look", pool="labeled"),
        Phase(name="go on", mix=LABELED, schedule=(0.4, 1.0)),
    ]
    found = rates_of(blobs, *plan)
    assert [name for name, _ in found] == ["begin"] * 4 + ["go on"] * 5
    left = 120 - 48 - 8 / 3
    by_hand = [cosine(k / 10) for k in range(4)] + [cosine(0.4 + 0.6 * 12 * k / left) for k in range(5)]
    assert [rate for _, rate in found] == pytest.approx(by_hand)


def test_a_phase_that_goes_on_after_one_that_did_not_fit_begins_at_its_own_place(blobs):
    # Of two updates' worth 0.8 is too little for one.
    plan = [
        Phase(name="begin", mix=LABELED, share=0.4, schedule=(0.0, 0.4)),
        Phase(name="go on", mix=LABELED, schedule=(0.4, 1.0)),
    ]
    assert rates_of(blobs, *plan, budget="2") == [
        ("go on", pytest.approx(cosine(0.4))),
        ("go on", pytest.approx(cosine(0.7))),
    ]
    learner = learner_of(blobs, Planned(*plan), "0.9")
    before = weights(learner)
    assert updates_of(learner) == []
    assert all(torch.equal(before[name], value) for name, value in weights(learner).items() if "head" not in name)
    assert learner.method.log == ["end of begin", "end of go on", "end"] * 3


# The optimizer.


def counters_of(learner):
    """Learn the whole stream; return AdamW's count of updates after each update, by time step and phase."""
    found = []
    for moment in advance(learner):
        if moment == "update":
            (optimizer,) = learner.optimizers.values()
            (count,) = {int(entry["step"]) for entry in optimizer.state.values()}
            found.append((learner.position.finished + 1, learner.position.step.segment.name, count))
    return found


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_the_optimizer_goes_on_over_sweeps_and_starts_afresh_with_a_cosine(blobs, looks):
    sweeps = [Sweep(name=f"look {k}", pool="labeled") for k in range(looks)]
    plan = [
        Phase(name="begin", mix=LABELED, updates=2, schedule=(0.0, 0.4)),
        *sweeps,
        Phase(name="go on", mix=LABELED, updates=3, schedule=(0.4, 1.0)),
        *sweeps,
        Phase(name="afresh", mix=LABELED, updates=2),
        Phase(name="end", mix=LABELED, updates=1, schedule=(0.9, 1.0)),
    ]
    learner = learner_of(blobs, Planned(*plan))
    of_step = [("begin", 1), ("begin", 2), ("go on", 3), ("go on", 4), ("go on", 5)]
    of_step += [("afresh", 1), ("afresh", 2), ("end", 3)]
    assert counters_of(learner) == [(t, *entry) for t in (1, 2, 3) for entry in of_step]
    assert not learner.optimizers  # nothing is left for the next time step, whose head has other parameters


def test_the_first_phase_of_a_time_step_has_nothing_to_go_on_with(blobs):
    learner = learner_of(blobs, Planned(Phase(name="late", mix=LABELED, updates=2, schedule=(0.5, 1.0))))
    assert counters_of(learner) == [(t, "late", count) for t in (1, 2, 3) for count in (1, 2)]


def test_every_turn_goes_on_with_its_own_optimizer(blobs):
    class Turns(Planned):
        def optimizer_name(self, net, key, pools):
            return "odd" if key[3] % 2 else "even"

    plan = [
        Phase(name="begin", mix=LABELED, updates=3, schedule=(0.0, 0.5)),
        Sweep(name="look", pool="labeled"),
        Phase(name="go on", mix=LABELED, updates=3, schedule=(0.5, 1.0)),
    ]
    learner, found = learner_of(blobs, Turns(*plan)), []
    for moment in advance(learner):
        if moment == "update":
            steps = {name: one.state_dict()["state"][0]["step"] for name, one in learner.optimizers.items()}
            found.append(tuple(int(steps.get(name, 0)) for name in ("even", "odd")))
    assert found[:6] == [(1, 0), (1, 1), (2, 1), (3, 1), (3, 2), (4, 2)]


def of_one_image(blobs):
    """A learner to whom every draw of every phase is the same: one image, neither cropped nor mixed."""
    learner = tiny_learner(tiny_config(blobs, budget="9"))
    first = learner.stream.steps[0]
    first = replace(first, labeled=first.labeled[:1], labels=first.labels[:1])
    stream = replace(learner.stream, steps=(first,), tests=learner.stream.tests[:1])
    plain = Augmentation(crop=1, flip=False, mixup=0, cutmix=0, smoothing=0)
    return tiny_learner(replace(learner.config, augmentation=plain), stream)


def learned_weights(blobs, *segments):
    learner = of_one_image(blobs)
    learner.method = Looking(*segments)
    return weights(run_through(learner))


def test_a_phase_cut_in_two_learns_what_it_learns_in_one_piece(blobs):
    whole = learned_weights(blobs, Phase(name="whole", mix=LABELED, updates=8))
    halves = [
        Phase(name="one", mix=LABELED, updates=4, schedule=(0.0, 0.5)),
        Phase(name="two", mix=LABELED, updates=4, schedule=(0.5, 1.0)),
    ]
    look = Sweep(name="look", pool="unlabeled")
    assert equal(learned_weights(blobs, *halves), whole)
    assert equal(learned_weights(blobs, halves[0], look, look, halves[1]), whole)
    # The moments matter: at the same rates a fresh optimizer leads elsewhere.
    afresh = learned_weights(blobs, halves[0], replace(halves[1], schedule=(0.0, 0.0)))
    going_on = learned_weights(blobs, halves[0], replace(halves[1], schedule=(1e-300, 0.0)))
    assert not equal(afresh, going_on)


def test_a_phase_that_starts_from_the_first_weights_learns_also_if_it_goes_on(blobs):
    plan = [
        Phase(name="one", mix=LABELED, updates=2, schedule=(0.0, 0.5)),
        Phase(name="two", mix=LABELED, updates=2, schedule=(0.5, 1.0), fresh=True),
    ]
    learner, untouched = of_one_image(blobs), of_one_image(blobs)
    learner.method = Planned(*plan)
    run_through(learner)
    untouched.net.reset(untouched.stream.steps[0])
    start, end = weights(untouched), weights(learner)
    assert not torch.equal(start["encoder.vit.norm.weight"], end["encoder.vit.norm.weight"])
    assert not torch.equal(start["head.weight"], end["head.weight"])


# Sweeps of a part of a pool.


@pytest.mark.parametrize(
    ("most", "images"), [(None, 32), (100, 32), (32, 32), (20, 20), (6, 6), (5, 5), (1, 1), (0, 0)]
)
def test_a_sweep_shows_at_most_so_many_images_each_once(blobs, most, images):
    method = Planned(Sweep(name="look", pool="unlabeled", most=most))
    learner = learner_of(blobs, method)
    next(learn(learner))
    rows = [row for part in method.rows for row in part]
    assert len(rows) == len(set(rows)) == images
    assert set(rows) <= set(learner.stream.steps[0].unlabeled.tolist())
    assert [len(part) for part in method.rows] == [6] * (images // 6) + [images % 6] * (images % 6 > 0)
    (event,) = learner.recorder.of("sweep")
    assert (event["images"], event["of"]) == (images, 32)


@pytest.mark.parametrize(
    ("share", "images"),
    [(1.0, 32), (0.09, 18), (0.07, 18), (0.06, 12), (0.001, 6)],  # 60 passes: a micro-batch is 2 of them
)
def test_a_sweep_stops_after_the_micro_batch_that_passes_its_share(blobs, share, images):
    learner = learner_of(blobs, Planned(Sweep(name="look", pool="unlabeled", share=share)), "5")
    next(learn(learner))
    assert learner.ledger.closed[0].spent == pytest.approx(images / 3)
    assert learner.recorder.of("sweep")[0]["images"] == images


def test_the_share_is_that_of_what_remains_and_is_not_reserved(blobs):
    # Two updates leave 36 of 60 passes, of which 4 are held back: 0.1 of 32 are 3.2, so the second micro-batch is over.
    plan = [
        Phase(name="begin", mix=LABELED, updates=2),
        Sweep(name="look", pool="unlabeled", share=0.1, reserve=Reserve(forward=12)),
        Sweep(name="again", pool="unlabeled", share=0.5, most=7),
    ]
    learner = learner_of(blobs, Planned(*plan), "5")
    next(learn(learner))
    assert [event["images"] for event in learner.recorder.of("sweep")] == [12, 7]
    (look,) = (item for item in learner.ledger.closed[0].items if item.purpose == "look")
    assert look.passes == pytest.approx(4)


def test_a_share_of_nothing_shows_nothing(blobs):
    plan = [Phase(name="all", mix=LABELED), Sweep(name="look", pool="unlabeled", share=0.5)]
    learner = learner_of(blobs, Planned(*plan), "2")
    next(learn(learner))
    assert learner.recorder.of("sweep")[0]["images"] == 0
    assert learner.ledger.closed[0].spent == 24


@settings(max_examples=25, deadline=None, derandomize=True)
@given(share=st.floats(0, 1), budget=st.floats(0.05, 2), most=st.integers(0, 40), before=st.integers(0, 1))
def test_no_share_is_overdrawn_by_more_than_a_micro_batch(blobs, share, budget, most, before):
    first = Phase(name="begin", mix=LABELED, updates=before)
    method = Planned(first, Sweep(name="look", pool="unlabeled", share=share, most=most))
    learner = learner_of(blobs, method, f"{budget:.3f}")
    next(learn(learner))
    (receipt,) = learner.ledger.closed
    spent = {item.purpose: item.passes for item in receipt.items if item.purpose != "evaluation"}
    rest, images = receipt.budget - spent.get("labeled", 0.0), learner.recorder.of("sweep")[0]["images"]
    assert receipt.spent <= receipt.budget * (1 + 1e-9)
    assert images / 3 == pytest.approx(spent.get("look", 0.0))
    assert images <= min(most, 32)
    assert images / 3 <= share * rest + 6 / 3 + 1e-9
    if images < min(most, 32):  # it ended early because of its share or of the budget
        assert images / 3 > share * rest - 1e-6 or (images + 1) / 3 > rest - 1e-6


# The end of a sweep.


def test_a_method_hears_of_the_end_of_a_sweep_after_its_last_image_and_before_what_follows(blobs):
    plan = [
        Phase(name="begin", mix=LABELED, updates=1, schedule=(0.0, 0.5)),
        Sweep(name="look", pool="labeled"),
        Phase(name="go on", mix=LABELED, updates=1, schedule=(0.5, 1.0)),
        Sweep(name="short", pool="labeled", most=3),
    ]
    method = Planned(*plan)
    next(learn(learner_of(blobs, method)))
    assert method.log == [
        "update of begin",
        "end of begin",
        "6 of look",
        "2 of look",
        "end of look",
        "update of go on",
        "end of go on",
        "3 of short",
        "end of short",
        "end",
    ]


@pytest.mark.parametrize("why", ["empty pool", "no budget", "none wanted", "nothing remembered"])
def test_a_sweep_that_shows_nothing_ends_as_well(blobs, why):
    learner = learner_of(blobs, Planned())
    none = np.zeros(0, np.int64)
    empty = replace(learner.stream.steps[0], unlabeled=none)
    stream = replace(learner.stream, steps=(empty, *learner.stream.steps[1:])) if why == "empty pool" else None
    sweep = Sweep(
        name="look",
        pool="larder" if why == "nothing remembered" else "unlabeled",
        most=0 if why == "none wanted" else None,
    )
    method = Planned(sweep)
    next(learn(learner_of(blobs, method, "0.02" if why == "no budget" else "10", stream)))
    assert method.log == ["end of look", "end"]


def test_what_a_method_computes_at_the_end_of_a_sweep_is_charged(blobs):
    class Tidy(Planned):
        def end_sweep(self, net, step, sweep):
            net.features(torch.zeros(6, 3, 16, 16), "tidy")

    learner = learner_of(blobs, Tidy(Sweep(name="look", pool="labeled")))
    next(learn(learner))
    items = {item.purpose: item.passes for item in learner.ledger.closed[0].items if item.purpose != "evaluation"}
    assert items == {"look": pytest.approx(8 / 3), "tidy": pytest.approx(2)}
    starved = learner_of(blobs, Tidy(Sweep(name="look", pool="unlabeled")), "0.5")
    with pytest.raises(RuntimeError, match=r"Tidy\.end_sweep must be paid from what its phases leave over"):
        next(learn(starved))


def test_what_a_sweep_reserves_is_there_at_its_end(blobs):
    paid = []

    class Solving(Planned):
        def end_sweep(self, net, step, sweep):
            paid.append(net.pay("solve", 2 * learner.ledger.pass_flops))

    # Of six passes two are held back, so that 12 images are shown; their solve costs what was held back.
    flops = 2 * tiny_learner(tiny_config(blobs)).ledger.cost.pass_flops(2)
    learner = learner_of(blobs, Solving(Sweep(name="look", pool="unlabeled", reserve=Reserve(flops=flops))), "0.5")
    next(learn(learner))
    assert learner.recorder.of("sweep")[0]["images"] == 12
    assert paid == [True]
    assert learner.ledger.closed[0].spent == pytest.approx(6)


# Going on from a checkpoint.

PLAN = (
    Phase(name="begin", mix=LABELED, share=0.4, schedule=(0.0, 0.4)),
    Sweep(name="look", pool="unlabeled", most=25, share=0.12),
    Phase(name="go on", mix=LABELED, schedule=(0.4, 1.0), reserve=Reserve(forward=9)),
    Sweep(name="last", pool="memory"),
)


def test_moments_are_in_a_checkpoint_amid_a_sweep(blobs, tmp_path):
    learner = learner_of(blobs, Planned(*PLAN), "6")
    assert next(moment for moment in advance(learner) if moment == "sweep")
    checkpoints = Checkpoints(tmp_path, keep=1)
    save_state(learner, checkpoints, event_log=0)
    saved, _ = checkpoints.load()
    assert saved.notes["turns"] == [""]
    assert saved.notes["position"]["step"]["segment"][-1]["name"] == "look"
    assert any(name.startswith("moments/0/") for name in saved.tensors)


def as_before(state):
    """Rewrite a position as it was saved before phases could go on and sweeps could be cut short."""
    old = json.loads(json.dumps(state))
    for segment in old["step"]["segment"]:
        if segment["kind"] == "Phase":
            del segment["schedule"], segment["mix"]["larder"]
        else:
            del segment["most"], segment["share"]
    return old


def test_a_position_of_before_can_still_be_read():
    phase = Phase(name="one", mix=Mix(labeled=0.5, memory=0.5, past_only=True), share=0.5, reserve=Reserve(forward=3))
    sweep = Sweep(name="two", pool="memory", reserve=Reserve(flops=7.0))
    for done, segment in ((), phase), ((phase,), sweep), ((phase, sweep), None):
        step = StepPosition(done=done, segment=segment, made=2, allotment=Allotment(1.0, math.inf, 2.0, 0.0))
        position = Position(finished=1, step=step)
        assert Position.from_state(as_before(position.state())) == position


@pytest.mark.parametrize("segment", PLAN)
def test_a_position_comes_back_as_it_was(segment):
    position = Position(step=StepPosition(done=PLAN, segment=segment, made=3, gathered=18))
    found = Position.from_state(json.loads(json.dumps(position.state())))
    assert found == position
    assert found.step.segment == segment
    if isinstance(segment, Phase):
        assert found.step.segment.schedule == segment.schedule  # a pair, not a list


@pytest.mark.parametrize("kind", ["update", "sweep"])
def test_a_checkpoint_of_before_goes_on_to_the_same_bits(blobs, tmp_path, kind):
    plan = (
        Phase(name="one", mix=LABELED, share=0.5),
        Sweep(name="look", pool="unlabeled"),
        Phase(name="two", mix=LABELED),
    )
    whole = run_through(learner_of(blobs, Planned(*plan), "4"))
    learner = learner_of(blobs, Planned(*plan), "4")
    assert next(moment for moment in advance(learner) if moment == kind)
    checkpoints = Checkpoints(tmp_path, keep=1)
    save_state(learner, checkpoints, event_log=0)
    saved, _ = checkpoints.load()
    notes = {**saved.notes, "position": as_before(saved.notes["position"])}
    if kind == "sweep":  # which had neither an allotment nor an optimizer
        notes["position"]["step"]["allotment"] = None
        notes["turns"] = []
    resumed = learner_of(blobs, Planned(*plan), "4")
    restore_state(resumed, replace(saved, notes=notes))
    run_through(resumed)
    assert equal(weights(resumed), weights(whole))
    assert resumed.ledger.receipts() == whole.ledger.receipts()
