"""The encoder: a plain timm vision transformer, run on all patches or on those that a mask keeps."""

import difflib

import torch
from torch import Tensor, nn

import dietcl._compat  # noqa: F401
from dietcl.errors import UserError
from dietcl.models.presets import MEAN, OWN_PATCHES, STD

# isort: split
import timm
from timm.layers.patch_embed import PatchEmbed
from timm.models import get_pretrained_cfg
from timm.models.vision_transformer import VisionTransformer


class Encoder(nn.Module):
    """A plain vision transformer that returns normed tokens: class token, prompts if any, patches."""

    vit: VisionTransformer

    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.vit = _own(name, image_size) if name in OWN_PATCHES else _from_timm(name, image_size)
        self.dim: int = self.vit.embed_dim
        self.depth: int = len(self.vit.blocks)
        self.patch: int = self.vit.patch_embed.patch_size[0]
        self.grid: int = self.vit.patch_embed.grid_size[0]
        self.num_patches: int = self.grid**2
        if image_size % self.patch:
            raise UserError(
                f"--image-size {image_size}: not a multiple of the patch size {self.patch} of {name}; "
                f"choose {max(1, self.grid) * self.patch} or {(max(1, self.grid) + 1) * self.patch}"
            )
        self.pixel_statistics = _pixel_statistics(name)
        table_1ND = position_table(self.dim, self.grid)
        with torch.no_grad():
            positions = self._tables()[1]
            positions.copy_(table_1ND[:, -positions.shape[1] :])

    def forward(self, images_BCHW: Tensor, keep_BK: Tensor | None = None, prompts_BPD: Tensor | None = None) -> Tensor:
        """Return the tokens of the images, of which only the patches `keep_BK` are computed if it is given."""
        tokens_BND: Tensor = self.vit.norm(self.vit.blocks(self._embed(images_BCHW, keep_BK, prompts_BPD)))
        return tokens_BND

    def stages(self, images_BCHW: Tensor, count: int) -> list[Tensor]:
        """Return normed patch tokens as maps [B, dim, grid, grid] after each of so many equal parts of the blocks."""
        tokens = self._embed(images_BCHW)
        ends = {round(self.depth * (i + 1) / count) for i in range(count)}
        maps = []
        for number, block in enumerate(self.vit.blocks, start=1):
            tokens = block(tokens)
            if number in ends:
                patches = self.vit.norm(tokens)[:, 1:]
                maps.append(patches.transpose(1, 2).reshape(len(patches), self.dim, self.grid, self.grid))
        return maps

    def _embed(self, images_BCHW: Tensor, keep_BK: Tensor | None = None, prompts_BPD: Tensor | None = None) -> Tensor:
        cls_11D, positions_1PD = self._tables()
        if not self.vit.no_embed_class:
            cls_11D, positions_1PD = cls_11D + positions_1PD[:, :1], positions_1PD[:, 1:]
        patches = self.vit.patch_embed(images_BCHW) + positions_1PD
        if keep_BK is not None:
            patches = patches.gather(1, keep_BK.unsqueeze(-1).expand(-1, -1, self.dim))
        prompts = [] if prompts_BPD is None else [prompts_BPD]
        tokens_BND: Tensor = self.vit.norm_pre(
            torch.cat([cls_11D.expand(len(patches), -1, -1), *prompts, patches], dim=1)
        )
        return tokens_BND

    def _tables(self) -> tuple[Tensor, Tensor]:
        # Both are optional to timm; encoders without them were refused when this one was made.
        assert self.vit.cls_token is not None
        assert self.vit.pos_embed is not None
        return self.vit.cls_token, self.vit.pos_embed


def _pixel_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation by channel of the pixels, from 0 to 1, that the published weights were trained on."""
    published = None if name in OWN_PATCHES else get_pretrained_cfg(name)
    return ((MEAN,) * 3, (STD,) * 3) if published is None else (published.mean, published.std)


def position_table(dim: int, grid: int) -> Tensor:
    """Return sine-cosine positions [1, 1 + grid², dim]: zeros for the class token, then the patches by rows."""
    if dim % 4:
        raise UserError(f"a width of {dim} is not a multiple of 4, which the position table needs")
    frequencies = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    rows, columns = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    # Columns fill the first half: published decoders were trained with that order.
    halves = []
    for coordinate in (columns, rows):
        angles = coordinate.flatten().to(torch.float64).outer(frequencies)
        halves += [angles.sin(), angles.cos()]
    patches_PD = torch.cat(halves, dim=1)
    return torch.cat([torch.zeros_like(patches_PD[:1]), patches_PD]).to(torch.float32).unsqueeze(0)


def check_timm_name(name: str) -> None:
    """Raise with the nearest names if timm knows no such model or no such tag of it."""
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists the names"
        raise UserError(f"timm has no model named {name!r}: {hint}")
    try:
        get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = ", ".join(timm.list_models(f"{name.split('.')[0]}.*", pretrained=True)) or "none"
        raise UserError(f"timm knows no weights {name!r}; of this model it knows {tags}") from error


def _own(name: str, image_size: int) -> VisionTransformer:
    return VisionTransformer(
        img_size=image_size,
        patch_size=OWN_PATCHES[name],
        embed_dim=96,
        depth=4,
        num_heads=3,
        num_classes=0,
        global_pool="",
    )


def _from_timm(name: str, image_size: int) -> VisionTransformer:
    check_timm_name(name)
    _refuse_unless_plain(name)
    # Without a pooling timm puts its norm before the pool, where we want it, and makes no norm after it.
    vit = timm.create_model(
        name, pretrained=False, num_classes=0, global_pool="", img_size=image_size, dynamic_img_size=False
    )
    assert isinstance(vit, VisionTransformer)
    if isinstance(vit.norm, nn.Identity):
        raise UserError(f"{name} has no norm after its blocks, so it cannot be used as an encoder")
    return vit


def _refuse_unless_plain(name: str) -> None:
    # On the meta device a model of any size is built in a moment and without memory.
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    parts = {
        "patch_embed": "patch embedding",
        "pos_embed": "absolute position table",
        "cls_token": "class token",
        "blocks": "list of blocks",
    }
    missing = [what for part, what in parts.items() if getattr(model, part, None) is None]
    if missing:
        raise UserError(f"{name} has no {', no '.join(missing)}: choose a plain ViT as the encoder")
    if type(model) is not VisionTransformer:
        raise UserError(f"{name} is a {type(model).__name__}: choose a plain ViT as the encoder")
    if model.reg_token is not None:
        raise UserError(f"{name} has register tokens: choose a plain ViT as the encoder")
    if not isinstance(model.patch_embed, PatchEmbed) or len(set(model.patch_embed.patch_size)) > 1:
        raise UserError(f"{name} has no embedding of square patches: choose a plain ViT as the encoder")
