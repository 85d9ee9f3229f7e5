"""AdamW with layer decay, one cosine per phase over the spent share of its budget, and AdamW's saved state."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dietcl.config import Training
from dietcl.models.encoder import Encoder
from dietcl.models.network import Network


def build_optimizer(network: Network, extra: Mapping[str, nn.Module], config: Training) -> torch.optim.AdamW:
    """Return a fresh AdamW; the "peak" of a group is its highest learning rate."""
    groups = _encoder_groups(network.encoder, config)
    if network.decoder is not None:
        groups += _plain_groups(network.decoder, config.lr, config.weight_decay)
    groups += _plain_groups(network.head, config.head_lr, config.weight_decay)
    for module in extra.values():
        groups += _plain_groups(module, config.lr, config.weight_decay)
    groups = [group for group in groups if any(p.numel() for p in group["params"])]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, config: Training, scale: float, fraction: float) -> float:
    """Put every group on the cosine from its peak to the floor; return the encoder's rate."""
    floor = min(config.lr_floor / (config.lr * scale), 0.5)
    factor = scale * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, fraction))))
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return config.lr * factor


def moments_of(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """Return an optimizer's tensors as PREFIX/PARAMETER/NAME."""
    entries = optimizer.state_dict()["state"].items()
    return {f"{prefix}/{parameter}/{name}": value for parameter, entry in entries for name, value in entry.items()}


def load_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what `moments_of` returned, without the prefix."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        parameter, _, name = key.partition("/")
        state.setdefault(int(parameter), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _encoder_groups(encoder: Encoder, config: Training) -> list[dict[str, Any]]:
    """Group what learns of the encoder by layer: each learns slower by the layer decay than the one above it."""
    groups: dict[tuple[int, float], dict[str, Any]] = {}
    exempt, layers = encoder.no_weight_decay(), encoder.layers()
    for name, parameter in encoder.model.named_parameters():
        if not parameter.requires_grad:
            continue
        above = encoder.depth - layers[name]
        decay = 0.0 if parameter.ndim <= 1 or name in exempt else config.weight_decay
        peak = config.lr * config.layer_decay ** (above + 1)
        group = groups.setdefault((above, decay), {"params": [], "weight_decay": decay, "peak": peak})
        group["params"].append(parameter)
    return list(groups.values())


def _plain_groups(module: nn.Module, peak: float, weight_decay: float) -> list[dict[str, Any]]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay, "peak": peak},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0, "peak": peak},
    ]
