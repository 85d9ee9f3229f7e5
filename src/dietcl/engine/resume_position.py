"""Where a run stands: what the loop needs to go on besides weights, moments, the method's state and the ledger."""

from dataclasses import asdict, dataclass
from typing import Any

from dietcl.budget.allotment import Terms
from dietcl.methods.base import Phase, Reserve, Stretch, Sweep
from dietcl.streams.options import Mix


@dataclass
class StepPosition:
    """How far a time step has come."""

    done: tuple[Stretch, ...] = ()
    stretch: Stretch | None = None
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

    def finish_stretch(self) -> None:
        """Go to the end of the phase or sweep under way."""
        assert self.stretch is not None
        self.done += (self.stretch,)
        self.stretch, self.allotment, self.made, self.gathered = None, None, 0, 0


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
            stretches = [*self.step.done, *([] if self.step.stretch is None else [self.step.stretch])]
            state["step"] |= {"done": len(self.step.done), "stretch": [_plain(stretch) for stretch in stretches]}
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Position":
        """Take back what `state` returned."""
        step = state["step"]
        if step is not None:
            stretches = [_stretch(plain) for plain in step["stretch"]]
            number = step["done"]
            allotment = None if step["allotment"] is None else Terms(*step["allotment"])
            step = StepPosition(
                **{**step, "done": tuple(stretches[:number]), "allotment": allotment}
                | {"stretch": stretches[number] if len(stretches) > number else None}
            )
        return cls(**{**state, "step": step})


def _plain(stretch: Stretch) -> dict[str, Any]:
    return {"kind": type(stretch).__name__, **asdict(stretch)}


def _stretch(plain: dict[str, Any]) -> Stretch:
    fields = {name: value for name, value in plain.items() if name != "kind"} | {"reserve": Reserve(**plain["reserve"])}
    if plain["kind"] == "Sweep":
        return Sweep(**fields)
    return Phase(**fields | {"mix": Mix(**plain["mix"])})
