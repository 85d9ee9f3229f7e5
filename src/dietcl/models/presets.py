"""The configuration of a network and the named sizes; free of torch, so that the command line starts quickly."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from dietcl.checked_options import CheckedOptions, Count, Later, Valid
from dietcl.errors import UserError
from dietcl.streams.options import Interpolation, Resizing

MOST_PIXELS = 2048

Pool = Literal["auto", "token", "mean", "map"]
Ability = Literal["patches", "prompts", "stages", "layers"]
ABILITIES: dict[Ability, str] = {
    "patches": "patch tokens that can be masked",
    "prompts": "prompt tokens",
    "stages": "maps of features at several depths",
    "layers": "layers in order, which can learn at different rates",
}
"""What an encoder may be able to do besides features, in words."""
_TRAIN = re.compile(r"full|lora|head|last-[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(CheckedOptions):
    """The shape of a network."""

    encoder: str
    """`micro`, `nano`, `lite`, or the timm name of an image model such as `vit_base_patch16_224.mae`."""
    image_size: Annotated[int, Valid(lambda n: 1 <= n <= MOST_PIXELS, f"give from 1 to {MOST_PIXELS}")]
    """Height and width of the images in pixels; of a vision transformer, a multiple of its patch size."""
    decoder_dim: int
    """Width of the reconstruction decoder."""
    decoder_depth: Count
    """Number of blocks of the reconstruction decoder."""
    decoder_heads: Count
    """Attention heads of the reconstruction decoder."""
    mask_ratio: Annotated[float, Valid(lambda x: 0 < x < 1, "give a share above 0 and below 1")] = 0.75
    """Fraction of the patches hidden from the encoder when it learns by reconstruction."""
    pool: Annotated[Pool, Later()] = "mean"
    """What becomes the features: the class token, the mean of the patches, attention pooling, or as published."""
    crop_ratio: Annotated[float, Valid(lambda x: 0 < x <= 1, "give a share above 0, at most 1"), Later()] = 1.0
    """Share of the shorter side that the square from an image's middle has (not in random crops)."""
    interpolation: Annotated[Interpolation, Later()] = "bilinear"
    """How that square is resized."""
    train: Annotated[str, Valid(_TRAIN.fullmatch, "give full, lora, head or last-2"), Later()] = "full"
    """What of the encoder learns: all, low-rank adapters, nothing (the head alone), or its last 2 layers."""
    lora_rank: Annotated[Count, Later()] = 8
    """Rank of the adapters (--train lora)."""
    lora_targets: Annotated[Literal["attention,mlp", "attention", "mlp"], Later()] = "attention,mlp"
    """Linear layers that get an adapter (--train lora)."""

    @property
    def resizing(self) -> Resizing:
        """How a square is cut from an image."""
        return Resizing(self.crop_ratio, self.interpolation)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_dim < 4 or self.decoder_dim % 4 or self.decoder_dim % self.decoder_heads:
            advice = f"give a multiple of 4 (for its position table) and of --decoder-heads {self.decoder_heads}"
            raise UserError(f"--decoder-dim {self.decoder_dim}: {advice}")


# Patch sizes of the package's own encoders, for 32 px; patches of 8 px give a quarter of the tokens of 4 px.
OWN_PATCHES = {"micro": 4, "nano": 8}

# Encoders with names of our own that timm builds, and the weights that a package beside ours brings.
ALIASES = {"lite": "tf_efficientnet_lite0"}
SHIPPED = (*OWN_PATCHES, *ALIASES)

# Encoder and image size; width, blocks and heads of the decoder.
_SIZES = {
    "nano": ("nano", 32, 64, 1, 2),
    "micro": ("micro", 32, 64, 1, 2),
    "tiny": ("vit_tiny_patch16_224", 224, 128, 2, 4),
    "small": ("vit_small_patch16_224", 224, 256, 4, 8),
    "base": ("vit_base_patch16_224.mae", 224, 512, 8, 16),
    "large": ("vit_large_patch16_224.mae", 224, 512, 8, 16),
}
MODELS: dict[str, ModelConfig] = {
    name: ModelConfig(encoder=encoder, image_size=size, decoder_dim=dim, decoder_depth=depth, decoder_heads=heads)
    for name, (encoder, size, dim, depth, heads) in _SIZES.items()
}
MODELS["lite"] = dataclasses.replace(MODELS["micro"], encoder="lite", image_size=160, pool="auto")
