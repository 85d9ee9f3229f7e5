"""The measured costs equal a closed formula, and the cache changes nothing."""

import dataclasses
import functools
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import dietcl.models.flops as counting
from dietcl.budget.cost import PROMPTED, CostModel
from dietcl.models.flops import cost_model, measure
from dietcl.models.network import build_network
from dietcl.models.presets import ModelConfig

MICRO = ModelConfig(encoder="micro", image_size=28, decoder_dim=64, decoder_depth=2, decoder_heads=2, mask_ratio=0.6)
SMALL = ModelConfig(encoder="vit_small_patch16_224", image_size=160, decoder_dim=256, decoder_depth=4, decoder_heads=8)
BASE = ModelConfig(
    encoder="vit_base_patch16_224.mae", image_size=224, decoder_dim=512, decoder_depth=8, decoder_heads=16
)
LARGE = dataclasses.replace(BASE, encoder="vit_large_patch16_224.mae")
SIZES = pytest.mark.parametrize("config", [MICRO, SMALL, BASE], ids=["micro", "small", "base"])

measured = functools.cache(measure)


def linear_macs(tokens: int, width: int) -> int:
    """Query, key and value, the projection, and the two layers of the perceptron, four times as wide."""
    return tokens * width**2 * (3 + 1 + 4 + 4)


def attention_macs(tokens: int, width: int) -> int:
    """Every token meets every token twice: for its score, and for its value."""
    return 2 * tokens**2 * width


def closed_formula(config: ModelConfig, prompts: int) -> dict[str, int]:
    """FLOPs of each operation: a multiply-add is two, the gradients of both factors of a product cost as much
    as the product each, and nobody needs the gradient of the image."""
    encoder = build_network(config, seed=0, device="meta").encoder
    width, depth, values = encoder.dim, encoder.depth, 3 * encoder.patch**2
    patches = (config.image_size // encoder.patch) ** 2
    visible = int(patches * (1 - config.mask_ratio))
    embedding = patches * values * width

    def blocks(tokens: int, width: int, depth: int) -> int:
        return depth * (linear_macs(tokens, width) + attention_macs(tokens, width))

    full = blocks(1 + patches, width, depth)
    masked = blocks(1 + visible, width, depth)
    decoder = (
        (1 + visible) * width * config.decoder_dim
        + blocks(1 + patches, config.decoder_dim, config.decoder_depth)
        + patches * config.decoder_dim * values
    )
    prompted = 1 + prompts + patches
    macs = {
        "encoder_forward": embedding + full,
        "encoder_pass": 2 * embedding + 3 * full,
        "masked_forward": embedding + masked,
        "masked_pass": 2 * embedding + 3 * masked,
        "decoder_forward": decoder,
        "decoder_pass": 3 * decoder,
        # Both factors of an attention product are activations, so there frozen weights save nothing.
        "prompt": embedding + depth * (2 * linear_macs(prompted, width) + 3 * attention_macs(prompted, width)),
        "prompt_train": 2 * embedding + 3 * blocks(prompted, width, depth),
        "prompt_forward": embedding + blocks(prompted, width, depth),
    }
    return {name: 2 * count for name, count in macs.items()}


@SIZES
@pytest.mark.parametrize("prompts", [1, 25, 40])
def test_measurement_equals_the_closed_formula(config: ModelConfig, prompts: int) -> None:
    costs = measured(config)
    for operation, flops in closed_formula(config, prompts).items():
        counted = costs.prompted(operation, prompts) if operation in PROMPTED else getattr(costs, operation)
        assert counted == flops, operation


def test_published_figures_of_the_base_size() -> None:
    costs = measured(BASE)
    assert costs.encoder_forward / 2 == pytest.approx(17.56e9, rel=0.005)
    assert costs.encoder_pass == pytest.approx(3 * costs.encoder_forward, rel=0.005)
    assert costs.flops("reconstruct", classes=0) / costs.pass_flops(0) == pytest.approx(0.557, rel=0.01)
    assert costs.masked_pass / costs.pass_flops(0) == pytest.approx(0.251, rel=0.01)
    assert costs.decoder_pass / costs.pass_flops(0) == pytest.approx(0.306, rel=0.01)
    tokens = (197 + 40) / 197
    assert costs.prompted("prompt", 40) / costs.pass_flops(0) == pytest.approx(2 / 3 * tokens, rel=0.04)
    assert costs.head_pass(10_000) / costs.pass_flops(10_000) < 0.0005


@SIZES
def test_operations_are_sums_of_their_parts(config: ModelConfig) -> None:
    costs, classes = measured(config), 100
    head = 2 * costs.features * classes
    assert costs.pass_flops(classes) == costs.encoder_pass + 3 * head
    expected = {
        "train": costs.pass_flops(classes),
        "importance": costs.pass_flops(classes),
        "forward": costs.encoder_forward + head,
        "reconstruct": costs.masked_pass + costs.decoder_pass,
        "reconstruct_forward": costs.masked_forward + costs.decoder_forward,
        "head_train": 2 * head,
        "head_forward": head,
    }
    assert {name: costs.flops(name, classes) for name in expected} == expected  # type: ignore[arg-type]
    assert costs.flops("prompt", classes, prompts=5) == costs.prompted("prompt", 5) + 3 * head
    for wrong in ({"operation": "prompt"}, {"operation": "train", "prompts": 5}, {"operation": "guess"}):
        with pytest.raises(ValueError, match="operation"):
            costs.flops(classes=classes, **wrong)  # type: ignore[arg-type]


def test_head_equals_its_measurement() -> None:
    import torch

    costs = measured(MICRO)
    features_BD = torch.empty(1, costs.features, device="meta", requires_grad=True)
    weight_CD = torch.empty(10, costs.features, device="meta", requires_grad=True)

    def head() -> torch.Tensor:
        return torch.nn.functional.linear(features_BD, weight_CD)

    assert counting.count_flops(head, backward=False) == costs.head_forward(10)
    assert counting.count_flops(head, backward=True) == costs.head_pass(10)
    features_BD.requires_grad_(False)
    assert counting.count_flops(head, backward=True) == costs.head_train(10)


def test_the_cache_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path))
    monkeypatch.setattr(counting, "measure", measured)
    assert cost_model(MICRO) == measured(MICRO)
    (file,) = (tmp_path / "costs").iterdir()

    with monkeypatch.context() as patch:
        patch.setattr(counting, "measure", lambda _: pytest.fail("measured although cached"))
        assert cost_model(MICRO) == measured(MICRO)

    for damage in ("", "{}", "[]", '{"features": 3}', json.dumps({"prompts": 3})):
        file.write_text(damage)
        assert cost_model(MICRO) == measured(MICRO)
    assert cost_model(SMALL) == measured(SMALL)
    assert len(list((tmp_path / "costs").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(counting, "measure", measured)
    assert cost_model(MICRO) == measured(MICRO)


@pytest.mark.long
def test_large_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    costs = measure(LARGE)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < 200_000  # its weights alone would be 1.2 GB
    assert costs.encoder_forward / 2 == pytest.approx(61.55e9, rel=0.005)


def test_prices_are_known_without_torch() -> None:
    code = "import sys, dietcl.budget.ledger; assert not {'torch', 'timm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_costs_are_whole_numbers() -> None:
    fields = dataclasses.asdict(measured(MICRO))
    assert fields.pop("whole") is None
    parts = [part for polynomial in fields.pop("prompts").values() for part in polynomial]
    assert all(type(value) is int for value in [*fields.values(), *parts])
    assert CostModel(**dataclasses.asdict(measured(MICRO))) == measured(MICRO)
