"""Counts the FLOPs of a network's operations once, on the meta device.

Only products of matrices and convolutions count, as is usual; the rest is below one percent.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
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
    # A cache that cannot be written costs a second at the next start and nothing else.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, asdict(cost))
    return cost


def measure(config: ModelConfig) -> CostModel:
    """Count the FLOPs of the network's operations without memory or arithmetic, equal on every machine."""
    network = build_network(config, seed=0, device="meta")
    encoder, decoder = network.encoder, network.decoder
    size = config.image_size
    images_BCHW = torch.empty(1, 3, size, size, device="meta")
    keep_BK = torch.empty(1, network.kept_patches, dtype=torch.int64, device="meta")
    # The encoder's own backward goes on from these tokens, so the decoder must produce their gradient.
    visible_BND = torch.empty(1, 1 + network.kept_patches, encoder.dim, device="meta", requires_grad=True)

    def full() -> Tensor:
        return network.features(images_BCHW)

    def masked() -> Tensor:
        tokens_BND: Tensor = encoder(images_BCHW, keep_BK)
        return tokens_BND

    def decode() -> Tensor:
        predictions_BPV: Tensor = decoder(visible_BND, keep_BK)
        return predictions_BPV

    def prompted(num_prompts: int) -> Tensor:
        prompts_BPD = torch.empty(1, num_prompts, encoder.dim, device="meta", requires_grad=True)
        return network.prompted(images_BCHW, prompts_BPD)

    def polynomial(backward: bool) -> Polynomial:
        one, two, three = (count_flops(lambda n=n: prompted(n), backward) for n in (1, 2, 3))  # type: ignore[misc]
        quadratic = (one - 2 * two + three) // 2
        linear = two - one - 3 * quadratic
        return one - linear - quadratic, linear, quadratic

    counts = {
        "encoder_forward": count_flops(full, backward=False),
        "encoder_pass": count_flops(full, backward=True),
        "masked_forward": count_flops(masked, backward=False),
        "masked_pass": count_flops(masked, backward=True),
        "decoder_forward": count_flops(decode, backward=False),
        "decoder_pass": count_flops(decode, backward=True),
    }
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
    # With the code in the key, no edit to the network can leave a stale price behind.
    sources = sorted(Path(__file__).parent.glob("*.py"))
    code = [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]
    key = [asdict(config), version("torch"), version("timm"), code]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
