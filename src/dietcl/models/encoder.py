"""The encoder: a plain vision transformer, ours or timm's, run on all patches or on those that a mask keeps."""

from typing import Any

import torch
from torch import Tensor, nn

from dietcl.errors import UserError
from dietcl.models.presets import OWN_PATCHES
from dietcl.models.small_vit import SmallViT
from dietcl.streams.options import MEAN, STD


class Encoder(nn.Module):
    """A plain vision transformer that returns normed tokens: class token, prompts if any, patches."""

    vit: Any  # SmallViT, or the VisionTransformer of timm, which need not be imported for our own

    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.vit, self.pixel_statistics = _build(name, image_size)
        self.dim: int = self.vit.embed_dim
        self.depth: int = len(self.vit.blocks)
        self.patch: int = self.vit.patch_embed.patch_size[0]
        self.grid: int = self.vit.patch_embed.grid_size[0]
        self.num_patches: int = self.grid**2
        if image_size % self.patch:
            size = max(1, self.grid) * self.patch
            advice = f"not a multiple of the patch size {self.patch} of {name}; choose {size} or {size + self.patch}"
            raise UserError(f"--image-size {image_size}: {advice}")
        with torch.no_grad():
            self.vit.pos_embed.copy_(position_table(self.dim, self.grid)[:, -self.vit.pos_embed.shape[1] :])

    def forward(self, images_BCHW: Tensor, keep_BK: Tensor | None = None, prompts_BPD: Tensor | None = None) -> Tensor:
        """Return the tokens of the images, of which only the patches `keep_BK` are computed if it is given."""
        tokens = self.vit.norm_pre(self._embed(images_BCHW, keep_BK, prompts_BPD))
        tokens_BND: Tensor = self.vit.norm(self.vit.blocks(tokens))
        return tokens_BND

    def stages(self, images_BCHW: Tensor, count: int) -> list[Tensor]:
        """Return normed patch tokens as maps [B, dim, grid, grid] after each of `count` equal parts of the blocks."""
        tokens = self.vit.norm_pre(self._embed(images_BCHW))
        ends = {round(self.depth * (i + 1) / count) for i in range(count)}
        maps = []
        for number, block in enumerate(self.vit.blocks, start=1):
            tokens = block(tokens)
            if number in ends:
                patches = self.vit.norm(tokens)[:, 1:]
                maps.append(patches.transpose(1, 2).reshape(len(patches), self.dim, self.grid, self.grid))
        return maps

    def _embed(self, images_BCHW: Tensor, keep_BK: Tensor | None = None, prompts_BPD: Tensor | None = None) -> Tensor:
        cls_11D, positions_1PD = self.vit.cls_token, self.vit.pos_embed
        if not self.vit.no_embed_class:
            cls_11D, positions_1PD = cls_11D + positions_1PD[:, :1], positions_1PD[:, 1:]
        patches = self.vit.patch_embed(images_BCHW) + positions_1PD
        if keep_BK is not None:
            patches = patches.gather(1, keep_BK.unsqueeze(-1).expand(-1, -1, self.dim))
        prompts = [] if prompts_BPD is None else [prompts_BPD]
        return torch.cat([cls_11D.expand(len(patches), -1, -1), *prompts, patches], dim=1)


def position_table(dim: int, grid: int) -> Tensor:
    """Return sine-cosine positions [1, 1 + grid², dim]: zeros for the class token, then the patches by rows."""
    if dim % 4:
        raise UserError(f"a width of {dim} is not a multiple of 4, which the position table needs")
    frequencies = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    rows, columns = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    # Columns fill the first half: published decoders were trained with that order.
    angles = [coordinate.flatten().to(torch.float64).outer(frequencies) for coordinate in (columns, rows)]
    patches_PD = torch.cat([half for angle in angles for half in (angle.sin(), angle.cos())], dim=1)
    return torch.cat([torch.zeros_like(patches_PD[:1]), patches_PD]).to(torch.float32).unsqueeze(0)


def _build(name: str, image_size: int) -> tuple[Any, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return the transformer, and mean and deviation by channel of the pixels that its weights were trained on."""
    if name in OWN_PATCHES:
        vit = SmallViT(image_size=image_size, patch=OWN_PATCHES[name], dim=96, depth=4, heads=3)
        return vit, ((MEAN,) * 3, (STD,) * 3)
    from dietcl.models.timm_models import build_plain_vit, pixel_statistics  # timm takes seconds to import

    return build_plain_vit(name, image_size), pixel_statistics(name)
