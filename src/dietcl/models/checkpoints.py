"""Weights in and out: our own files and the layouts that others publish."""

import argparse
import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dietcl.errors import UserError, reason
from dietcl.files import write_bytes
from dietcl.models.encoder import TokenEncoder
from dietcl.models.lite import LITE_FILE, lite_weights, read_lite
from dietcl.models.lora import adapter_names
from dietcl.models.network import Network

State = dict[str, Tensor]
_SUFFIXES = {".safetensors", ".pth", ".pt", ".bin"}
_POSITIONS = ("encoder.vit.pos_embed", "decoder.pos_embed")
# Marks what has no place in our network: a classifier of other classes and what is between it and the norm.
_FOREIGN = "foreign."


@dataclass(frozen=True)
class Loaded:
    """The format of a file, and what of it went into the network."""

    format: str
    parts: tuple[str, ...]
    interpolated: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.format}: loaded {', '.join(self.parts)}"
        if self.interpolated:
            text += f"; interpolated {', '.join(self.interpolated)}"
        return text + (f"; ignored {', '.join(self.ignored)}" if self.ignored else "")


def load_weights(network: Network, source: Path | str) -> Loaded:
    """Load a file or the pretrained weights of a timm name; its head is left out, because it has other classes."""
    found = _read(source, network)
    layouts = _LAYOUTS if isinstance(network.encoder, TokenEncoder) else _LAYOUTS[:1]
    layout = next((layout for layout in layouts if re.search(layout[1], "\n".join(found), re.MULTILINE)), None)
    if layout is not None:
        name, _, rename = layout
        state = rename(found)
    elif network.encoder.model.state_dict().keys() & found.keys():
        name, state = "timm", _from_timm_model(found, network)
    else:
        known = "none of the known layouts (dietcl, facebookresearch/mae, HuggingFace vit-mae, timm)"
        raise UserError(f"{source} holds {known}; it has {_some(list(found)) or 'no tensors'}")
    own = network.state_dict()
    # A norm after pooling belongs to the classifier, unless it is the only norm that the encoder has.
    places = {key: key.replace(_FOREIGN, "encoder.vit.") for key in state if key.startswith(f"{_FOREIGN}fc_norm.")}
    state = {places[key] if places.get(key) in own else key: value for key, value in state.items()}
    unwanted = (_FOREIGN, "head.", "modules/", "method/")  # only a complete model has use for these
    ignored = sorted(key.removeprefix(_FOREIGN) for key in state if key.startswith(unwanted))
    state = {key: value for key, value in state.items() if not key.startswith(unwanted)}
    interpolated = _fit_positions(network, state)
    _check(network, state, source)
    network.load_state_dict(state, strict=False)
    parts = tuple(part for part in ("encoder", "decoder") if any(key.startswith(part) for key in state))
    return Loaded(name, parts, interpolated, tuple(ignored))


def save_weights(network: Network, path: Path, metadata: Mapping[str, str], half: bool = False) -> None:
    """Write all weights as safetensors, in half precision if asked; the file appears complete or not at all."""
    state = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
    # An empty head is not a part that a reader could load.
    state = {key: value.half() if half else value for key, value in state.items() if value.numel()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, save(state, metadata=dict(metadata)))


def shipped(name: str) -> Path:
    """Return where this package, or one that it depends on, keeps the weights of an encoder."""
    return lite_weights() if name == "lite" else Path(__file__).parent / "weights" / f"{name}.safetensors"


def require_weights(weights: str | None) -> None:
    """Raise unless the initial weights of a RunConfig can be read; those of a timm name are downloaded to the cache."""
    if weights is not None and weights != "shipped" and not _is_file(weights):
        from dietcl.models.timm_models import fetch_weights  # timm takes seconds to import

        fetch_weights(weights)


def _is_file(source: Path | str) -> bool:
    """Tell a file from a timm name; raises if it can be neither."""
    path = Path(source)
    if path.is_dir():
        names = (name for name in ("model.safetensors", "weights.safetensors") if (path / name).is_file())
        raise UserError(f"{source} is a folder: give a file of weights, such as {path / next(names, 'FILE')}")
    if not path.is_file() and (isinstance(source, Path) or path.suffix in _SUFFIXES or len(path.parts) > 1):
        raise UserError(f"{source} is not a file: give the path of the weights or a timm name")
    return path.is_file()


def _read(source: Path | str, network: Network) -> State:
    path = Path(source)
    if not _is_file(source):
        from dietcl.models.timm_models import download_weights  # timm takes seconds to import

        # Position tables of transformers are resampled here, where that is told; all else that has a size by timm.
        size = None if isinstance(network.encoder, TokenEncoder) else network.config.image_size
        return download_weights(str(source), size)
    if path.name == LITE_FILE:
        return read_lite(path, network)
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise UserError(f"{path} is not a complete safetensors file: {error}") from error
    return _unpickle(path)


def _unpickle(path: Path) -> State:
    try:
        # Training scripts keep their parsed arguments beside the weights; a Namespace only holds values.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        advice = "save its tensors alone, best as safetensors"
        raise UserError(f"{path} is damaged, or holds objects whose loading could run code: {advice}") from error
    except Exception as error:  # a damaged file of the older format fails in whatever its bytes happen to mean
        raise UserError(f"{path} is not a complete PyTorch file: {reason(error)}") from error
    for name in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__} where a table of weights was expected")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _from_timm(state: State) -> State:
    foreign = ("head.", "fc_norm.")
    return {(_FOREIGN if key.startswith(foreign) else "encoder.vit.") + key: state[key] for key in state}


def _from_timm_model(state: State, network: Network) -> State:
    """Rename the weights of a model without tokens; its classifier is for other classes."""
    from dietcl.models.timm_models import classifier_names  # timm takes seconds to import

    own, part = network.encoder.model.state_dict(), network.encoder.inner
    # With the last layer of a head goes what only it needs, such as a norm.
    classifier = tuple(f"{layer.partition('.')[0]}." for layer in classifier_names(network.config.encoder))
    foreign = {key for key in state if key not in own and key.startswith(classifier)}
    return {(_FOREIGN if key in foreign else f"encoder.{part}.") + key: state[key] for key in state}


def _from_mae(state: State) -> State:
    decoder = {key: value for key, value in state.items() if key.startswith(("decoder_", "mask_token"))}
    renamed = {f"decoder.{key.removeprefix('decoder_')}": value for key, value in decoder.items()}
    return renamed | _from_timm({key: value for key, value in state.items() if key not in decoder})


_HUGGINGFACE_NAMES = (
    (r"^vit\.", ""),
    (r"^(classifier|pooler)\.", rf"{_FOREIGN}\1."),
    (r"^embeddings\.cls_token", "encoder.vit.cls_token"),
    (r"^embeddings\.position_embeddings", "encoder.vit.pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection", "encoder.vit.patch_embed.proj"),
    (r"^encoder\.layer\.", "encoder.vit.blocks."),
    (r"^layernorm\.", "encoder.vit.norm."),
    (r"^decoder\.decoder_layers\.", "decoder.blocks."),
    (r"^decoder\.decoder_", "decoder."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)


def _from_huggingface(state: State) -> State:
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in _HUGGINGFACE_NAMES:
            key = re.sub(pattern, replacement, key)
        renamed[key] = value
    for query in [key for key in renamed if ".attention.attention.query." in key]:
        rows = [renamed.pop(query.replace(".query.", f".{name}."), None) for name in ("query", "key", "value")]
        joined = query.replace(".attention.attention.query.", ".attn.qkv.")
        try:
            renamed[joined] = torch.cat([row for row in rows if row is not None])
        except RuntimeError as error:
            raise UserError(f"{joined}: its query, key and value do not fit together: {reason(error)}") from error
    return renamed


# Name, marker and renaming; the first match counts, because a masked autoencoder's file has timm's names too.
_LAYOUTS: tuple[tuple[str, str, Callable[[State], State]], ...] = (
    ("dietcl", r"^encoder\.(vit|body)\.", dict),
    ("HuggingFace", r"^(vit\.)?embeddings\.patch_emb", _from_huggingface),
    ("facebookresearch/mae", r"^decoder_embed\.", _from_mae),
    ("timm", r"^patch_embed\.proj\.", _from_timm),
)


def _fit_positions(network: Network, state: State) -> tuple[str, ...]:
    """Resample the position tables of another image size; `_check` reports what is not a square table of this width."""
    fitted = []
    for key in _POSITIONS:
        own, table = network.state_dict().get(key), state.get(key)
        if (
            own is None
            or table is None
            or table.shape == own.shape
            or table.dim() != 3
            or table.shape[-1] != own.shape[-1]
        ):
            continue
        prefix = own.shape[1] - network.tokens.num_patches
        patches = table.shape[1] - prefix
        if patches > 0 and math.isqrt(patches) ** 2 == patches:
            from dietcl.models.timm_models import resample_positions  # timm takes seconds to import

            state[key] = resample_positions(table, network.tokens.grid, prefix)
            fitted.append(key)
    return tuple(fitted)


def _check(network: Network, state: State, source: Path | str) -> None:
    """Raise unless every part in the file fills its part of the network exactly."""
    own = network.state_dict()
    # In the network's order, which has the encoder first: a wrong encoder spoils the decoder's shapes too.
    for key, value in own.items():
        if key in state and state[key].shape != value.shape:
            shapes = f"has shape {list(state[key].shape)} where the network has {list(value.shape)}"
            raise UserError(f"{source}: {key} {shapes}: {_advice(key, state)}")
    if extra := [key for key in state if key not in own]:
        raise UserError(f"{source}: the network has no place for {_some(extra)}: {_advice(extra[0], state)}")
    parts, adapters = {key.split(".")[0] for key in state}, adapter_names(network)
    if missing := [key for key in own if key.split(".")[0] in parts and key not in state and key not in adapters]:
        raise UserError(f"{source} lacks {_some(missing)}: {_advice(missing[0], state)}")
    if "encoder" not in parts:
        raise UserError(f"{source} holds no encoder: give a file that has one")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _advice(key: str, state: State) -> str:
    if not key.startswith(("encoder.", "decoder.")):
        return "unknown names"
    if key == "encoder.vit.norm.weight":
        return "it pools before its norm, as some classifiers do; give the pre-trained file instead"
    if key.startswith("encoder.body."):
        return "set encoder to the model that wrote the file"
    prefix = "decoder." if key.startswith("decoder.") else "encoder.vit."
    width = state.get(f"{prefix}norm.weight")
    blocks = {name.split(".blocks.")[1].split(".")[0] for name in state if name.startswith(f"{prefix}blocks.")}
    size = f"width {'unknown' if width is None else len(width)} and {len(blocks)} blocks"
    if prefix == "decoder.":
        return f"set decoder_dim and decoder_depth to those of the file ({size}), or the encoder if patches differ"
    return f"set encoder to the model that wrote the file ({size})"
