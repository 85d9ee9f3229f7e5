"""Running a tiny learner to its end while watching it."""

from pathlib import Path

import pytest
import torch

from dietcl.budget.receipts import Item, StepReceipt
from dietcl.engine import phases
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.engine.learner import Learner
from dietcl.engine.loop import learn
from dietcl.engine.state import restore_state, save_state
from dietcl.methods.base import Method, Segment, Sweep
from dietcl.streams.batch import Part
from dietcl.streams.stream import TimeStep

Event = dict[str, object]


class Notes:
    """A recorder that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: str, **fields: object) -> None:
        """Keep an event."""
        self.events.append({"event": event, **fields})

    def progress(self, t: int, fraction: float) -> None:
        """Check that progress is a share."""
        assert 0 <= fraction <= 1

    def notify(self, sentence: str) -> None:
        """Keep a sentence."""
        self.event("say", sentence=sentence)

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event["event"] == kind]


def run_through(learner: Learner) -> Learner:
    """Learn the whole stream."""
    for _ in learn(learner):
        pass
    return learner


def updates_of(learner: Learner) -> list[Event]:
    """Learn the whole stream with every update logged; returns those events."""
    learner.recorder = notes = Notes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "LOG_EVERY", 1)
        run_through(learner)
    return notes.of("update")


def segments(method: Method, step: TimeStep) -> tuple[Segment, ...]:
    """Return what a method would do in a time step of any budget: its phases and sweeps in their order."""
    done: tuple[Segment, ...] = ()
    while segment := method.next_phase(step, done, 100.0):
        done += (segment,)
    return done


def paid(receipt: StepReceipt) -> dict[tuple[str, str], Item]:
    """Return what a time step paid for, by purpose and operation."""
    return {(item.purpose, item.operation): item for item in receipt.items if item.purpose != "evaluation"}


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Return a copy of the network's weights."""
    return {name: value.clone() for name, value in learner.network.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Tell whether two sets of weights agree bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def hand_over(stopped: Learner, resumed: Learner, folder: Path) -> int:
    """Bring a fresh learner to where another one stands, through a checkpoint; returns the event log's length in it."""
    checkpoints = Checkpoints(folder, keep=2)
    save_state(stopped, checkpoints, 17)
    saved, damages = checkpoints.load()
    assert saved is not None
    assert not damages
    return restore_state(resumed, saved)


def take_in(learner: Learner, sweep: Sweep, part: Part) -> None:
    """Show the method a part of a sweep."""
    learner.method.absorb(learner.net, sweep, learner.method.gather(learner.net, sweep, part))
