"""Plain vision transformers of timm by name, their published pixel statistics and their weights."""

import difflib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub.constants as hub
import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn

import dietcl._compat  # noqa: F401
from dietcl.errors import UserError, reason
from dietcl.streams.options import MEAN, STD

# isort: split
import timm
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import get_pretrained_cfg
from timm.models.vision_transformer import VisionTransformer

_FILES = ("model.safetensors", "pytorch_model.bin")  # of weights on the Hugging Face hub


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


def build_plain_vit(name: str, image_size: int) -> VisionTransformer:
    """Build a plain vision transformer of timm for images of this size."""
    _plain_model(name)
    # Without pooling, timm has its norm before the pool, where we want it, and none after it.
    vit = timm.create_model(name, num_classes=0, global_pool="", img_size=image_size, dynamic_img_size=False)
    assert isinstance(vit, VisionTransformer)
    if isinstance(vit.norm, nn.Identity):
        raise UserError(f"{name} has no norm after its blocks, so it cannot be used as an encoder")
    return vit


@cache
def encoder_size(name: str) -> tuple[int, int]:
    """Return the width of a timm vision transformer, and the size of the images that it was published for."""
    model = _plain_model(name)
    return model.embed_dim, model.patch_embed.img_size[0]


def _plain_model(name: str) -> VisionTransformer:
    """Build a model without weights, or refuse one that is not a plain vision transformer."""
    check_timm_name(name)
    # On the meta device a model of any size is built quickly and without memory.
    with torch.device("meta"):
        model = timm.create_model(name)
    parts = {"patch_embed": "patch embedding", "pos_embed": "absolute position table", "cls_token": "class token"}
    missing = [what for part, what in parts.items() if getattr(model, part, None) is None]
    if missing:
        raise UserError(f"{name} has no {', no '.join(missing)}: choose a plain ViT as the encoder")
    if type(model) is not VisionTransformer:
        raise UserError(f"{name} is a {type(model).__name__}: choose a plain ViT as the encoder")
    if model.reg_token is not None:
        raise UserError(f"{name} has register tokens: choose a plain ViT as the encoder")
    if not isinstance(model.patch_embed, PatchEmbed) or len(set(model.patch_embed.patch_size)) > 1:
        raise UserError(f"{name} has no embedding of square patches: choose a plain ViT as the encoder")
    return model


def pixel_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation by channel of the pixels, from 0 to 1, that the published weights were trained on."""
    published = get_pretrained_cfg(name)
    return ((MEAN,) * 3, (STD,) * 3) if published is None else (published.mean, published.std)


def resample_positions(table_1ND: Tensor, grid: int, prefix: int) -> Tensor:
    """Return a position table for a grid of another size; the first `prefix` tokens have no place in the grid."""
    resampled: Tensor = resample_abs_pos_embed(table_1ND.float(), [grid, grid], num_prefix_tokens=prefix)
    return resampled


def fetch_weights(name: str) -> None:
    """Download the published weights of a timm name unless the cache of downloads has them."""
    check_timm_name(name)
    published = get_pretrained_cfg(name)
    place = published and published.hf_hub_id
    if not any(isinstance(try_to_load_from_cache(place, file), str) for file in _FILES if place):
        download_weights(name)


def download_weights(name: str) -> dict[str, Tensor]:
    """Return the published weights of a timm name, from the cache of downloads or from the network."""
    check_timm_name(name)
    try:
        # timm draws initial weights, soon overwritten, from the global generator.
        with torch.random.fork_rng(devices=[]), _no_retries():
            return dict(timm.create_model(name, pretrained=True).state_dict())
    except Exception as error:  # what a failed download raises depends on the versions of two other libraries
        raise UserError(
            f"the pretrained weights of {name} cannot be downloaded ({reason(error)}); check the connection, give "
            "a local file as --weights FILE, or start with --weights random"
        ) from error


@contextmanager
def _no_retries() -> Iterator[None]:
    """Use the cache of the Hugging Face client alone if its server is unreachable; it would retry for a minute."""
    before = hub.HF_HUB_OFFLINE
    try:
        address = urlsplit(getproxies().get("https", hub.ENDPOINT))
        if not before:
            port = address.port or (443 if address.scheme == "https" else 80)
            socket.create_connection((address.hostname or "", port), timeout=3).close()
    except (OSError, ValueError):
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
