"""FLOPs of every operation for one image, counted once on the meta device; one multiply-add is two FLOPs.

Only products of matrices and convolutions count, as is usual; the rest is below one percent.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dietcl.files import default_cache, write_json
from dietcl.models.presets import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

Operation = Literal[
    "train",  # forward and backward through encoder and head
    "importance",  # the same for a Fisher or importance estimate
    "forward",  # encoder and head without gradient
    "reconstruct",  # masked encoder and decoder, forward and backward
    "reconstruct_forward",  # masked encoder and decoder without gradient
    "prompt",  # forward with prompt tokens through frozen weights, backward to the prompts and the head
    "prompt_train",  # forward with prompt tokens, backward to all weights
    "prompt_forward",  # forward with prompt tokens without gradient
    "head_train",  # the head alone, forward and backward on given features
    "head_forward",  # the head alone on given features
]
PROMPTED: tuple[Operation, ...] = ("prompt", "prompt_train", "prompt_forward")
Polynomial = tuple[int, int, int]  # attention makes the cost quadratic in the number of tokens


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """FLOPs for one image; a pass is forward and backward, without the gradient of the image itself."""

    encoder_forward: int
    encoder_pass: int
    masked_forward: int
    masked_pass: int
    decoder_forward: int
    decoder_pass: int
    prompts: dict[str, Polynomial]  # the encoder's share of each operation in PROMPTED
    features: int

    def prompted(self, operation: Operation, num_prompts: int) -> int:
        """Return the FLOPs of the encoder with so many prompts."""
        constant, linear, quadratic = self.prompts[operation]
        return constant + linear * num_prompts + quadratic * num_prompts**2

    def head_forward(self, classes: int) -> int:
        """Return the FLOPs of the head's forward."""
        return 2 * self.features * classes

    def head_pass(self, classes: int) -> int:
        """Return the FLOPs of the head's forward and backward, with the gradient of the features."""
        return 3 * self.head_forward(classes)

    def head_train(self, classes: int) -> int:
        """Return the FLOPs of the head's forward and backward on given features, which need no gradient."""
        return 2 * self.head_forward(classes)

    def pass_flops(self, classes: int) -> int:
        """Return the FLOPs of one pass, the unit of cost."""
        return self.encoder_pass + self.head_pass(classes)

    def flops(self, operation: Operation, classes: int, prompts: int = 0) -> int:
        """Return the FLOPs of any operation."""
        if (prompts > 0) != (operation in PROMPTED):
            raise ValueError(f"The operation {operation!r} cannot be done with {prompts} prompt tokens.")
        match operation:
            case "train" | "importance":
                return self.pass_flops(classes)
            case "forward":
                return self.encoder_forward + self.head_forward(classes)
            case "reconstruct":
                return self.masked_pass + self.decoder_pass
            case "reconstruct_forward":
                return self.masked_forward + self.decoder_forward
            case "prompt" | "prompt_train":
                return self.prompted(operation, prompts) + self.head_pass(classes)
            case "prompt_forward":
                return self.prompted(operation, prompts) + self.head_forward(classes)
            case "head_train":
                return self.head_train(classes)
            case "head_forward":
                return self.head_forward(classes)
        raise ValueError(f"There is no operation {operation!r}; choose from {', '.join(get_args(Operation))}.")


def cost_model(config: ModelConfig) -> CostModel:
    """Return the costs of the network from the cache, or measure them and put them there."""
    file = default_cache() / "costs" / f"{_fingerprint(config)}.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        costs = json.loads(file.read_text())
        return CostModel(**{**costs, "prompts": {name: tuple(costs["prompts"][name]) for name in PROMPTED}})
    cost = measure(config)
    # A cache that cannot be written costs a second at the next start and nothing else.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, asdict(cost))
    return cost


def measure(config: ModelConfig) -> CostModel:
    """Count the FLOPs of the network's operations without memory or arithmetic, equal on every machine."""
    import torch

    from dietcl.models.network import build_network

    network = build_network(config, seed=0, device="meta")
    encoder, decoder = network.encoder, network.decoder
    size = config.image_size
    images_BCHW = torch.empty(1, 3, size, size, device="meta")
    keep_BK = torch.empty(1, network.kept_patches, dtype=torch.int64, device="meta")
    # The encoder's own backward goes on from these tokens, so the decoder must produce their gradient.
    visible_BND = torch.empty(1, 1 + network.kept_patches, encoder.dim, device="meta", requires_grad=True)

    def full() -> "Tensor":
        return network.features(images_BCHW)

    def masked() -> "Tensor":
        tokens_BND: Tensor = encoder(images_BCHW, keep_BK)
        return tokens_BND

    def decode() -> "Tensor":
        predictions_BPV: Tensor = decoder(visible_BND, keep_BK)
        return predictions_BPV

    def prompted(num_prompts: int) -> "Tensor":
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


def count_flops(run: "Callable[[], Tensor]", backward: bool) -> int:
    """Count the FLOPs of a computation on meta tensors, with the backward from the sum of its outputs or without."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    # Fused attention computes its scores again in the backward; that is a choice of the kernel, not of the method.
    with sdpa_kernel(SDPBackend.MATH), counter, torch.set_grad_enabled(backward):
        output = run()
        if backward:
            output.sum().backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def _fingerprint(config: ModelConfig) -> str:
    # With the code in the key, no edit to the network can leave a stale price behind.
    package = Path(__file__).parent.parent
    sources = [Path(__file__), *sorted((package / "models").glob("*.py"))]
    code = [hashlib.sha256(source.read_bytes()).hexdigest() for source in sources]
    key = [asdict(config), version("torch"), version("timm"), code]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
