"""Tiny random image models of the families that timm has, registered with timm when this file is imported."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dietcl._compat  # noqa: F401

# isort: split
import torch
from timm.layers import LayerNorm
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._efficientnet_builder import decode_arch_def, round_channels
from timm.models.convnext import ConvNeXt
from timm.models.efficientnet import EfficientNet
from timm.models.eva import Eva
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dietcl.config import RunConfig
from dietcl.engine.distributed import join, leave
from dietcl.execution import Execution
from dietcl.models.encoder import Encoder
from dietcl.models.network import Network, build_network
from dietcl.models.presets import ModelConfig
from dietcl.run import execute
from helpers.tiny import MODEL, tiny_config, write_blobs

SIZE = 32
TOKENS: dict[str, Any] = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2}
ROTARY = {**TOKENS, "use_rot_pos_emb": True, "swiglu_mlp": True, "mlp_ratio": 2}
CHANNELS = {"stem_size": 8, "round_chs_fn": partial(round_channels, multiplier=1.0, round_limit=0.0)}
_EFFICIENT = [["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r2_k3_s2_e2_c16_se0.25"], ["ir_r1_k5_s2_e2_c24"]]
_MOBILE = [["cn_r1_k3_s2_e1_c16"], ["uir_r1_a3_k5_s2_e2_c24", "uir_r1_a0_k3_s1_e2_c24"], ["cn_r1_k1_s1_c32"]]

# Class and options of every model.
_MODELS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "tiny_vit": (VisionTransformer, TOKENS),
    "tiny_dinov2": (VisionTransformer, {**TOKENS, "reg_tokens": 4, "no_embed_class": True, "init_values": 0.3}),
    "tiny_dinov3": (
        Eva,
        {
            **TOKENS,
            "qkv_bias": False,
            "init_values": 0.3,
            "use_rot_pos_emb": True,
            "use_abs_pos_emb": False,
            "rope_type": "dinov3",
            "rope_temperature": 100,
            "rope_rotate_half": True,
            "num_reg_tokens": 4,
            "use_fc_norm": False,
            "norm_layer": partial(LayerNorm, eps=1e-5),
        },
    ),
    "tiny_eva02": (Eva, {**ROTARY, "qkv_fused": False, "scale_mlp": True, "ref_feat_shape": (4, 4)}),
    "tiny_eva02_fused": (Eva, {**ROTARY, "global_pool": "token"}),  # with a bias of its queries, past their layer
    "tiny_eva_mixed": (
        Eva,
        {**TOKENS, "qkv_bias": False, "use_rot_pos_emb": True, "use_abs_pos_emb": False, "rope_type": "mixed"},
    ),
    "tiny_siglip": (VisionTransformer, {**TOKENS, "class_token": False, "global_pool": "map"}),
    "tiny_convnext": (ConvNeXt, {"depths": (1, 1, 1, 2), "dims": (8, 16, 24, 32), "patch_size": 2}),
    "tiny_resnet": (
        ResNet,
        {"block": [BasicBlock, BasicBlock, Bottleneck, BasicBlock], "layers": (1,) * 4, "channels": (8, 16, 8, 32)},
    ),
    "tiny_efficientnet": (EfficientNet, {**CHANNELS, "num_features": 48}),
    "tiny_mobilenetv4": (MobileNetV3, {**CHANNELS, "num_features": 48, "se_from_exp": False, "head_norm": True}),
    "tiny_swin": (
        SwinTransformer,
        {"img_size": SIZE, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 2)},
    ),
}
_STAGES = {"tiny_efficientnet": _EFFICIENT, "tiny_mobilenetv4": _MOBILE}  # whose builder changes what it is given
FAMILIES = tuple(_MODELS)
TOKEN_FAMILIES = tuple(name for name, (kind, _) in _MODELS.items() if kind in (VisionTransformer, Eva))
MASKED_FAMILIES = tuple(name for name in TOKEN_FAMILIES if name != "tiny_eva_mixed")
POOLED_FAMILIES = tuple(name for name in FAMILIES if name not in TOKEN_FAMILIES)
NORMED_BY_BATCH = ("tiny_resnet", "tiny_efficientnet", "tiny_mobilenetv4")


def _published(number: int, **facts: Any) -> dict[str, Any]:
    """What timm says of a model, with numbers that no other has."""
    mean, std = (0.4 + number / 100, 0.45, 0.5), (0.2, 0.25 + number / 100, 0.3)
    filters = ("bicubic", "bilinear")
    return {
        "input_size": (3, SIZE, SIZE),
        "crop_pct": 0.8 + number / 100,
        "interpolation": filters[number % 2],
        "mean": mean,
        "std": std,
        "num_classes": 10,
        "first_conv": None,
        "classifier": None,
        **facts,
    }


default_cfgs = generate_default_cfgs({name: _published(number) for number, name in enumerate(FAMILIES)})


def _entry(name: str) -> Callable[..., nn.Module]:
    kind, options = _MODELS[name]

    def make(pretrained: bool = False, **more: Any) -> nn.Module:
        own = {"block_args": decode_arch_def(_STAGES[name])} if name in _STAGES else {}
        model: nn.Module = build_model_with_cfg(kind, name, pretrained, **{**options, **own, **more})
        return model

    make.__name__ = make.__qualname__ = name
    return make


for _name in FAMILIES:
    register_model(_entry(_name))


def model_config(name: str, **options: Any) -> ModelConfig:
    """Return the configuration of a tiny network with this encoder, with its own pooling."""
    return replace(MODEL, **{"encoder": name, "image_size": SIZE, "pool": "auto", **options})


def network_of(name: str, **options: Any) -> Network:
    """Return a tiny network whose norms, gains and positions have left their first values, at which errors hide."""
    network = build_network(model_config(name, **options), seed=0)
    with torch.no_grad():
        for number, (key, value) in enumerate(network.encoder.state_dict().items()):
            if not value.is_floating_point() or key.endswith((".down", ".up")):
                continue
            noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
            value.add_(noise.abs() if key.endswith("running_var") else noise, alpha=0.1)
    return network


def encoder_of(name: str, **options: Any) -> Encoder:
    """Return the encoder of that network."""
    return network_of(name, **options).encoder


def images_of(count: int, seed: int = 0, size: int = SIZE) -> torch.Tensor:
    """Return random images."""
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def write_large_blobs(folder: Path) -> Path:
    """Write the blobs at the size that the tiny models take: few, in four classes."""
    return write_blobs(folder, classes=4, per_class=10, test_per_class=2, size=SIZE)


def run_config(manifest: Path, encoder: str, method: str, budget: str = "2", **options: Any) -> RunConfig:
    """Return a short run of two time steps with this encoder; options of the model come first, then the method's."""
    of_model = {name: options.pop(name) for name in ("train", "pool", "lora_rank", "image_size") if name in options}
    config = tiny_config(manifest, method, budget=budget, **options)
    return replace(
        config,
        recipe=replace(config.recipe, time_steps=2, label_rate=0.4),
        model=model_config(encoder, **of_model),
        training=replace(config.training, batch=6, micro_batch=3),
    )


def learn_together(manifest: str, encoder: str, method: str, folder: str) -> None:
    """Carry out a run in one of several processes."""
    world = join("cpu")
    execute(run_config(Path(manifest), encoder, method), Path(folder), Execution(device="cpu"), world=world)
    leave(world)
