"""The encoders at hand and those that timm could fetch; their facts are found on the meta device, without weights."""

import difflib
import re
import warnings
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Literal

import huggingface_hub.constants as hub
import torch

from dietcl.errors import UserError
from dietcl.models.checkpoints import shipped
from dietcl.models.encoder import Encoder, build_encoder
from dietcl.models.flops import count_flops
from dietcl.models.presets import ABILITIES, MODELS, OWN_PATCHES, SHIPPED, Ability, ModelConfig
from dietcl.models.timm_models import cached_file, published, published_facts

# isort: split
import timm

Where = Literal["shipped", "package", "missing", "cached", "fetched when used"]
# The weights of nano were learned from photos of ImageNet; those of micro from drawn characters.
_LICENCES = {"micro": "apache-2.0", "nano": "ImageNet's terms", "lite": "apache-2.0"}
_NEAREST = 3


@dataclass(frozen=True)
class Place:
    """Where the weights of an encoder are; a file that is not at hand is None."""

    name: str
    where: Where
    file: Path | None = None


@dataclass(frozen=True)
class EncoderFacts:
    """What is known of an encoder without its weights; FLOPs are of one image forward at the given size."""

    name: str
    where: Where
    parameters: int
    weights_bytes: int | None
    image_size: int
    flops: int
    pool: str
    features: int
    can_do: tuple[Ability, ...]
    licence: str


def at_hand() -> list[Place]:
    """Return the encoders that need no network: ours, and those of timm whose weights were downloaded before."""
    cached = [Place(name, "cached", file) for name, file in cached_weights().items()]
    return [*map(_shipped_place, SHIPPED), *cached]


def matching(pattern: str) -> list[Place]:
    """Return the encoders that a pattern such as `vit_small*` names, at hand or not; raises if there are none."""
    own = [_shipped_place(name) for name in SHIPPED if fnmatch(name, pattern)]
    names = timm.list_pretrained(pattern)
    if not own and not names:
        raise UserError(f"{pattern}: no encoder has such a name; {_hint(pattern)}")
    files = cached_weights(pattern)
    return [*own, *(_timm_place(name, files.get(name)) for name in names)]


def cached_weights(pattern: str = "*") -> dict[str, Path]:
    """Return the files of the timm names whose weights are in the Hugging Face cache."""
    found = ((name, cached_file(name)) for name in timm.list_pretrained(pattern))
    return {name: file for name, file in found if file is not None}


def download_folder() -> Path:
    """Return the Hugging Face cache, where fetched weights are kept."""
    return Path(hub.HF_HUB_CACHE)


def facts_of(place: Place) -> EncoderFacts:
    """Build an encoder without memory, and tell its facts; raises if it cannot be used."""
    config = _config(place.name)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # some models of timm warn of what does not matter without weights
        encoder = build_encoder(config).requires_grad_(False)
        images_BCHW = torch.empty(1, 3, config.image_size, config.image_size)
        flops = count_flops(partial(encoder, images_BCHW, output="features"), backward=False)
    return EncoderFacts(
        name=place.name,
        where=place.where,
        parameters=sum(parameter.numel() for parameter in encoder.parameters()),
        weights_bytes=None if place.file is None else place.file.stat().st_size,
        image_size=config.image_size,
        flops=flops,
        pool=_pool(encoder, config),
        features=encoder.dim,
        can_do=tuple(ability for ability in ABILITIES if ability in encoder.abilities),
        licence=_licence(place.name),
    )


def _shipped_place(name: str) -> Place:
    where: Where = "shipped" if name in OWN_PATCHES else "package"
    try:
        file = shipped(name)
    except UserError:  # the package is not installed
        return Place(name, "missing")
    return Place(name, where, file) if file.is_file() else Place(name, "missing")


def _timm_place(name: str, file: Path | None) -> Place:
    return Place(name, "fetched when used" if file is None else "cached", file)


def _config(name: str) -> ModelConfig:
    if name in SHIPPED:
        return MODELS[name]
    return replace(MODELS["lite"], encoder=name, image_size=published(name).image_size)


def _pool(encoder: Encoder, config: ModelConfig) -> str:
    """Return how an encoder pools unless it is told otherwise, in the words of --pool where they fit."""
    if config.pool != "auto":
        return config.pool
    model = encoder.model
    own = getattr(model, "global_pool", None) or getattr(getattr(model, "head", None), "global_pool", None)
    kind = str(getattr(own, "pool_type", own) or "own")
    return "mean" if kind in ("avg", "fast") else kind


def _licence(name: str) -> str:
    return _LICENCES.get(name) or published_facts(name).license or "unknown"


def _hint(pattern: str) -> str:
    """Suggest the nearest names, or patterns with the nearest words."""
    wanted, names = pattern.strip("*?"), [*SHIPPED, *timm.list_models(pretrained=True, include_tags=False)]
    near = difflib.get_close_matches(wanted, names, n=_NEAREST)
    words = sorted({word for name in names for word in re.split(r"[._]", name)})
    near = near or [f"'*{word}*'" for word in difflib.get_close_matches(wanted, words, n=_NEAREST)]
    return f"did you mean {' or '.join(near)}?" if near else "give a part of one between stars, such as '*dinov3*'"
