"""The configuration of a network and the named sizes; free of torch, so that the command line starts quickly."""

from dataclasses import dataclass

from dietcl.errors import UserError

MOST_PIXELS = 2048


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a network."""

    encoder: str
    """`micro`, `nano`, or the timm name of a plain vision transformer such as `vit_base_patch16_224.mae`."""
    image_size: int
    """Height and width of the images in pixels; a multiple of the encoder's patch size."""
    decoder_dim: int
    """Width of the reconstruction decoder."""
    decoder_depth: int
    """Number of blocks of the reconstruction decoder."""
    decoder_heads: int
    """Attention heads of the reconstruction decoder."""
    mask_ratio: float = 0.75
    """Fraction of the patches hidden from the encoder when it learns by reconstruction."""

    def __post_init__(self) -> None:
        if not 1 <= self.image_size <= MOST_PIXELS:
            raise UserError(f"--image-size {self.image_size}: give from 1 to {MOST_PIXELS}")
        for option in ("decoder_depth", "decoder_heads"):
            if getattr(self, option) < 1:
                raise UserError(f"--{option.replace('_', '-')} {getattr(self, option)}: give at least 1")
        if self.decoder_dim < 4 or self.decoder_dim % 4 or self.decoder_dim % self.decoder_heads:
            raise UserError(
                f"--decoder-dim {self.decoder_dim}: give a multiple of 4 (for its position table) "
                f"and of --decoder-heads {self.decoder_heads}"
            )
        if not 0 < self.mask_ratio < 1:
            raise UserError(f"--mask-ratio {self.mask_ratio}: give a share above 0 and below 1")


# Patch sizes of the package's own encoders, for 32 px; patches of 8 px give a quarter of the tokens of 4 px.
OWN_PATCHES = {"micro": 4, "nano": 8}

MODELS: dict[str, ModelConfig] = {
    "nano": ModelConfig(encoder="nano", image_size=32, decoder_dim=64, decoder_depth=1, decoder_heads=2),
    "micro": ModelConfig(encoder="micro", image_size=32, decoder_dim=64, decoder_depth=1, decoder_heads=2),
    "tiny": ModelConfig(
        encoder="vit_tiny_patch16_224", image_size=224, decoder_dim=128, decoder_depth=2, decoder_heads=4
    ),
    "small": ModelConfig(
        encoder="vit_small_patch16_224", image_size=224, decoder_dim=256, decoder_depth=4, decoder_heads=8
    ),
    "base": ModelConfig(
        encoder="vit_base_patch16_224.mae", image_size=224, decoder_dim=512, decoder_depth=8, decoder_heads=16
    ),
    "large": ModelConfig(
        encoder="vit_large_patch16_224.mae", image_size=224, decoder_dim=512, decoder_depth=8, decoder_heads=16
    ),
}
