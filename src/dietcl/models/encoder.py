"""Encoders: images -> features. What else one can do (masked patches, prompts, maps of several depths) it states."""

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dietcl.errors import UserError
from dietcl.models.presets import OWN_PATCHES, Ability, ModelConfig, Pool
from dietcl.models.small_vit import SmallViT
from dietcl.streams.options import MEAN, STD

Output = Literal["tokens", "features", "query"]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


class Encoder(nn.Module, ABC):
    """An image model that yields features; it is always in evaluation mode.

    So statistics of batch norms stay as they were learned, and nothing is dropped at random: batches of few labels have
    statistics of their own, which would spoil the features and differ with the number of processes.
    """

    inner: str  # the attribute that holds the model
    dim: int
    depth: int  # layers that can be told apart, numbered from 1; 0 is what is below them
    abilities: frozenset[Ability]
    pixel_statistics: Statistics  # mean and deviation by channel of pixels from 0 to 1

    @property
    def model(self) -> Any:
        """The image model itself."""
        return getattr(self, self.inner)

    def train(self, mode: bool = True) -> "Encoder":
        """Stay in evaluation mode."""
        super().train(False)
        return self

    @abstractmethod
    def layers(self) -> dict[str, int]:
        """Return the layer of every parameter of the model, up to depth + 1 for what is above the last one."""

    def no_weight_decay(self) -> set[str]:
        """Return the parameters of the model, besides vectors, that weight decay leaves alone."""
        return set(getattr(self.model, "no_weight_decay", set)())


class PooledEncoder(Encoder):
    """Any image model of timm that yields pooled features, such as a convolutional network."""

    inner = "body"

    def __init__(self, body: nn.Module, dim: int, layers: dict[str, int], statistics: Statistics) -> None:
        super().__init__()
        self.body, self.dim, self.pixel_statistics = body, dim, statistics
        # What has only vectors, such as a last norm, is above the last layer.
        self._layers = layers
        self.depth = max((layers[name] for name, value in body.named_parameters() if value.ndim > 1), default=0)
        self.abilities = frozenset(("layers",) if self.depth > 1 else ())
        self.train()

    def forward(self, images_BCHW: Tensor, output: Output = "features") -> Tensor:
        """Return the features of the images, which also serve as queries."""
        features_BD: Tensor = self.body(images_BCHW)
        return features_BD

    def layers(self) -> dict[str, int]:
        # Adapters are added after the model was built; they belong to the layer that they adapt.
        return {name: self._layers.get(name, self._layers.get(_adapted(name), 0)) for name, _ in _named(self.body)}


class TokenEncoder(Encoder):
    """A vision transformer, ours or timm's, run on all patches or on those that a mask keeps.

    Its tokens are in order: class token if any, registers if any, prompts if any, patches.
    """

    inner = "vit"

    def __init__(self, vit: Any, name: str, image_size: int, pool: Pool, statistics: Statistics) -> None:
        super().__init__()
        self.vit, self.pixel_statistics = vit, statistics
        self.dim, self.depth = vit.embed_dim, len(vit.blocks)
        self.patch: int = vit.patch_embed.patch_size[0]
        self.grid: int = vit.patch_embed.grid_size[0]
        self.num_patches: int = self.grid**2
        self.prefix: int = vit.num_prefix_tokens
        self.has_class_token = vit.cls_token is not None
        self._pool = pool
        self._has_deep_rope = getattr(vit, "rope_mixed", False)  # rotary positions differ from block to block
        masked: tuple[Ability, ...] = () if self._has_deep_rope else ("patches", "prompts")
        self.abilities = frozenset((*masked, "stages", "layers"))
        if image_size % self.patch:
            size = max(1, self.grid) * self.patch
            advice = f"not a multiple of the patch size {self.patch} of {name}; choose {size} or {size + self.patch}"
            raise UserError(f"--image-size {image_size}: {advice}")
        if pool == "token" and not self.has_class_token:
            raise UserError(f"--pool token: {name} has no class token; choose mean or auto")
        if pool == "map" and vit.attn_pool is None:
            raise UserError(f"--pool map: {name} has no attention pooling; choose token, mean or auto")
        if vit.pos_embed is not None:
            with torch.no_grad():
                table = position_table(self.dim, self.grid)
                vit.pos_embed[:, -self.num_patches :].copy_(table[:, 1:])
                vit.pos_embed[:, : -self.num_patches].zero_()
        self.train()

    def forward(
        self,
        images_BCHW: Tensor,
        keep_BK: Tensor | None = None,
        prompts_BPD: Tensor | None = None,
        output: Output = "tokens",
    ) -> Tensor:
        """Return normed tokens, of which only the patches `keep_BK` are computed if it is given; or what is pooled."""
        tokens, rope = self._embed(images_BCHW, keep_BK, prompts_BPD)
        for number in range(self.depth):
            tokens = self._block(number, tokens, rope)
        if output == "features" or (output == "query" and not self.has_class_token):
            return self.pool(self.vit.norm(tokens))
        tokens_BND = self._norm(tokens)
        return tokens_BND[:, 0] if output == "query" else tokens_BND

    def pool(self, tokens_BND: Tensor) -> Tensor:
        """Return features [B, dim] of tokens, which are normed before or after pooling."""
        if self._pool == "token":
            pooled_BD = tokens_BND[:, 0]
        elif self._pool == "mean":
            pooled_BD = tokens_BND[:, self.prefix :].mean(dim=1)
        else:
            pooled_BD = self.vit.pool(tokens_BND)
        features_BD: Tensor = self.vit.fc_norm(pooled_BD)
        return features_BD

    def stages(self, images_BCHW: Tensor, count: int) -> list[Tensor]:
        """Return normed patch tokens as maps [B, dim, grid, grid] after each of `count` equal parts of the blocks."""
        tokens, rope = self._embed(images_BCHW)
        ends = [max(1, round(self.depth * (i + 1) / count)) for i in range(count)]
        maps = []
        for number in range(self.depth):
            tokens = self._block(number, tokens, rope)
            for _ in range(ends.count(number + 1)):  # a shallow encoder gives the same map for several parts
                patches = self._norm(tokens)[:, self.prefix :]
                maps.append(patches.transpose(1, 2).reshape(len(patches), self.dim, self.grid, self.grid))
        return maps

    def layers(self) -> dict[str, int]:
        return {name: _layer_of(name, self.depth) for name, _ in _named(self.vit)}

    def _norm(self, tokens_BND: Tensor) -> Tensor:
        """Return normed tokens; a transformer that norms after pooling has no other norm."""
        normed_BND: Tensor = (self.vit.fc_norm if isinstance(self.vit.norm, nn.Identity) else self.vit.norm)(tokens_BND)
        return normed_BND

    def _embed(
        self, images_BCHW: Tensor, keep_BK: Tensor | None = None, prompts_BPD: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the tokens that enter the first block, and the rotary positions of prompts and patches, if any."""
        vit = self.vit
        prefix = [token for token in (vit.cls_token, vit.reg_token) if token is not None]
        positions_1PD, patches = vit.pos_embed, vit.patch_embed(images_BCHW)
        if positions_1PD is not None:
            if prefix and not vit.no_embed_class:
                prefix = [torch.cat(prefix, dim=1) + positions_1PD[:, : self.prefix]]
                positions_1PD = positions_1PD[:, self.prefix :]
            patches = patches + positions_1PD
        rope = None if getattr(vit, "rope", None) is None else vit.rope.get_embed()
        if keep_BK is not None:
            patches = patches.gather(1, keep_BK.unsqueeze(-1).expand(-1, -1, self.dim))
            rope = None if rope is None else rope[keep_BK].unsqueeze(1)  # of every image its own, for all heads
        first = [token.expand(len(patches), -1, -1) for token in prefix]
        if prompts_BPD is not None:
            first.append(prompts_BPD)
            rope = None if rope is None else torch.cat([_unrotated(rope, prompts_BPD.shape[1]), rope], dim=-2)
        tokens_BND: Tensor = vit.norm_pre(torch.cat([*first, patches], dim=1))
        return tokens_BND, rope

    def _block(self, number: int, tokens_BND: Tensor, rope: Tensor | None) -> Tensor:
        block = self.vit.blocks[number]
        if rope is None:
            out_BND: Tensor = block(tokens_BND)
        else:
            out_BND = block(tokens_BND, rope=rope[number] if self._has_deep_rope else rope)
        return out_BND


def build_encoder(config: ModelConfig) -> Encoder:
    """Build the encoder of a configuration, one of our own or any image model of timm, with random weights."""
    name, size = config.encoder, config.image_size
    if name in OWN_PATCHES:
        vit = SmallViT(image_size=size, patch=OWN_PATCHES[name], dim=96, depth=4, heads=3)
        return TokenEncoder(vit, name, size, config.pool, ((MEAN,) * 3, (STD,) * 3))
    from dietcl.models import timm_models  # timm takes seconds to import

    model, statistics = timm_models.build_model(name, size), timm_models.pixel_statistics(name)
    if timm_models.has_tokens(model):
        return TokenEncoder(model, name, size, config.pool, statistics)
    timm_models.check_pool(model, name, config.pool)
    return PooledEncoder(model, timm_models.count_features(name, size), timm_models.layers_of(model), statistics)


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


def _unrotated(rope: Tensor, count: int) -> Tensor:
    """Return rotary positions, sines then cosines, that leave `count` tokens as they are."""
    half = rope.shape[-1] // 2
    angles = torch.cat([rope.new_zeros(count, half), rope.new_ones(count, half)], dim=-1)
    return angles.expand(*rope.shape[:-2], -1, -1)


def _layer_of(name: str, depth: int) -> int:
    """Count layers from 0, the patch embedding; the final norm is above the last block."""
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    return depth + 1 if name.startswith(("norm.", "fc_norm.", "attn_pool.")) else 0


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def _adapted(name: str) -> str:
    """Return the weight that an adapter's parameter belongs to."""
    return f"{name.rpartition('.')[0]}.weight"
