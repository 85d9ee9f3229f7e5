"""Where a run stands: what the loop needs to go on besides weights, moments, the method's state and the ledger."""

from dataclasses import asdict, dataclass
from typing import Any

from dietcl.budget.accounts import Terms
from dietcl.methods.base import Phase, Reserve, Segment, Sweep
from dietcl.streams.options import Mix


@dataclass
class StepPosition:
    """How far a time step has come."""

    done: tuple[Segment, ...] = ()
    segment: Segment | None = None
    """The phase or sweep under way."""
    made: int = 0
    """Updates of this phase, or micro-batches of this sweep."""
    gathered: int = 0
    """Images of this sweep."""
    cost: float = 0.0
    """Passes that the next update is expected to cost."""
    allotment: Terms | None = None
    """What this phase may spend; none before it begins."""
    updates: int = 0
    """Updates of the time step."""
    curve_due: int = 0
    curve_measured: int | None = None
    is_learned: bool = False
    """Whether only the evaluation is left."""
    seconds: float = 0.0
    data_wait: float = 0.0
    substituted: int = 0

    def finish_segment(self) -> None:
        """Go to the end of the phase or sweep under way."""
        assert self.segment is not None
        self.done += (self.segment,)
        self.segment, self.allotment, self.made, self.gathered = None, None, 0, 0


@dataclass
class Position:
    """How far a run has come."""

    finished: int = 0
    """Time steps that were learned and measured."""
    step: StepPosition | None = None
    """The time step under way."""
    pace: float = 0.0
    """Seconds that the last update took."""

    def state(self) -> dict[str, Any]:
        """Return plain JSON."""
        state = asdict(self)
        if self.step is not None:
            segments = [*self.step.done, *([] if self.step.segment is None else [self.step.segment])]
            state["step"] |= {"done": len(self.step.done), "segment": [_plain(segment) for segment in segments]}
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Position":
        """Take back what `state` returned."""
        step = state["step"]
        if step is not None:
            segments = [_segment(plain) for plain in step["segment"]]
            number = step["done"]
            allotment = None if step["allotment"] is None else Terms(*step["allotment"])
            step = StepPosition(
                **{**step, "done": tuple(segments[:number]), "allotment": allotment}
                | {"segment": segments[number] if len(segments) > number else None}
            )
        return cls(**{**state, "step": step})


def _plain(segment: Segment) -> dict[str, Any]:
    return {"kind": type(segment).__name__, **asdict(segment)}


def _segment(plain: dict[str, Any]) -> Segment:
    fields = {name: value for name, value in plain.items() if name != "kind"} | {"reserve": Reserve(**plain["reserve"])}
    if plain["kind"] == "Sweep":
        return Sweep(**fields)
    return Phase(**fields | {"mix": Mix(**plain["mix"])})
