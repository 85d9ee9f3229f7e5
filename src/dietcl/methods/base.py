"""The contract of a method: it is asked for phases and returns losses; the engine draws, charges and updates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dietcl.streams.options import Mix, PoolName

if TYPE_CHECKING:  # methods load without torch, so that --help answers at once
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """What a stretch of work leaves for what comes after it in the time step; at most half of what remains is kept."""

    importance: int = 0
    """Images of an importance or Fisher pass."""
    forward: int = 0
    """Images that are run forward only."""
    flops: float = 0.0
    """FLOPs of closed-form solves."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of updates with one batch mix, one loss and one learning-rate schedule."""

    name: str
    mix: Mix
    updates: float = math.inf
    """At most this many updates' worth of passes."""
    share: float = 1.0
    """At most this share of what remains of the time step's budget."""
    lr_scale: float = 1.0
    price: float = 1.0
    """Passes per image that the first update is expected to cost; the later ones are expected to cost what it did."""
    fresh: bool = False
    """Begin from the weights that the run started from, provided that one update fits the budget."""
    reserve: Reserve = Reserve()


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One walk through a pool without updates: every image once, as it is, in random order, while the budget lasts."""

    name: str
    pool: PoolName
    reserve: Reserve = Reserve()


Stretch = Phase | Sweep


@dataclass(frozen=True)
class Term:
    """One term of the loss: a mean over its images, and its weight in the sum."""

    name: str
    value: "torch.Tensor"
    weight: float = 1.0


class Method(ABC):
    """A learning algorithm; `next_phase` and `losses` are required, all else has a plain default."""

    Config: ClassVar[type[Any]]
    variants: ClassVar[dict[str, Any]] = {}
    """Named configurations, chosen as METHOD:VARIANT."""
    keeps: ClassVar[str]
    """What the method stores between time steps, for `dietcl methods`."""
    cost: ClassVar[str]
    """Passes per image drawn, in words, for `dietcl methods`."""
    learns: ClassVar[Literal["stream", "union"]] = "stream"
    """A method of the union learns everything at once under the budgets of all time steps: a reference."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def cosine_scale(self) -> float | None:
        """Scale of a head that compares directions; None for a linear one."""
        return None

    def setup(self, net: "Net") -> None:
        """Make modules of the method's own; called once, with the weights that the run starts from."""

    @abstractmethod
    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        """Return the next phase or sweep, or None when the time step is over; pure, asked again after each.

        `remaining` counts updates' worth of passes (infinite under a budget in seconds).
        """

    @abstractmethod
    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        """Yield the loss terms of one micro-batch, and change nothing: another process may do it."""

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        """Return what one micro-batch of a sweep yields, and change nothing: another process may do it.

        What is refused for want of budget is offered again in halves.
        """
        raise NotImplementedError(f"{type(self).__name__} asks for sweeps, so it needs gather() and absorb()")

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        """Take in what `gather` returned, in the order of the sweep."""
        raise NotImplementedError(f"{type(self).__name__} asks for sweeps, so it needs gather() and absorb()")

    def turn(self, net: "Net", key: "tuple[int | str, ...]", pools: "Collection[PoolName]") -> str:
        """Name whose turn the next update is, from its key and the pools drawn from; each name has its own moments.

        The place to note what an update begins with: unlike `losses`, every process calls it once per update.
        """
        return ""

    def begin_step(self, net: "Net", step: "TimeStep") -> None:
        """Prepare for a time step, after the head has grown and before the first phase."""

    def after_update(self, net: "Net", phase: Phase) -> None:
        """Act after an update of the weights."""

    def end_phase(self, net: "Net", phase: Phase) -> None:
        """Act after the last update of a phase."""

    def end_step(self, net: "Net", step: "TimeStep") -> None:
        """Finish a time step after its last phase; what it computes through `net` is charged."""

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        """Return scores over the classes revealed so far."""
        return net.scores(images)

    def modules(self) -> "dict[str, torch.nn.Module]":
        """Return modules of the method's own, made by `net.build`, that the engine trains along with the network."""
        return {}

    def state(self) -> "dict[str, torch.Tensor]":
        """Return what must survive a restart besides the network and `modules`, at any time between two updates."""
        return {}

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        """Take back what `state` returned."""
