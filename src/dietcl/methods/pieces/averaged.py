"""An exponential average of the network's weights: it answers better than the weights themselves, for no pass."""

import torch
from torch import Tensor

from dietcl.methods.base import Net

DECAY = 0.98
_WARM_UP = 10  # updates of a time step over which the average forgets faster, so that a few are not lost in it


class AveragedWeights:
    """The average of encoder and head; `values` can be passed to `net.scores` and `net.features`."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.updates = 0  # of the current time step

    def begin_step(self, net: Net) -> None:
        """Take in what is new: everything at first, and then the rows that the head has grown by."""
        self.updates = 0
        for name, value in net.weights(live=False).items():
            known, latest = self.values.get(name), value.clone()
            if known is not None and known.shape == value.shape:
                continue
            if known is not None:
                latest[: len(known)] = known
            self.values[name] = latest

    def update(self, net: Net) -> None:
        """Average in the present weights, after an update."""
        self.updates += 1
        decay = min(DECAY, self.updates / (self.updates + _WARM_UP))
        for name, value in net.weights(live=False).items():
            self.values[name].lerp_(value, 1 - decay)

    def state(self) -> dict[str, Tensor]:
        """Return the averages by name, and how many updates of the time step are in them."""
        return {f"average/{name}": value for name, value in self.values.items()} | {
            "average_updates": torch.tensor(self.updates)
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        names = [name for name in state if name.startswith("average/")]
        self.values = {name.removeprefix("average/"): state[name] for name in names}
        self.updates = int(state["average_updates"])
