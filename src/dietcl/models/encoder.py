"""The encoder: a plain vision transformer, ours or timm's, run on all patches or on those that a mask keeps."""

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dietcl.errors import UserError
from dietcl.models.presets import OWN_PATCHES
from dietcl.streams.options import MEAN, STD

_EPSILON = 1e-6


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


# timm's transformer, weight by weight, without the seconds that timm takes to import.


class Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens_BND: Tensor) -> Tensor:
        """Return what each token takes from all tokens."""
        batch, tokens, dim = tokens_BND.shape
        qkv = self.qkv(tokens_BND).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        mixed_BHNd = F.scaled_dot_product_attention(*qkv.unbind(0))
        out_BND: Tensor = self.proj(mixed_BHNd.transpose(1, 2).reshape(batch, tokens, dim))
        return out_BND


class Block(nn.Module):
    """A transformer block that norms first."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=_EPSILON)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=_EPSILON)
        layers = OrderedDict(fc1=nn.Linear(dim, 4 * dim), act=nn.GELU(), fc2=nn.Linear(4 * dim, dim))
        self.mlp = nn.Sequential(layers)

    def forward(self, tokens_BND: Tensor) -> Tensor:
        """Return the tokens after attention and MLP, each added to what came in."""
        tokens_BND = tokens_BND + self.attn(self.norm1(tokens_BND))
        out_BND: Tensor = tokens_BND + self.mlp(self.norm2(tokens_BND))
        return out_BND


class PatchEmbedding(nn.Module):
    """A token for every square patch."""

    def __init__(self, image_size: int, patch: int, dim: int) -> None:
        super().__init__()
        self.patch_size = (patch, patch)
        self.grid_size = (image_size // patch, image_size // patch)
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the patches' tokens, rows first."""
        tokens_BDhw: Tensor = self.proj(images_BCHW)
        return tokens_BDhw.flatten(2).transpose(1, 2)


class SmallViT(nn.Module):
    """A plain vision transformer with a class token and an absolute position table."""

    no_embed_class = False

    def __init__(self, *, image_size: int, patch: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed_dim = dim
        self.patch_embed = PatchEmbedding(image_size, patch, dim)
        tokens = 1 + self.patch_embed.grid_size[0] ** 2
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, tokens, dim))
        self.norm_pre = nn.Identity()
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=_EPSILON)
        # Drawn in timm's order, so that a seed gives the weights that it gave when timm built this network.
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that weight decay leaves alone."""
        return {"pos_embed", "cls_token"}
