"""Fine-tuning with a penalty on changes of important weights, shared by EWC and MAS."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dietcl.methods.base import Batch, Method, Mix, Net, Phase, Reserve, Segment, Sweep, Term, TimeStep
from dietcl.models.network import Weights

_COUNT = "count"  # no weight has this name
_ESTIMATE = "estimate "  # begins the names of the unfinished estimate in a checkpoint


@dataclass(frozen=True)
class Pair:
    """Former weights and their importance."""

    anchor: Weights
    importance: Weights

    def penalty(self, weights: Weights) -> Tensor:
        """Return the sum over weights of importance times squared distance; rows added to the head later have none."""
        terms = []
        for name, weight in weights.items():
            distance = weight[: len(self.anchor[name])] - self.anchor[name]
            terms.append((self.importance[name] * distance.square()).sum())
        return torch.stack(terms).sum()

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return sum(int(value.nbytes) for value in (*self.anchor.values(), *self.importance.values()))


class Anchored(Method):
    """Fine-tunes under the penalty of all pairs so far, then sweeps the labels to estimate the next one.

    A subclass measures importance in `gather` and makes a pair of the estimate in `end_step`.
    """

    sweep: ClassVar[str]
    """Name of the sweep."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._pairs: list[Pair] = []
        self._sums: dict[str, Tensor] = {}  # what the sweep gathered so far

    def next_phase(self, step: TimeStep, done: tuple[Segment, ...], remaining: float) -> Segment | None:
        if not len(step.labeled):
            return None
        if not done:
            reserve = Reserve(importance=len(step.labeled)) if self.config.strength else Reserve()
            return Phase(name="fine-tune", mix=Mix(labeled=1), reserve=reserve)
        return Sweep(name=self.sweep, pool="labeled") if self.config.strength and len(done) == 1 else None

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        yield Term("labeled", batch.cross_entropy(net.logits(*batch.supervised)))
        if self._pairs:
            weights = net.weights()
            value = torch.stack([pair.penalty(weights) for pair in self._pairs]).sum()
            yield Term("penalty", value, self.config.strength)

    def absorb(self, net: Net, sweep: Sweep, gathered: dict[str, Tensor]) -> None:
        # A restored count may be on another device than a new one.
        sums = self._sums
        self._sums = {name: sums[name].to(value) + value if sums else value for name, value in gathered.items()}

    def state(self) -> dict[str, Tensor]:
        return pack(self._pairs) | {_ESTIMATE + name: value for name, value in self._sums.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        estimate = {name: value for name, value in state.items() if name.startswith(_ESTIMATE)}
        self._sums = {name.removeprefix(_ESTIMATE): value for name, value in estimate.items()}
        self._pairs = unpack({name: value for name, value in state.items() if name not in estimate})

    def _take_estimate(self) -> dict[str, Tensor]:
        """Return the mean of what the sweep gathered, empty if that is nothing, and reset it."""
        sums, self._sums = self._sums, {}
        count = int(sums.pop(_COUNT, 1))
        return {name: value / count for name, value in sums.items()}


def with_count(sums: Mapping[str, Tensor], count: int = 1) -> dict[str, Tensor]:
    """Return the sums of `count` values together with the count, as `gather` has to."""
    return {**sums, _COUNT: torch.tensor([float(count)])}


def add(one: Mapping[str, Tensor], other: Mapping[str, Tensor], keep: float = 1.0) -> dict[str, Tensor]:
    """Return keep · one + other, where `one` may lack rows that were added to the head later."""
    sums = {name: value.clone() for name, value in other.items()}
    for name, value in one.items():
        sums[name][: len(value)] += keep * value
    return sums


def pack(pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Return the tensors of all pairs under unique names."""
    packed: dict[str, Tensor] = {}
    for number, pair in enumerate(pairs):
        packed |= {f"{number} anchor {name}": value for name, value in pair.anchor.items()}
        packed |= {f"{number} importance {name}": value for name, value in pair.importance.items()}
    return packed


def unpack(packed: Mapping[str, Tensor]) -> list[Pair]:
    """Return the pairs that `pack` was given."""
    found: dict[int, dict[str, dict[str, Tensor]]] = {}
    for key, value in packed.items():
        number, kind, name = key.split(" ", 2)
        found.setdefault(int(number), {"anchor": {}, "importance": {}})[kind][name] = value
    return [Pair(**found[number]) for number in sorted(found)]


def pairs_that_fit(pairs: Sequence[Pair]) -> float:
    """Return how many more pairs of the last one's size fit into the available memory.

    For each pair an update needs half its size more, for the distances that the gradient is computed from.
    """
    size = pairs[-1].nbytes
    device = next(iter(pairs[-1].anchor.values())).device
    return (available_memory(device) - len(pairs) * size / 2) / (1.5 * size)


def available_memory(device: torch.device) -> float:
    """Return the free memory of the device in bytes; infinity if it is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(fields["MemAvailable"].split()[0])  # given in kB
    except (OSError, ValueError, KeyError):
        pass
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return math.inf
