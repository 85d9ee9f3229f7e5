"""Low-rank adapters (LoRA, Hu et al. 2021): a linear layer stays as it is and learns a correction of low rank."""

import math
from collections.abc import Iterator, Mapping

import torch.nn.functional as F
from torch import Tensor, nn

_PARTS = {"attention": ("attn", "attention", "attn_pool"), "mlp": ("mlp",)}
_KNOWN = {part for parts in _PARTS.values() for part in parts}


class LoRALinear(nn.Linear):
    """A linear layer whose weight is corrected by `up @ down`, which is zero at first."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        nn.Module.__init__(self)  # the layer's own weights are taken over, not drawn again
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's outputs with the correction, which is never a matrix of the weight's size."""
        correction = F.linear(F.linear(inputs, self.down), self.up)
        return correction.add_(F.linear(inputs, self.weight, self.bias))  # which needs no tensor of its own


def add_adapters(model: nn.Module, rank: int, targets: str) -> int:
    """Replace the linear layers of attention, MLP or both by adapted ones; returns how many there are."""
    wanted = {part for target in targets.split(",") for part in _PARTS[target]}
    found = [name for name, module in model.named_modules() if _is_target(model, name, module, wanted)]
    for name in found:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LoRALinear(model.get_submodule(name), rank))  # type: ignore[arg-type]
    return len(found)


def adapter_names(model: nn.Module) -> set[str]:
    """Return the names of all parameters of adapters."""
    layers = [name for name, module in model.named_modules() if isinstance(module, LoRALinear)]
    return {f"{name}.{part}" for name in layers for part in ("down", "up")}


def merge_adapters(state: Mapping[str, Tensor], names: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield a state without adapters, their corrections added to the weights."""
    for name, value in state.items():
        if name in names:
            continue
        layer = name.removesuffix(".weight")
        if f"{layer}.up" in names:
            up, down = (state[f"{layer}.{part}"].double() for part in ("up", "down"))
            value = (value.double() + up @ down).to(value.dtype)
        yield name, value


def _is_target(model: nn.Module, name: str, module: nn.Module, wanted: set[str]) -> bool:
    # The innermost part decides: attention pooling has an MLP of its own.
    inner = next((part for part in reversed(name.split(".")) if part in _KNOWN), None)
    if type(module) is not nn.Linear or inner not in wanted:
        return False
    # EVA's attention with a query bias multiplies by the weight itself, past the layer and any adapter of it.
    parent = model.get_submodule(name.rpartition(".")[0])
    return not (name.endswith(".qkv") and getattr(parent, "q_bias", None) is not None)
