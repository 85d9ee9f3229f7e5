"""Low-rank adapters: what they compute and cost by hand, where they sit in every family, and that they merge."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import dietcl
from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.model import save_model
from dietcl.models.checkpoints import load_weights, save_weights
from dietcl.models.flops import count_flops, measure
from dietcl.models.lora import LoRALinear, adapter_names
from dietcl.models.network import build_network
from dietcl.streams.normalize import normalize
from helpers.encoders import TOKEN_FAMILIES, images_of, model_config, network_of, run_config, write_large_blobs
from helpers.recording import equal, hand_over, run_through, weights
from helpers.tiny import tiny_learner

ADAPTED = (*TOKEN_FAMILIES, "tiny_convnext", "tiny_swin")
adapted_families = pytest.mark.parametrize("name", ADAPTED)
RANK = 8


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    return write_large_blobs(tmp_path_factory.mktemp("blobs"))


def with_corrections(name, **options):
    """A network whose adapters have learned something."""
    network = network_of(name, train="lora", **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if key.endswith(".up"):
                parameter.normal_(std=0.1, generator=generator)
    return network


def layer_by_hand():
    linear = nn.Linear(2, 2)
    layer = LoRALinear(linear, rank=1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.bias.copy_(torch.tensor([1.0, -1.0]))
        layer.down.copy_(torch.tensor([[1.0, 1.0]]))
    return linear, layer


def test_a_layer_by_hand():
    linear, layer = layer_by_hand()
    inputs = torch.tensor([[1.0, 2.0]])
    assert layer(inputs).tolist() == linear(inputs).tolist() == [[6.0, 10.0]]
    with torch.no_grad():
        layer.up.copy_(torch.tensor([[2.0], [-5.0]]))
    assert layer(inputs).tolist() == [[6.0 + 2 * 3, 10.0 - 5 * 3]]
    layer(inputs).sum().backward()
    assert layer.up.grad.tolist() == [[3.0], [3.0]]
    assert layer.down.grad.tolist() == [[-3.0, -6.0]]  # (2 - 5) times the inputs


# Where adapters sit


# The layers of each family that attention and MLP have, without the numbers of their blocks.
PLAIN = {"attention": {"attn.qkv", "attn.proj"}, "mlp": {"mlp.fc1", "mlp.fc2"}}
LAYERS = {
    **dict.fromkeys(ADAPTED, PLAIN),
    "tiny_eva02": {
        "attention": {"attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj"},
        "mlp": {"mlp.fc1_g", "mlp.fc1_x", "mlp.fc2"},
    },
    "tiny_eva02_fused": {"attention": {"attn.proj"}, "mlp": {"mlp.fc1", "mlp.fc2"}},
    "tiny_siglip": {
        "attention": {*PLAIN["attention"], "attn_pool.q", "attn_pool.kv", "attn_pool.proj"},
        "mlp": {*PLAIN["mlp"], "attn_pool.mlp.fc1", "attn_pool.mlp.fc2"},
    },
    "tiny_convnext": {"attention": set(), "mlp": {"mlp.fc1", "mlp.fc2"}},
}


def adapted_layers(network):
    return {name.rpartition(".")[0] for name in adapter_names(network.encoder.model)}


@adapted_families
def test_attention_and_mlp_are_adapted_layer_by_layer(name):
    model = network_of(name).encoder.model
    linear = {key for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = {}
    for targets, wanted in LAYERS[name].items():
        expected = {
            key for key in linear if any(key == end or ("blocks." in key and key.endswith(f".{end}")) for end in wanted)
        }
        if not expected:
            with pytest.raises(UserError, match=f"{name} has no linear layers in {targets} to adapt"):
                network_of(name, train="lora", lora_targets=targets)
            found[targets] = set()
            continue
        found[targets] = adapted_layers(network_of(name, train="lora", lora_targets=targets))
        assert found[targets] == expected
    assert adapted_layers(network_of(name, train="lora")) == found["attention"] | found["mlp"]


@adapted_families
def test_adapters_change_nothing_at_first(name):
    full, adapted = (build_network(model_config(name, train=train), seed=3) for train in ("full", "lora"))
    images = images_of(2)
    # The products of attention pooling are rounded otherwise if what they are given lies otherwise in memory.
    tolerance = 1e-6 if name == "tiny_siglip" else 0
    torch.testing.assert_close(adapted.features(images), full.features(images), rtol=0, atol=tolerance)


@adapted_families
def test_every_adapter_and_nothing_else_of_the_encoder_gets_a_gradient(name):
    network = with_corrections(name)
    features = network.features(images_of(2))
    (features * torch.randn(features.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    moving = {key for key, p in network.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert moving == adapter_names(network)
    assert moving
    assert all(p.grad is None for key, p in network.named_parameters() if key not in moving)


@adapted_families
def test_adapters_belong_to_the_layer_that_they_adapt(name):
    layers = network_of(name, train="lora").encoder.layers()
    adapters = [key for key in layers if key.endswith((".down", ".up"))]
    assert adapters
    assert all(layers[key] == layers[f"{key.rpartition('.')[0]}.weight"] > 0 for key in adapters)


@adapted_families
def test_merged_adapters_compute_the_same(name):
    network = with_corrections(name)
    merged = build_network(model_config(name), seed=9)
    state = network.merged_state()
    merged.load_state_dict(state)  # which names nothing but a network's own weights
    images = images_of(3)
    assert not torch.equal(network.features(images), network_of(name).features(images))
    torch.testing.assert_close(merged.features(images), network.features(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_efficientnet", "tiny_mobilenetv4"])
def test_encoders_without_linear_layers_are_refused_in_a_sentence(name):
    said = f"--train lora: {name} has no linear layers in attention or mlp to adapt; choose full, head or last-2"
    with pytest.raises(UserError) as refusal:
        build_network(model_config(name, train="lora"), 0)
    assert str(refusal.value) == said


# Costs


def test_the_cost_of_a_layer_by_hand():
    rows, wide, narrow, rank = 3, 5, 7, 2
    base, down, up = wide * narrow, wide * rank, rank * narrow
    layer = LoRALinear(nn.Linear(wide, narrow, device="meta"), rank)
    layer.weight.requires_grad_(False)
    layer.bias.requires_grad_(False)
    inputs = torch.empty(rows, wide, device="meta")
    assert count_flops(lambda: layer(inputs), backward=False) == 2 * rows * (base + down + up)
    assert count_flops(lambda: layer(inputs), backward=True) == 2 * rows * (base + 2 * down + 3 * up)
    inputs.requires_grad_()
    assert count_flops(lambda: layer(inputs), backward=True) == 2 * rows * (2 * base + 3 * down + 3 * up)


def test_the_cost_of_a_vision_transformer_with_adapters_by_hand():
    tokens, width, depth = 17, 32, 3
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    linear = tokens * sum(wide * narrow for wide, narrow in shapes)
    adapters = tokens * RANK * sum(wide + narrow for wide, narrow in shapes)
    attention, embedding = 2 * tokens**2 * width, 16 * 3 * 8**2 * width
    # Gradients go down to the adapters of the first layer, and not to what these are given.
    first = tokens * width * 3 * width + tokens * RANK * width
    costs, full = measure(model_config("tiny_vit", train="lora")), measure(model_config("tiny_vit"))
    forward = embedding + depth * (linear + adapters + attention)
    backward = depth * (linear + 2 * adapters + 2 * attention) - first
    assert costs.encoder_forward == 2 * forward
    assert costs.encoder_pass == 2 * (forward + backward)
    assert full.whole is None
    assert costs.whole == full


@adapted_families
def test_learning_through_adapters_costs_less_than_a_pass(name):
    costs = measure(model_config(name, train="lora", lora_rank=2))
    assert costs.encoder_forward < costs.encoder_pass < costs.whole.encoder_pass
    assert costs.flops("train", 10) < costs.pass_flops(10)


@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_an_image_costs_less_than_one_under_both_price_lists(blobs, accounting):
    learner = run_through(
        tiny_learner(
            replace(run_config(blobs, "tiny_vit", "er", "4", train="lora", lora_rank=2), accounting=accounting)
        )
    )
    for receipt in learner.ledger.closed:
        items = [item for item in receipt.items if item.operation == "train"]
        images, passes = sum(item.images for item in items), sum(item.passes for item in items)
        share = learner.ledger.cost.flops("train", receipt.classes) / receipt.pass_flops
        assert passes == pytest.approx(images * share)
        assert share < 1
        assert images > 4 * 6  # which is what the budget buys of whole passes


# Learning


def test_learning_changes_adapters_and_head_alone(blobs):
    learner = tiny_learner(run_config(blobs, "tiny_dinov3", "er", train="lora"))
    before = weights(learner)
    run_through(learner)
    after = weights(learner)
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    assert moved == adapter_names(learner.network) | {"head.weight", "head.bias"}


def test_adapters_go_on_from_a_checkpoint(blobs, tmp_path):
    whole, stopped, resumed = (tiny_learner(run_config(blobs, "tiny_eva02", "er", train="lora")) for _ in range(3))
    run_through(whole)
    next(learn(stopped))
    hand_over(stopped, resumed, tmp_path / "checkpoint")
    assert list(learn(resumed)) == [2]
    assert equal(weights(resumed), weights(whole))


@pytest.mark.parametrize("name", ["tiny_dinov2", "tiny_convnext"])
def test_a_saved_model_is_merged_and_answers_as_its_run_did(blobs, tmp_path, name):
    learner = run_through(tiny_learner(run_config(blobs, name, "er", train="lora")))
    save_model(learner, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == {key for key in learner.network.state_dict() if not key.endswith((".down", ".up"))}
    (one, *_) = sorted(adapter_names(learner.network))
    layer = one.rpartition(".")[0]
    state = learner.network.state_dict()
    expected = state[f"{layer}.weight"] + state[f"{layer}.up"] @ state[f"{layer}.down"]
    torch.testing.assert_close(tensors[f"{layer}.weight"], expected)
    assert not torch.equal(tensors[f"{layer}.weight"], state[f"{layer}.weight"])
    model = dietcl.load(tmp_path, device="cpu")
    squares = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    with learner.ledger.free(), torch.no_grad():
        scores = learner.method.predict(learner.net, normalize(squares))
    torch.testing.assert_close(model.scores(squares), scores, rtol=1e-4, atol=1e-5)


@adapted_families
def test_published_weights_go_into_a_network_with_adapters(name, tmp_path):
    full, adapted = network_of(name), build_network(model_config(name, train="lora"), seed=5)
    save_weights(full, tmp_path / "full.safetensors", {})
    loaded = load_weights(adapted, tmp_path / "full.safetensors")
    assert loaded.parts[0] == "encoder"
    images = images_of(2)
    torch.testing.assert_close(adapted.features(images), full.features(images), rtol=0, atol=1e-6)


def test_a_learned_model_may_be_what_adapters_start_from(blobs, tmp_path):
    learner = run_through(tiny_learner(run_config(blobs, "tiny_swin", "er", train="lora")))
    save_model(learner, tmp_path)
    again = build_network(model_config("tiny_swin", train="lora"), seed=5)
    load_weights(again, tmp_path / "model.safetensors")
    images = images_of(2)
    with learner.ledger.free(), torch.no_grad():
        features = learner.net.features(images, "test")
    torch.testing.assert_close(again.features(images), features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", ["lora", "head", "last-1"])
def test_under_images_every_price_shrinks_by_its_own_share_of_flops(train):
    part, full = (measure(model_config("tiny_vit", train=train, lora_rank=2)), measure(model_config("tiny_vit")))
    for operation, price in (("train", 1), ("importance", 1), ("reconstruct", 1), ("forward", 1 / 3)):
        share = part.flops(operation, 10) / full.flops(operation, 10)
        assert part.per_image(operation, 10) == pytest.approx(price * share)
        assert full.per_image(operation, 10) == price
    # A frozen encoder computes the same with prompts, whatever else might learn.
    if train != "lora":
        assert part.per_image("prompt", 10, 3) == 1
        assert part.per_image("forward", 10) == pytest.approx(1 / 3)
    assert part.per_image("head_train", 10) is None


def test_training_all_blocks_costs_next_to_a_pass():
    costs = measure(model_config("tiny_vit", train="last-3"))
    assert 0.9 < costs.per_image("train", 10) < 1
    assert 0.9 < costs.per_image("reconstruct", 10) < 1
