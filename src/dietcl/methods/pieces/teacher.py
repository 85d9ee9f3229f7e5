"""A frozen copy of the network as it was, and of modules of a method's own."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from dietcl.models.net import Net


class Teacher:
    """The weights of an earlier network, to be passed to `net.scores`, `net.features` or `net.run`."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self.weights)

    def take(self, net: "Net", classes: int | None = None, /, **modules: nn.Module) -> None:
        """Copy the network and some modules as they are; of the head all classes, or only the first so many."""
        self.weights = net.copy()
        if classes is not None:
            self.weights |= {name: self.weights[name][:classes].clone() for name in ("head.weight", "head.bias")}
        for name, module in modules.items():
            copies = {key: value.detach().clone() for key, value in module.state_dict().items()}
            self.weights |= {f"{name}.{key}": value for key, value in copies.items()}

    def module(self, name: str) -> dict[str, Tensor]:
        """Return the weights of one of the copied modules."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): v for key, v in self.weights.items() if key.startswith(prefix)}

    def state(self) -> dict[str, Tensor]:
        """Return the copy."""
        return dict(self.weights)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self.weights = dict(state)
