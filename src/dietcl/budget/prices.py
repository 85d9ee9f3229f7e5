"""The two price lists: what an operation on one image costs in passes, and in FLOPs."""

from typing import Literal

from dietcl.budget.cost import CostModel, Operation

Accounting = Literal["images", "flops"]

# What the `images` price list says; operations that are not named cost their FLOPs in both lists.
_PER_IMAGE: dict[Operation, float] = {
    "train": 1.0,
    "importance": 1.0,
    "reconstruct": 1.0,
    "prompt": 1.0,
    "prompt_train": 1.0,
    "forward": 1 / 3,
    "prompt_forward": 1 / 3,
    "reconstruct_forward": 1 / 3,
}


class Prices:
    """The prices under a head of so many classes."""

    def __init__(self, accounting: Accounting, cost: CostModel, classes: int) -> None:
        self.pass_flops = cost.pass_flops(classes)
        self._accounting = accounting
        self._cost = cost
        self._classes = classes
        self._known: dict[tuple[Operation, int], tuple[float, int]] = {}

    def of(self, operation: Operation, prompts: int = 0) -> tuple[float, int]:
        """Return the passes and the FLOPs of the operation for one image."""
        key = (operation, prompts)
        if key not in self._known:
            flops = self._cost.flops(operation, self._classes, prompts)
            passes = flops / self.pass_flops
            self._known[key] = (_PER_IMAGE.get(operation, passes) if self._accounting == "images" else passes, flops)
        return self._known[key]
