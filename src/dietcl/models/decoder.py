"""The masked autoencoder's decoder, its targets and its loss."""

import torch
from torch import Tensor, nn

from dietcl.models.encoder import TokenEncoder, position_table
from dietcl.models.presets import ModelConfig
from dietcl.models.small_vit import EPSILON, Block


class Decoder(nn.Module):
    """Predicts the pixels of every patch from the tokens of the visible ones."""

    pos_embed: Tensor

    def __init__(self, config: ModelConfig, encoder: TokenEncoder) -> None:
        super().__init__()
        dim, self.num_patches = config.decoder_dim, encoder.num_patches
        self.prefix, self.takes_class_token = encoder.prefix, encoder.has_class_token
        self.embed = nn.Linear(encoder.dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim).normal_(std=0.02))
        self.register_buffer("pos_embed", position_table(dim, encoder.grid))
        self.blocks = nn.Sequential(*(Block(dim, config.decoder_heads) for _ in range(config.decoder_depth)))
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        self.pred = nn.Linear(dim, 3 * encoder.patch**2)

    def forward(self, tokens_BND: Tensor, keep_BK: Tensor) -> Tensor:
        """Return predictions [B, patches, values] from the encoder's tokens: its class token, if any, and patches.

        `keep_BK` are the numbers of these patches. Registers say nothing about a place and are left out.
        """
        tokens = self.embed(tokens_BND)
        index = keep_BK.unsqueeze(-1).expand(-1, -1, tokens.shape[-1])
        hidden = self.mask_token.to(tokens.dtype).expand(len(tokens), self.num_patches, -1)
        patches = hidden.scatter(1, index, tokens[:, self.prefix :])
        first = int(self.takes_class_token)
        decoded = self.blocks(torch.cat([tokens[:, :first], patches], dim=1) + self.pos_embed[:, 1 - first :])
        predictions: Tensor = self.pred(self.norm(decoded)[:, first:])
        return predictions


def patchify(images_BCHW: Tensor, patch: int) -> Tensor:
    """Cut images into patches [B, patches, values], rows first; a patch's values run row, column, channel."""
    batch, channels, height, width = images_BCHW.shape
    cut = images_BCHW.reshape(batch, channels, height // patch, patch, width // patch, patch)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch**2 * channels)


def unpatchify(patches_BPV: Tensor, patch: int) -> Tensor:
    """Put the patches of square images back together."""
    batch, patches, values = patches_BPV.shape
    grid, channels = round(patches**0.5), values // patch**2
    cut = patches_BPV.reshape(batch, grid, grid, patch, patch, channels)
    return cut.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, grid * patch, grid * patch)


def mask_of(keep_BK: Tensor, patches: int) -> Tensor:
    """Return [B, patches], true where a patch is hidden."""
    mask_BP = torch.ones(len(keep_BK), patches, dtype=torch.bool, device=keep_BK.device)
    return mask_BP.scatter(1, keep_BK, False)


def normalized_targets(patches_BPV: Tensor) -> Tensor:
    """Standardize every patch by its own mean and unbiased variance."""
    variance, mean = torch.var_mean(patches_BPV, dim=-1, keepdim=True, correction=1)
    return (patches_BPV - mean) / (variance + EPSILON).sqrt()


def reconstruction_loss(predictions_BPV: Tensor, targets_BPV: Tensor, mask_BP: Tensor) -> Tensor:
    """Return for each image the squared error per value, averaged over the patches where the mask is true."""
    error_BP = (predictions_BPV.float() - targets_BPV.float()).square().mean(dim=-1)
    return torch.where(mask_BP, error_BP, 0.0).sum(dim=1) / mask_BP.sum(dim=1)


def paint(images_BCHW: Tensor, predictions_BPV: Tensor, mask_BP: Tensor, patch: int) -> Tensor:
    """Return the images with their masked patches replaced by the predictions."""
    patches = patchify(images_BCHW, patch)
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True, correction=1)
    # The targets were standardized, so contrast and brightness are not predicted and come from the image.
    pixels = predictions_BPV.to(patches.dtype) * (variance + EPSILON).sqrt() + mean
    return unpatchify(torch.where(mask_BP.unsqueeze(-1), pixels, patches), patch)


def hide(images_BCHW: Tensor, mask_BP: Tensor, patch: int) -> Tensor:
    """Return the images with their masked patches at zero, which is mid-grey after normalization."""
    patches = patchify(images_BCHW, patch)
    return unpatchify(patches.masked_fill(mask_BP.unsqueeze(-1), 0.0), patch)
