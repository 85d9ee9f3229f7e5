"""Counts the FLOPs of matrix products and convolutions on the meta device; the rest is below one percent."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dietcl.budget.cost import CostModel, Polynomial
from dietcl.files import default_cache, write_json
from dietcl.models.network import build_network
from dietcl.models.presets import ModelConfig


def cost_model(config: ModelConfig) -> CostModel:
    """Return the costs of the network from the cache, or measure them and put them there."""
    file = default_cache() / "costs" / f"{_fingerprint(config)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        return CostModel.from_json(json.loads(file.read_text()))
    cost = measure(config)
    with suppress(OSError):  # without a cache, the next start takes a second longer
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, asdict(cost))
    return cost


def measure(config: ModelConfig) -> CostModel:
    """Count the FLOPs of the network's operations without memory or arithmetic, equal on every machine."""
    network = build_network(config, seed=0, device="meta")
    encoder, decoder = network.encoder, network.decoder
    images_BCHW = torch.empty(1, 3, config.image_size, config.image_size, device="meta")
    keep_BK = torch.empty(1, network.kept_patches, dtype=torch.int64, device="meta")
    # The encoder's own backward continues from these tokens, so the decoder must produce their gradient.
    visible_BND = torch.empty(1, 1 + network.kept_patches, encoder.dim, device="meta", requires_grad=True)
    parts: dict[str, Callable[[], Tensor]] = {
        "encoder": lambda: network.features(images_BCHW),
        "masked": lambda: encoder(images_BCHW, keep_BK),
        "decoder": lambda: decoder(visible_BND, keep_BK),
    }
    counts = {f"{name}_forward": count_flops(run, backward=False) for name, run in parts.items()}
    counts |= {f"{name}_pass": count_flops(run, backward=True) for name, run in parts.items()}

    def polynomial(backward: bool) -> Polynomial:
        pools = (torch.empty(1, number, encoder.dim, device="meta", requires_grad=True) for number in (1, 2, 3))
        one, two, three = (count_flops(partial(network.prompted, images_BCHW, pool), backward) for pool in pools)
        quadratic = (one - 2 * two + three) // 2
        linear = two - one - 3 * quadratic
        return one - linear - quadratic, linear, quadratic

    prompts = {"prompt_forward": polynomial(backward=False), "prompt_train": polynomial(backward=True)}
    encoder.requires_grad_(False)
    prompts["prompt"] = polynomial(backward=True)
    return CostModel(**counts, prompts=prompts, features=encoder.dim)


def count_flops(run: Callable[[], Tensor], backward: bool) -> int:
    """Count the FLOPs of a computation on meta tensors, with the backward from the sum of its outputs or without."""
    counter = FlopCounterMode(display=False)
    # Fused attention computes its scores again in the backward; that is a choice of the kernel, not of the method.
    with sdpa_kernel(SDPBackend.MATH), counter, torch.set_grad_enabled(backward):
        output = run()
        if backward:
            output.sum().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def _fingerprint(config: ModelConfig) -> str:
    # With the code in the key, an edit to the network never leaves a stale price behind.
    code = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(Path(__file__).parent.glob("*.py"))]
    key = [asdict(config), version("torch"), version("timm"), code]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
