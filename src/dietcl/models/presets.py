"""The configuration of a network and the named sizes; free of torch, so that the command line starts quickly."""

from dataclasses import dataclass
from typing import Annotated

from dietcl.checked_options import CheckedOptions, Count, Valid
from dietcl.errors import UserError

MOST_PIXELS = 2048


@dataclass(frozen=True, kw_only=True)
class ModelConfig(CheckedOptions):
    """The shape of a network."""

    encoder: str
    """`micro`, `nano`, or the timm name of a plain vision transformer such as `vit_base_patch16_224.mae`."""
    image_size: Annotated[int, Valid(lambda n: 1 <= n <= MOST_PIXELS, f"give from 1 to {MOST_PIXELS}")]
    """Height and width of the images in pixels; a multiple of the encoder's patch size."""
    decoder_dim: int
    """Width of the reconstruction decoder."""
    decoder_depth: Count
    """Number of blocks of the reconstruction decoder."""
    decoder_heads: Count
    """Attention heads of the reconstruction decoder."""
    mask_ratio: Annotated[float, Valid(lambda x: 0 < x < 1, "give a share above 0 and below 1")] = 0.75
    """Fraction of the patches hidden from the encoder when it learns by reconstruction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_dim < 4 or self.decoder_dim % 4 or self.decoder_dim % self.decoder_heads:
            advice = f"give a multiple of 4 (for its position table) and of --decoder-heads {self.decoder_heads}"
            raise UserError(f"--decoder-dim {self.decoder_dim}: {advice}")


# Patch sizes of the package's own encoders, for 32 px; patches of 8 px give a quarter of the tokens of 4 px.
OWN_PATCHES = {"micro": 4, "nano": 8}

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
