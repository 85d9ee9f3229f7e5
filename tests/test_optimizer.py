"""AdamW's groups by depth, what decays and what does not, and the cosine of a phase."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dietcl.config import Training
from dietcl.engine.optimizer import build_optimizer, set_learning_rate
from dietcl.models.network import build_network
from dietcl.models.presets import ModelConfig
from helpers.tiny import MODEL

PAPER = Training()


@pytest.fixture(scope="module")
def network():
    network = build_network(MODEL, seed=0)
    network.head.grow(3, torch.Generator().manual_seed(0))
    return network


@pytest.fixture(scope="module")
def groups(network):
    """Every parameter's group by its name."""
    config = replace(PAPER, head_lr=1e-2)
    optimizer = build_optimizer(network, {"extra": nn.Linear(3, 2)}, config)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return {names.get(id(p), f"extra {p.ndim}"): group for group in optimizer.param_groups for p in group["params"]}


def test_every_parameter_is_in_one_group(network, groups):
    optimizer = build_optimizer(network, {}, PAPER)
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(listed) == len(set(listed)) == len(list(network.parameters()))
    assert {name for name, _ in network.named_parameters()} | {"extra 1", "extra 2"} == groups.keys()


def test_the_rate_falls_with_the_depth(groups):
    scale = {name: group["peak"] / PAPER.lr for name, group in groups.items()}
    depth = 4
    for block in range(depth):
        assert scale[f"encoder.vit.blocks.{block}.attn.qkv.weight"] == pytest.approx(0.65 ** (depth - block))
        assert scale[f"encoder.vit.blocks.{block}.mlp.fc2.bias"] == pytest.approx(0.65 ** (depth - block))
    for name in ("patch_embed.proj.weight", "patch_embed.proj.bias", "cls_token", "pos_embed"):
        assert scale[f"encoder.vit.{name}"] == pytest.approx(0.65 ** (depth + 1))
    assert scale["encoder.vit.norm.weight"] == scale["encoder.vit.norm.bias"] == 1
    assert {scale[name] for name in scale if name.startswith("decoder")} == {1}
    assert {groups[name]["peak"] for name in ("head.weight", "head.bias")} == {1e-2}
    assert {scale[name] for name in ("extra 1", "extra 2")} == {1}


def test_biases_norms_and_tables_do_not_decay(network, groups):
    for name, parameter in network.named_parameters():
        exempt = parameter.ndim <= 1 or name in ("encoder.vit.cls_token", "encoder.vit.pos_embed")
        assert groups[name]["weight_decay"] == (0 if exempt else 0.05), name


def test_it_is_adamw_as_in_the_paper(network):
    optimizer = build_optimizer(network, {}, PAPER)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}


def test_the_paper_scale_of_layer_decay():
    model = ModelConfig(
        encoder="vit_tiny_patch16_224", image_size=224, decoder_dim=16, decoder_depth=1, decoder_heads=2
    )
    network = build_network(model, seed=0, device="meta")
    peaks = {
        id(p): group["peak"] for group in build_optimizer(network, {}, PAPER).param_groups for p in group["params"]
    }
    vit = network.encoder.vit
    assert peaks[id(vit.blocks[11].attn.qkv.weight)] == pytest.approx(4e-4 * 0.65)
    assert peaks[id(vit.patch_embed.proj.weight)] == pytest.approx(4e-4 * 0.0037, rel=1e-2)


@pytest.mark.parametrize(
    ("scale", "fraction", "rate"),
    [
        (1.0, 0.0, 4e-4),
        (1.0, 0.5, 2.25e-4),
        (1.0, 1.0, 5e-5),
        (1.0, 1.5, 5e-5),
        (0.1, 0.0, 4e-5),
        (0.1, 0.5, 3e-5),
        (0.1, 1.0, 2e-5),
    ],
)
def test_hand_values_of_the_cosine(network, scale, fraction, rate):
    optimizer = build_optimizer(network, {}, PAPER)
    assert set_learning_rate(optimizer, PAPER, scale, fraction) == pytest.approx(rate)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(rate * group["peak"] / PAPER.lr)


def test_a_head_without_classes_is_no_obstacle():
    network = build_network(MODEL, seed=0)
    optimizer = build_optimizer(network, {}, PAPER)
    assert all(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])


def test_weights_without_a_gradient_stay_as_they_are(network):
    optimizer = build_optimizer(network, {}, PAPER)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.head.weight.grad = torch.ones_like(network.head.weight)
    optimizer.step()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]) == (name != "head.weight"), name
