"""Fine-tuning with a penalty on changes of important weights: elastic weight consolidation, memory aware synapses."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dietcl.methods.base import Batch, Mix, Net, Part, Phase, PlannedMethod, Reserve, Segment, Sweep, Term, TimeStep
from dietcl.methods.supervised_options import EWCOptions, MASOptions
from dietcl.models.network import Weights

FEW_PAIRS = 5  # the user is warned if fewer than these fit into the memory
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


class Anchored(PlannedMethod):
    """Fine-tunes under the penalty of all pairs so far, then sweeps the labels to `gather` the next importance."""

    sweep: ClassVar[str]
    """Name of the sweep."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._pairs: list[Pair] = []
        self._sums: dict[str, Tensor] = {}  # what the sweep gathered so far

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if not len(step.labeled):
            return []
        if not self.config.strength:
            return [Phase(name="fine-tune", mix=Mix(labeled=1))]
        reserve = Reserve(importance=len(step.labeled))
        return [Phase(name="fine-tune", mix=Mix(labeled=1), reserve=reserve), Sweep(name=self.sweep, pool="labeled")]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        yield from super().losses(net, phase, batch)
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


class EWC(Anchored):
    """Elastic weight consolidation (Kirkpatrick et al. 2017); online after Schwarz et al. (2018)."""

    Config = EWCOptions
    config: EWCOptions
    sweep = "fisher"
    _has_warned = False

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        if self.config.fisher == "per_sample":
            return _with_count(net.squared_gradients(part, Part.cross_entropy), len(part))
        gradients = net.gradients(part, Part.cross_entropy)
        return _with_count({name: value.square() for name, value in gradients.items()})

    def end_step(self, net: Net, step: TimeStep) -> None:
        importance = self._take_estimate()
        if not importance:
            return
        if self.config.online and self._pairs:
            importance = _add(self._pairs.pop().importance, importance, self.config.decay)
        self._pairs.append(Pair(net.copy(), importance))
        if not self.config.online and not self._has_warned and (room := pairs_that_fit(self._pairs)) < FEW_PAIRS:
            self._has_warned = True
            need = f"which need {self._pairs[-1].nbytes / 1e9:.1f} GB each; with --online it does not grow"
            net.notify(f"ewc: there is memory for about {max(0, int(room))} more time steps, {need}")


class MAS(Anchored):
    """Memory aware synapses (Aljundi et al. 2018)."""

    Config = MASOptions
    config: MASOptions
    sweep = "importance"

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        # The loss is the squared length of the outputs.
        gradients = net.gradients(part, lambda _, logits: logits.square().sum(1).mean())
        return _with_count({name: value.abs() for name, value in gradients.items()})

    def end_step(self, net: Net, step: TimeStep) -> None:
        importance, decay = self._take_estimate(), self.config.decay
        if not importance:
            return
        if self._pairs:  # the first estimate is taken as it is
            fresh = {name: (1 - decay) * value for name, value in importance.items()}
            importance = _add(self._pairs[0].importance, fresh, decay)
        self._pairs = [Pair(net.copy(), importance)]


def _with_count(sums: Mapping[str, Tensor], count: int = 1) -> dict[str, Tensor]:
    return {**sums, _COUNT: torch.tensor([float(count)])}


def _add(one: Mapping[str, Tensor], other: Mapping[str, Tensor], keep: float) -> dict[str, Tensor]:
    """Return keep · one + other, where `one` may lack rows that were added to the head later."""
    sums = {name: value.clone() for name, value in other.items()}
    for name, value in one.items():
        sums[name][: len(value)] += keep * value
    return sums


def pack(pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Return the tensors of all pairs under unique names."""
    tables = {f"{number} {kind}": table for number, pair in enumerate(pairs) for kind, table in vars(pair).items()}
    return {f"{prefix} {name}": value for prefix, table in tables.items() for name, value in table.items()}


def unpack(packed: Mapping[str, Tensor]) -> list[Pair]:
    """Return the pairs from the tensors of `pack`."""
    found: dict[int, dict[str, dict[str, Tensor]]] = {}
    for key, value in packed.items():
        number, kind, name = key.split(" ", 2)
        found.setdefault(int(number), {"anchor": {}, "importance": {}})[kind][name] = value
    return [Pair(**found[number]) for number in sorted(found)]


def pairs_that_fit(pairs: Sequence[Pair]) -> float:
    """Return how many more pairs of the last one's size fit into the available memory."""
    size = pairs[-1].nbytes
    device = next(iter(pairs[-1].anchor.values())).device
    # For each pair, an update needs half its size again: the distances that the gradient is computed from.
    return (available_memory(device) - len(pairs) * size / 2) / (1.5 * size)


def available_memory(device: torch.device) -> float:
    """Return the free memory of the device in bytes; infinity if it is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(fields["MemAvailable"].split()[0])  # given in kB
    with suppress(OSError, ValueError, AttributeError):
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return math.inf
