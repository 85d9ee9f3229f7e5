"""Counts the FLOPs of matrix products and convolutions on the meta device; the rest is below one percent."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from dietcl.budget.cost import CostModel, Polynomial
from dietcl.files import default_cache, write_json
from dietcl.models.network import Network, build_network
from dietcl.models.presets import ModelConfig


def cost_model(config: ModelConfig) -> CostModel:
    """Return the costs of the network from the cache, or measure them and put them there."""
    file = default_cache() / "costs" / f"{_fingerprint(config)}.json"
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
        return CostModel.from_json(json.loads(file.read_text()))
    cost = measure(config)
    with suppress(OSError):  # without a cache, the next start takes a second longer
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, asdict(cost))
    return cost


def measure(config: ModelConfig) -> CostModel:
    """Count the FLOPs of the network's operations without memory or arithmetic, equal on every machine."""
    network = build_network(config, 0, "meta")
    images_BCHW = torch.empty(1, 3, config.image_size, config.image_size, device="meta")
    counts = {
        "encoder_forward": _count_forward(network, partial(network.features, images_BCHW)),
        "encoder_pass": count_flops(partial(network.features, images_BCHW), backward=True),
    }
    if network.decoder is not None:
        counts |= _masked(network, images_BCHW)
    prompts = _prompts(network, images_BCHW) if "prompts" in network.encoder.abilities else {}
    whole = None if config.train == "full" else measure(replace(config, train="full"))
    return CostModel(**counts, prompts=prompts, features=network.encoder.dim, whole=whole)


def _masked(network: Network, images_BCHW: Tensor) -> dict[str, int]:
    """Count the FLOPs of a reconstruction."""
    encoder, decoder = network.tokens, network.decoder
    assert decoder is not None
    keep_BK = torch.empty(1, network.kept_patches, dtype=torch.int64, device="meta")
    # The encoder's own backward continues from these tokens, so the decoder must produce their gradient.
    visible_BND = torch.empty(1, encoder.prefix + network.kept_patches, encoder.dim, device="meta", requires_grad=True)
    parts: dict[str, Callable[[], Tensor]] = {
        "masked": lambda: encoder(images_BCHW, keep_BK),
        "decoder": lambda: decoder(visible_BND, keep_BK),
    }
    counts = {f"{name}_forward": _count_forward(network, run) for name, run in parts.items()}
    return counts | {f"{name}_pass": count_flops(run, backward=True) for name, run in parts.items()}


def _prompts(network: Network, images_BCHW: Tensor) -> dict[str, Polynomial]:
    """Count the FLOPs of the encoder with prompts, as polynomials in their number."""

    def polynomial(backward: bool) -> Polynomial:
        pools = (torch.empty(1, number, network.encoder.dim, device="meta", requires_grad=True) for number in (1, 2, 3))
        one, two, three = (count_flops(partial(network.prompted, images_BCHW, pool), backward) for pool in pools)
        quadratic = (one - 2 * two + three) // 2
        linear = two - one - 3 * quadratic
        return one - linear - quadratic, linear, quadratic

    prompts = {"prompt_train": polynomial(backward=True)}
    network.encoder.requires_grad_(False)
    return prompts | {"prompt": polynomial(backward=True), "prompt_forward": polynomial(backward=False)}


def _count_forward(network: Network, run: Callable[[], Tensor]) -> int:
    """Count the FLOPs of a forward; torch's counter fails on a weight that a module is given, as by attention pooling.

    It expects a gradient function of whatever could have a gradient, and without gradients there is none.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.requires_grad_(False)
    counted = count_flops(run, backward=False)
    for parameter in trained:
        parameter.requires_grad_(True)
    return counted


def count_flops(run: Callable[[], Tensor], backward: bool) -> int:
    """Count the FLOPs of a computation on meta tensors, with the backward from the sum of its outputs or without."""
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
    )
    # Fused attention computes its scores again in the backward; that is a choice of the kernel, not of the method.
    with sdpa_kernel(SDPBackend.MATH), counter, torch.set_grad_enabled(backward):
        output = run()
        if backward and output.requires_grad:
            output.sum().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def _convolution_backward(
    gradient: Sequence[int],
    images: Sequence[int],
    weight: Sequence[int],
    *options: Any,
    out_shape: Any = None,
    **_: Any,
) -> int:
    """Count the gradients of images and weight, each as dear as the forward; torch's own count forgets the groups."""
    transposed, is_asked = options[4], options[7]
    forward: int = conv_flop_count(list(images), list(weight), list(gradient), transposed)
    return forward * sum(map(int, is_asked[:2]))


def _fingerprint(config: ModelConfig) -> str:
    # With the code in the key, an edit to the network never leaves a stale price behind.
    code = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(Path(__file__).parent.glob("*.py"))]
    key = [asdict(config), version("torch"), version("timm"), code]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
