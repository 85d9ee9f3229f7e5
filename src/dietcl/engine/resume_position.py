"""The position of a run: what the loop needs to go on besides weights, moments, the method's state and the ledger."""

from dataclasses import asdict, dataclass
from typing import Any

from dietcl.budget.ledger import Allotment
from dietcl.methods.base import Phase, Reserve, Segment, Sweep
from dietcl.streams.options import Mix


@dataclass
class StepPosition:
    """How far a time step has come."""

    done: tuple[Segment, ...] = ()
    segment: Segment | None = None  # the current phase or sweep
    made: int = 0  # finished updates of this phase, or micro-batches of this sweep
    gathered: int = 0  # images of this sweep
    cost: float = 0.0  # expected passes of the next update
    allotment: Allotment | None = None  # what this phase may spend; None before it begins
    updates: int = 0  # of the time step
    curve_due: int = 0
    curve_measured: int | None = None
    is_learned: bool = False  # whether only the evaluation is left
    seconds: float = 0.0
    data_wait: float = 0.0
    substituted: int = 0

    def finish_segment(self) -> None:
        """End the current phase or sweep."""
        assert self.segment is not None
        self.done += (self.segment,)
        self.segment, self.allotment, self.made, self.gathered = None, None, 0, 0


@dataclass
class Position:
    """How far a run has come."""

    finished: int = 0  # time steps that were learned and measured
    step: StepPosition | None = None  # in the current time step
    pace: float = 0.0  # seconds that the last update took

    def state(self) -> dict[str, Any]:
        """Return plain JSON."""
        state = asdict(self)
        if self.step is not None:
            segments = [segment for segment in (*self.step.done, self.step.segment) if segment is not None]
            plain = [{"kind": type(segment).__name__, **asdict(segment)} for segment in segments]
            state["step"] |= {"done": len(self.step.done), "segment": plain}
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Position":
        """Return the position that `state` described."""
        step = state["step"]
        if step is not None:
            number, segments = step["done"], [_segment(plain) for plain in step["segment"]]
            current = segments[number] if len(segments) > number else None
            allotment = step["allotment"] and Allotment(*step["allotment"])
            step = {**step, "done": tuple(segments[:number]), "segment": current, "allotment": allotment}
        return cls(**{**state, "step": step and StepPosition(**step)})


def _segment(plain: dict[str, Any]) -> Segment:
    fields = {name: value for name, value in plain.items() if name != "kind"} | {"reserve": Reserve(**plain["reserve"])}
    if plain["kind"] == "Sweep":
        return Sweep(**fields)
    schedule = tuple(plain.get("schedule", Phase.schedule))
    return Phase(**fields | {"mix": Mix(**plain["mix"]), "schedule": schedule})
