"""Larder in runs that are stopped and in several processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from dietcl.engine.distributed import join, leave
from dietcl.engine.loop import advance
from dietcl.execution import Execution
from dietcl.run import execute
from helpers.distributed_runs import launch
from helpers.larder_runs import FROZEN, KINDS, LEARNED, configured, learner_of
from helpers.recording import Notes, equal, hand_over, run_through, weights
from helpers.runs import outcome


def told(events):
    return [{name: value for name, value in event.items() if name not in ("seconds", "data_wait")} for event in events]


@pytest.mark.parametrize(("train", "recipe"), KINDS)
@pytest.mark.parametrize("budget", ["4", "0.5"])
def test_a_run_handed_over_at_every_moment_ends_with_the_same_bits(blobs, tmp_path, train, recipe, budget):
    def make():
        learner = learner_of(blobs, train, recipe, budget=budget)
        learner.recorder = Notes()
        return learner

    whole, learner, events, moments = run_through(make()), make(), [], []
    while moment := next(advance(learner), None):
        events += learner.recorder.events
        moments.append(moment)
        resumed = make()
        hand_over(learner, resumed, tmp_path / str(len(moments)))
        learner = resumed
    assert set(moments) >= {"learned", "step"}
    assert ("sweep" in moments) == (train == FROZEN or budget == "4")
    assert ("update" in moments) == (train == LEARNED and budget == "4")
    assert equal(weights(learner), weights(whole))
    assert equal(learner.method.state(), whole.method.state())
    assert learner.ledger.receipts() == whole.ledger.receipts()
    assert (learner.counts.loss_sum == whole.counts.loss_sum).all()
    assert told(events + learner.recorder.events) == told(whole.recorder.events)


BUDGETS = ("5", "0.6")
TASKS = [(train, recipe, budget) for train, recipe in KINDS for budget in BUDGETS]


def shared_config(blobs, train, recipe, budget):
    config = configured(blobs, train, recipe, budget)
    return replace(config, training=replace(config.training, batch=24, micro_batch=6))


def carry_out(blobs, folder):
    """Carry out all runs in this process together with others."""
    world = join("cpu")
    for number, task in enumerate(TASKS):
        execute(shared_config(blobs, *task), folder / str(number), Execution(device="cpu"), world=world)
    leave(world)


@pytest.mark.long
def test_the_number_of_processes_changes_no_bit(blobs, tmp_path):
    for number, task in enumerate(TASKS):
        execute(shared_config(blobs, *task), tmp_path / "1" / str(number), Execution(device="cpu"))
    for size in (2, 3):
        children = launch(size, carry_out, blobs, tmp_path / str(size))
        try:
            said = [child.end(240) for child in children]
        finally:
            for child in children:
                child.process.kill()
        assert all(child.process.exitcode == 0 for child in children), "\n".join(said)
    for number, task in enumerate(TASKS):
        alone, *others = (outcome(Path(tmp_path, str(size), str(number))) for size in (1, 2, 3))
        assert all(other == alone for other in others), task
