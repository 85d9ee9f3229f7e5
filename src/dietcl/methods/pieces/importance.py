"""Weights held near where they were, each as firmly as it is important."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dietcl.models.network import Weights

_COUNT = "count"  # no weight has this name


def penalty(weights: Weights, anchor: Weights, importance: Weights) -> Tensor:
    """Return the sum over weights of importance times squared distance; rows of the head that came later are free."""
    terms = []
    for name, weight in weights.items():
        known = slice(0, len(anchor[name]))
        terms.append((importance[name] * (weight[known] - anchor[name]).square()).sum())
    return torch.stack(terms).sum()


def add(one: Mapping[str, Tensor], other: Mapping[str, Tensor], keep: float = 1.0) -> dict[str, Tensor]:
    """Return keep · one + other, where one may lack rows that the head has by now."""
    sums = {}
    for name, value in other.items():
        total = value.clone()
        if name in one:
            total[: len(one[name])] += keep * one[name]
        sums[name] = total
    return sums


@dataclass(frozen=True)
class Pair:
    """Where the weights were, and how important each was there."""

    anchor: Weights
    importance: Weights

    def penalty(self, weights: Weights) -> Tensor:
        """Return what it costs to have moved."""
        return penalty(weights, self.anchor, self.importance)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return sum(int(value.nbytes) for value in (*self.anchor.values(), *self.importance.values()))


class Estimate:
    """The mean over a sweep of a value for every weight; empty until something was added."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add what `counted` returned."""
        # A restored count may be on another device than a new one.
        self.sums = {name: self.sums[name].to(value) + value if self.sums else value for name, value in sums.items()}

    def take(self) -> dict[str, Tensor]:
        """Return the mean, nothing if nothing was added, and begin anew."""
        sums, self.sums = self.sums, {}
        if not sums:
            return {}
        count = int(sums.pop(_COUNT))
        return {name: value / count for name, value in sums.items()}


def counted(sums: Mapping[str, Tensor], count: int = 1) -> dict[str, Tensor]:
    """Return the sums of so many values with their number."""
    return {**sums, _COUNT: torch.tensor([float(count)])}


def pack(pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Return all tensors of some pairs by names of their own."""
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


def room_for_more(pairs: Sequence[Pair]) -> float:
    """Return how many more pairs of the last one's size fit into the memory that is left.

    An update holds half a pair more for each, the distances that the gradient is computed from.
    """
    size = pairs[-1].nbytes
    device = next(iter(pairs[-1].anchor.values())).device
    return (available_memory(device) - len(pairs) * size / 2) / (1.5 * size)


def available_memory(device: torch.device) -> float:
    """Return the bytes of memory that the device can still give; infinity if it does not tell."""
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
