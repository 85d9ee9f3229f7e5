"""What a micro-batch is made of; free of numpy, because methods and their options are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dietcl.errors import UserError

if TYPE_CHECKING:
    from dietcl.streams.sampler import Pool

PoolName = Literal["labeled", "unlabeled", "memory"]


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Shares of a micro-batch by pool, and how the memory is drawn from."""

    labeled: float = 0.0
    unlabeled: float = 0.0
    memory: float = 0.0
    past_only: bool = False  # leave this time step's labels out of the memory
    by_time_step: bool = False  # draw a time step first, then one of its labels: every time step weighs the same
    capacity: int | None = None  # a reservoir of so many labels of earlier time steps; None keeps all
    by_class: bool = False  # the capacity is for all labels, this time step's too, and shared by the classes

    def counts(self, size: int, pools: Mapping[PoolName, "Pool"]) -> dict[PoolName, int]:
        """Deal a micro-batch over the pools that hold images; nothing is drawn if no pool with a share holds any.

        Labels stand in for labels: an empty pool's share goes to the other pool of labels, if that has a share of its
        own (without one it is switched off). A share that finds no taker is spread in proportion to the others.
        """
        share: dict[PoolName, float] = {
            "unlabeled": self.unlabeled,
            "labeled": self.labeled,
            "memory": self.memory,
        }
        empty = [name for name in share if not len(pools[name].rows)]
        kin: tuple[tuple[PoolName, PoolName], ...] = (("labeled", "memory"), ("memory", "labeled"))
        for name, other in kin:
            if name in empty and other not in empty and share[other] > 0:
                share[other] += share[name]
        share = {name: part for name, part in share.items() if part > 0 and name not in empty}
        total = sum(share.values())
        exact = {name: size * part / total for name, part in share.items()}
        counts = {name: int(value + 1e-9) for name, value in exact.items()}
        # Largest remainders get the rest; ties go to the first pool named (256 in thirds: 86, 85, 85).
        by_remainder = sorted(exact, key=lambda name: round(counts[name] - exact[name], 9))
        for name in by_remainder[: size - sum(counts.values())] if counts else []:
            counts[name] += 1
        if not all(counts.values()):
            raise UserError(
                f"--micro-batch {size}: too small to hold images of every pool ({', '.join(counts)}); enlarge it"
            )
        return counts
