"""Image models of timm by name, what was published with them, and their weights."""

import difflib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub.constants as hub
import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn

import dietcl._compat  # noqa: F401
from dietcl.errors import UserError, reason
from dietcl.models.presets import ALIASES, Pool
from dietcl.streams.options import MEAN, STD, Interpolation

# isort: split
import timm
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import PretrainedCfg, get_pretrained_cfg, group_parameters
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

_FILES = ("model.safetensors", "pytorch_model.bin")  # of weights on the Hugging Face hub


def check_timm_name(name: str) -> None:
    """Raise with the nearest names if timm knows no such model or no such tag of it."""
    name = ALIASES.get(name, name)
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists the names"
        raise UserError(f"timm has no model named {name!r}: {hint}")
    try:
        get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = ", ".join(timm.list_models(f"{name.split('.')[0]}.*", pretrained=True)) or "none"
        raise UserError(f"timm knows no weights {name!r}; of this model it knows {tags}") from error


@dataclass(frozen=True)
class Published:
    """What timm says of an image model: its features, and the images and pooling that it was published with."""

    width: int
    image_size: int
    crop_ratio: float
    interpolation: Interpolation


def published_facts(name: str) -> PretrainedCfg:
    """Return what timm knows of a model's published weights, or its defaults if there are none."""
    return get_pretrained_cfg(ALIASES.get(name, name)) or PretrainedCfg()


def build_model(name: str, image_size: int) -> nn.Module:
    """Build an image model of timm without its classifier, for images of this size."""
    return _create(name, image_size)


def has_tokens(model: nn.Module) -> bool:
    """Return whether a model is a vision transformer with a norm, whose patch tokens can be told apart from others."""
    if type(model) not in (VisionTransformer, Eva):
        return False
    if isinstance(model.norm, nn.Identity) and isinstance(model.fc_norm, nn.Identity):
        return False
    embedding = model.patch_embed
    return type(embedding) is PatchEmbed and len(set(embedding.patch_size)) == len(set(embedding.grid_size)) == 1


def check_pool(model: nn.Module, name: str, pool: Pool) -> None:
    """Refuse a pooling that a model without tokens does not have; it pools by itself, mostly by the mean."""
    own = str(getattr(model, "global_pool", None) or getattr(getattr(model, "head", None), "global_pool", ""))
    if pool != "auto" and not (pool == "mean" and ("avg" in own or own == "fast")):
        raise UserError(f"--pool {pool}: {name} has no tokens to pool; leave it out, or give auto")


def layers_of(model: Any) -> dict[str, int]:
    """Return the layer of every parameter, as timm groups them for rate decay: 0 is the stem; all 0 if it does not."""
    names = [name for name, _ in model.named_parameters()]
    if not hasattr(model, "group_matcher"):
        return dict.fromkeys(names, 0)
    found: dict[str, int] = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    return {name: found.get(name, 0) for name in names}


@cache
def count_features(name: str, image_size: int) -> int:
    """Return the number of pooled features of a model; refuses a size that it does not take, or one without pooling."""
    with torch.device("meta"):
        model: nn.Module = _create(name, image_size).eval()
        if image_size < (least := _total_stride(model)):
            own = published_facts(name).input_size[-1]
            raise UserError(f"--image-size {image_size}: {name} reduces images by {least}; give more, its own is {own}")
        try:
            features: Any = model(torch.empty(1, 3, image_size, image_size))
        except (RuntimeError, AssertionError, ValueError) as error:
            raise _wrong_size(name, image_size, error) from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"{name} yields no pooled features, so it cannot be used as an encoder")
    return int(features.shape[1])


def _total_stride(model: Any) -> int:
    """Return by how much a model reduces the sides of an image, as far as it says."""
    stages = getattr(model, "feature_info", None) or []
    return max((stage.get("reduction", 1) for stage in stages if isinstance(stage, dict)), default=1)


def classifier_names(name: str) -> tuple[str, ...]:
    """Return the layers of a model that tell the classes apart which it was published for."""
    found = published_facts(name).classifier or ()
    return (found,) if isinstance(found, str) else tuple(found)


@cache
def published(name: str) -> Published:
    """Return what timm says of an image model."""
    check_timm_name(name)
    facts = published_facts(name)
    size, interpolation = facts.input_size[-1], facts.interpolation
    own: Interpolation = "bilinear" if interpolation == "bilinear" else "bicubic"
    return Published(count_features(name, size), size, facts.crop_pct, own)


def pixel_statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation by channel of the pixels, from 0 to 1, that the published weights were trained on."""
    facts = get_pretrained_cfg(ALIASES.get(name, name))
    return ((MEAN,) * 3, (STD,) * 3) if facts is None else (facts.mean, facts.std)


def _create(name: str, image_size: int, **options: Any) -> nn.Module:
    """Build a model without a classifier; one that is made for one size of images is told the size."""
    check_timm_name(name)
    try:
        model: nn.Module = timm.create_model(
            ALIASES.get(name, name), num_classes=0, **_size_options(name, image_size), **options
        )
    except (RuntimeError, AssertionError, ValueError, ZeroDivisionError) as error:
        raise _wrong_size(name, image_size, error) from None
    return model


def _size_options(name: str, image_size: int) -> dict[str, Any]:
    kind = _kind(name)
    if kind is VisionTransformer or kind is Eva:
        return {"img_size": image_size, "dynamic_img_size": False}
    return {"img_size": image_size} if hasattr(kind, "set_input_size") else {}


@cache
def _kind(name: str) -> type[nn.Module]:
    """Return the class of a model."""
    # On the meta device a model of any size is built quickly and without memory.
    with torch.device("meta"):
        return type(timm.create_model(ALIASES.get(name, name)))


def _wrong_size(name: str, image_size: int, error: Exception) -> UserError:
    own = published_facts(name).input_size[-1]
    if image_size == own:
        return UserError(f"{name} cannot be used as an encoder ({reason(error)}); `dietcl encoders` lists others")
    return UserError(f"--image-size {image_size}: {name} does not take it ({reason(error)}); its own is {own}")


def resample_positions(table_1ND: Tensor, grid: int, prefix: int) -> Tensor:
    """Return a position table for a grid of another size; the first `prefix` tokens have no place in the grid."""
    resampled: Tensor = resample_abs_pos_embed(table_1ND.float(), [grid, grid], num_prefix_tokens=prefix)
    return resampled


def fetch_weights(name: str) -> None:
    """Download the published weights of a timm name unless the cache of downloads has them."""
    check_timm_name(name)
    if cached_file(name) is None:
        download_weights(name)


def cached_file(name: str) -> Path | None:
    """Return the file of a timm name's weights in the cache of downloads; one that was broken off is none."""
    facts = published_facts(name)
    files = (facts.hf_hub_filename,) if facts.hf_hub_filename else _FILES
    found = (try_to_load_from_cache(facts.hf_hub_id, file) for file in files if facts.hf_hub_id)
    return next((Path(file) for file in found if isinstance(file, str)), None)


def download_weights(name: str, image_size: int | None = None) -> dict[str, Tensor]:
    """Return the published weights of a timm name, from the cache of downloads or from the network.

    For an image size, timm resamples what depends on it; without one, position tables are as published.
    """
    check_timm_name(name)
    options = {} if image_size is None else {"num_classes": 0, **_size_options(name, image_size)}
    try:
        # timm draws initial weights, soon overwritten, from the global generator.
        with torch.random.fork_rng(devices=[]), _no_retries():
            return dict(timm.create_model(name, pretrained=True, **options).state_dict())
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
