"""The interface of a method: it returns phases and losses; the engine draws images, charges the budget and updates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from dietcl.methods.method_options import NoOptions, Options
from dietcl.models.net import Net
from dietcl.models.network import Weights
from dietcl.models.presets import Ability
from dietcl.streams.batch import Batch, Part
from dietcl.streams.lazy_images import View
from dietcl.streams.options import Mix, PoolName
from dietcl.streams.sampler import NOTHING, Pool
from dietcl.streams.stream import TimeStep

# All that a method is written with.
__all__ = ["Batch", "Method", "Mix", "Net", "Part", "Phase", "Pool", "Reserve", "Segment", "Sweep", "Term", "TimeStep"]


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """Budget that a segment leaves for later in the time step; at most half of what remains is reserved."""

    importance: int = 0
    """Images of a later importance or Fisher pass."""
    forward: int = 0
    """Images that are later run forward only."""
    flops: float = 0.0
    """FLOPs of later closed-form solves."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A segment of updates with one batch mix, one loss and one learning-rate schedule."""

    name: str
    mix: Mix
    updates: float = math.inf
    """At most this many updates' worth of passes."""
    share: float = 1.0
    """At most this share of what remains of the time step's budget."""
    lr_scale: float = 1.0
    schedule: tuple[float, float] = (0.0, 1.0)
    """Where on the cosine it begins and ends; beginning above 0, it goes on with the optimizer of the phase before."""
    price: float = 1.0
    """Expected passes per image of the first update; later updates are expected to cost what the first one did."""
    fresh: bool = False
    """Start from the initial weights of the run, provided that one update fits the budget."""
    plain: bool = False
    """Take images as they are, neither cropped nor mixed: a frozen encoder then computes each only once."""
    reserve: Reserve = Reserve()


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One pass over a pool without updates: every image once, unaugmented, in random order, within the budget."""

    name: str
    pool: PoolName
    most: int | None = None
    """At most this many images, a random sample."""
    share: float = 1.0
    """At most about this share of what remains of the time step's budget."""
    later: float = 0.0
    """FLOPs that the method computes of each image afterwards; the share covers them, too."""
    past_only: bool = False
    """Leave this time step's own labels out of the memory."""
    placed_only: bool = False
    """Leave images that only chance put into this time step out of the unlabeled ones."""
    reserve: Reserve = Reserve()


Segment = Phase | Sweep


@dataclass(frozen=True)
class Term:
    """One term of the loss: a mean over its images, and its weight in the sum."""

    name: str
    value: Tensor
    weight: float = 1.0


class Method(ABC):
    """A learning algorithm; `next_phase` and `losses` are required, the rest has defaults."""

    Config: ClassVar[type[Options]] = NoOptions
    """A dataclass of options, all with defaults."""
    variants: ClassVar[Mapping[str, Options]] = {}
    """Named options, chosen as METHOD:VARIANT; `register_method` reads this and the next two."""
    keeps: ClassVar[str] = ""
    """What the method stores between time steps, for `dietcl methods`."""
    cost: ClassVar[str] = ""
    """Passes per image drawn, in words, for `dietcl methods`."""
    view: ClassVar[View] = "features"
    """What of a frozen encoder's answers the cache keeps: what `net.features` or what `net.query` returns."""
    learns: ClassVar[Literal["stream", "union"]] = "stream"
    """union: learns all time steps at once under the sum of their budgets, as a reference."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def needs(self) -> frozenset[Ability]:
        """What the encoder must be able to do besides features."""
        return getattr(self.config, "needs", frozenset())

    @property
    def trains_encoder(self) -> bool:
        """Whether the encoder ever learns; if not, features of unchanged images are computed once and kept."""
        return getattr(self.config, "trains_encoder", True)

    @property
    def cosine_scale(self) -> float | None:
        """Scale of a cosine head; None for a linear one."""
        return None

    def setup(self, net: Net) -> None:
        """Build the method's own modules; called once, with the initial weights."""

    @abstractmethod
    def next_phase(self, step: TimeStep, done: tuple[Segment, ...], remaining: float) -> Segment | None:
        """Return the next phase or sweep, or None at the end of the time step; without side effects.

        `remaining` counts updates' worth of passes (infinite under a budget in seconds).
        """

    @abstractmethod
    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterable[Term]:
        """Yield the loss terms of one micro-batch; changes nothing, because another process may do it."""

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        """Return the results of one micro-batch of a sweep; changes nothing, because another process may do it."""
        raise NotImplementedError(f"{type(self).__name__} asks for sweeps, so it needs gather() and absorb()")

    def absorb(self, net: Net, sweep: Sweep, gathered: dict[str, Tensor]) -> None:
        """Store what `gather` returned, in the order of the sweep."""
        raise NotImplementedError(f"{type(self).__name__} asks for sweeps, so it needs gather() and absorb()")

    def remembered(self) -> Pool:
        """Return the pool `larder`: images without a label that the method remembers, and the labels it guessed."""
        return NOTHING

    def optimizer_name(self, net: Net, key: tuple[int | str, ...], pools: Collection[PoolName]) -> str:
        """Name the optimizer of the next update; called once per update in every process, so it may change state."""
        return ""

    def begin_step(self, net: Net, step: TimeStep) -> None:
        """Prepare for a time step, after the head has grown and before the first phase."""

    def after_update(self, net: Net, phase: Phase) -> None:
        """Act after an update of the weights."""

    def end_phase(self, net: Net, phase: Phase) -> None:
        """Act after the last update of a phase."""

    def end_sweep(self, net: Net, step: TimeStep, sweep: Sweep) -> None:
        """Act after the last image of a sweep; what it computes through `net` is charged."""

    def end_step(self, net: Net, step: TimeStep) -> None:
        """Finish a time step after its last phase; what it computes through `net` is charged."""

    def predict(self, net: Net, images: Tensor) -> Tensor:
        """Return scores over the classes revealed so far."""
        return net.scores(images)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities of the classes that belong to scores, in the same order; not calibrated."""
        return scores.softmax(1)

    def modules(self) -> dict[str, nn.Module]:
        """Return the method's own modules, built by `net.build`, that the engine trains along with the network."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides the network and `modules`, at any time between two updates."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""

    def predict_weights(self) -> Weights | None:
        """Return weights to save with the model in the place of the network's own, if `predict` runs under them."""
        return None

    def predict_modules(self) -> dict[str, nn.Module]:
        """Return those of `modules` that `predict` runs; they are saved with the model."""
        return {} if type(self).predict is Method.predict else self.modules()

    def predict_state(self) -> dict[str, Tensor]:
        """Return the tensors besides network and modules that `predict` needs; they are saved with the model."""
        return {} if type(self).predict is Method.predict else self.state()

    def load_predict_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `predict_state` returned."""
        if state:
            self.load_state(state)


class PlannedMethod(Method):
    """A method that lists the segments of a time step at once; its loss is the cross-entropy unless overridden."""

    term: ClassVar[str] = "labeled"
    """Name of the cross-entropy."""

    @abstractmethod
    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        """Return the phases and sweeps of a time step in order; without side effects."""

    def next_phase(self, step: TimeStep, done: tuple[Segment, ...], remaining: float) -> Segment | None:
        segments = self.plan(step, remaining)
        return segments[len(done)] if len(done) < len(segments) else None

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterable[Term]:
        yield Term(self.term, batch.cross_entropy(net.logits(*batch.supervised)))
