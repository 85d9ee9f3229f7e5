"""A small vision transformer of our own: timm's, weight by weight, without the seconds that timm takes to import."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6


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
        self.norm1 = nn.LayerNorm(dim, eps=EPSILON)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=EPSILON)
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
    num_prefix_tokens = 1
    reg_token = attn_pool = None

    def __init__(self, *, image_size: int, patch: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed_dim = dim
        self.patch_embed = PatchEmbedding(image_size, patch, dim)
        tokens = 1 + self.patch_embed.grid_size[0] ** 2
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, tokens, dim))
        self.norm_pre = nn.Identity()
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        # Drawn in timm's order, so that a seed gives the weights that it gave when timm built this network.
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def pool(self, tokens_BND: Tensor) -> Tensor:
        """Return the mean patch token of each image."""
        return tokens_BND[:, 1:].mean(dim=1)

    def fc_norm(self, pooled_BD: Tensor) -> Tensor:
        """Return pooled tokens as they are, because they are normed before."""
        return pooled_BD

    def no_weight_decay(self) -> set[str]:
        """Return the parameters that weight decay leaves alone."""
        return {"pos_embed", "cls_token"}
