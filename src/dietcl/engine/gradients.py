"""The sum of the gradients of an update's micro-batches, in this process and all others.

It is taken in double precision, where a sum of a few numbers of single precision is exact or as good as that: so it
does not depend on its order, and the number of processes does not change a bit of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dietcl.engine.distributed import World


class Gradients:
    """Collects the gradients of micro-batches in one flat buffer; one micro-batch alone needs none."""

    def __init__(self, parameters: Sequence[Tensor], micro_batches: int, world: World) -> None:
        self._parameters, self._world = parameters, world
        self._needs_sum = micro_batches > 1 or world.size > 1
        if self._needs_sum:
            device = parameters[0].device
            dtype = torch.float32 if device.type == "mps" else torch.float64  # which that device does not have
            sizes = [len(parameters), *(parameter.numel() for parameter in parameters)]
            self._flat = torch.zeros(sum(sizes), dtype=dtype, device=device)
            # How many micro-batches had a gradient for each parameter: what nobody has a gradient for is left alone.
            self._counts = [0.0] * len(parameters)
            self._everywhere, *self._sums = self._flat.split(sizes)

    def add(self) -> None:
        """Take in the gradients of the micro-batch that was just run backward."""
        if not self._needs_sum:
            return
        for number, (parameter, total) in enumerate(zip(self._parameters, self._sums, strict=True)):
            if parameter.grad is not None:
                self._counts[number] += 1
                total += parameter.grad.flatten()
                parameter.grad = None

    def finish(self) -> None:
        """Give every parameter the sum over all micro-batches."""
        if not self._needs_sum:
            return
        self._everywhere.copy_(torch.tensor(self._counts))
        self._world.sum(self._flat)
        for parameter, total, count in zip(self._parameters, self._sums, self._everywhere.tolist(), strict=True):
            if count:
                parameter.grad = total.view_as(parameter).to(parameter.dtype)
