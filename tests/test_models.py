import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl import rng
from dietcl.errors import UserError
from dietcl.models import timm_models
from dietcl.models.decoder import (
    hide,
    mask_of,
    normalized_targets,
    paint,
    patchify,
    reconstruction_loss,
    unpatchify,
)
from dietcl.models.encoder import build_encoder, position_table
from dietcl.models.head import GrowingHead
from dietcl.models.network import Network, build_network, random_keep
from dietcl.models.presets import MODELS, ModelConfig
from dietcl.models.small_vit import Block, SmallViT


def generator(seed: int = 0) -> torch.Generator:
    return rng.torch_generator("cpu", seed, "test")


@pytest.fixture(scope="module")
def micro() -> Network:
    return build_network(MODELS["micro"], seed=0)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=generator())


def test_presets_import_no_torch():
    code = "import sys, dietcl.models.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "change", [{"decoder_dim": 66}, {"decoder_dim": 64, "decoder_heads": 3}, {"mask_ratio": 1.0}, {"image_size": 0}]
)
def test_impossible_shapes_are_refused(change):
    fields = {"encoder": "micro", "image_size": 32, "decoder_dim": 64, "decoder_depth": 1, "decoder_heads": 2}
    with pytest.raises(UserError):
        ModelConfig(**(fields | change))


# Encoder


def encoder_of(name, size):
    return build_encoder(replace(MODELS["micro"], encoder=name, image_size=size))


def test_micro_is_small(micro):
    micro_with_head = sum(p.numel() for p in micro.parameters()) + 1000 * (micro.encoder.dim + 1)
    assert micro_with_head <= 1_500_000


@pytest.mark.parametrize("size", [28, 32])
def test_micro_takes_28_to_32_pixels(size):
    encoder = encoder_of("micro", size)
    assert (encoder.dim, encoder.depth, encoder.patch, encoder.grid) == (96, 4, 4, size // 4)
    assert encoder(torch.zeros(2, 3, size, size)).shape == (2, encoder.num_patches + 1, 96)


def timm_micro(**options):
    """The network of timm that `micro` must equal weight by weight."""
    shape = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 3}
    return timm_models.VisionTransformer(**shape, num_classes=0, global_pool="", **options)


def test_tokens_are_those_of_timm(micro, images):
    twin = timm_micro()
    twin.load_state_dict(micro.encoder.vit.state_dict())
    assert torch.equal(micro.encoder(images), twin.forward_features(images))


def test_our_blocks_are_those_of_timm():
    from timm.models.vision_transformer import Block as TimmBlock  # after dietcl has mended its import

    ours, theirs = Block(96, 3), TimmBlock(96, 3, qkv_bias=True)
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.rand(2, 5, 96)
    assert torch.equal(ours(tokens), theirs(tokens))


def test_a_seed_draws_as_often_as_with_timm():
    draws = []
    for make in (timm_micro, lambda: SmallViT(image_size=32, patch=4, dim=96, depth=4, heads=3)):
        with rng.seeded(7):
            make()
            draws.append(torch.rand(3))
    assert torch.equal(*draws)


def test_position_tables_without_the_class_token(images):
    with torch.device("meta"):
        assert encoder_of("deit3_small_patch16_224", 224).vit.pos_embed.shape == (1, 196, 384)
    encoder = encoder_of("micro", 32)
    encoder.vit.no_embed_class = True
    encoder.vit.pos_embed = torch.nn.Parameter(encoder.vit.pos_embed[:, 1:])
    twin = timm_micro(no_embed_class=True)
    twin.load_state_dict(encoder.vit.state_dict())
    assert torch.equal(encoder(images), twin.forward_features(images))


def test_keeping_all_patches_in_order_is_the_plain_forward(micro, images):
    everything = torch.arange(64).expand(3, -1)
    assert torch.equal(micro.encoder(images, everything), micro.encoder(images))


def test_only_kept_patches_reach_the_blocks(micro, images):
    keep = random_keep(3, 64, 16, generator())
    changed = images + 100 * unpatchify(mask_of(keep, 64).unsqueeze(-1).expand(-1, -1, 48).float(), 4)
    seen = []
    handle = micro.encoder.vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    tokens = micro.encoder(images, keep)
    assert torch.equal(tokens, micro.encoder(changed, keep))
    handle.remove()
    assert seen[0] == (3, 17, 96)


def test_token_order_follows_the_kept_patches(micro, images):
    keep = random_keep(3, 64, 16, generator())
    backwards = micro.encoder(images, keep.flip(1))
    torch.testing.assert_close(backwards[:, 1:].flip(1), micro.encoder(images, keep)[:, 1:])


def test_prompts_stand_between_class_token_and_patches(micro, images):
    prompts = torch.randn(3, 5, 96, generator=generator())
    seen = []
    handle = micro.encoder.vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    tokens = micro.encoder(images, prompts_BPD=prompts)
    micro.encoder(images)
    handle.remove()
    with_prompts, plain = seen
    assert torch.equal(with_prompts[:, 1:6], prompts)
    assert torch.equal(torch.cat([with_prompts[:, :1], with_prompts[:, 6:]], 1), plain)
    torch.testing.assert_close(micro.prompted(images, prompts), tokens[:, 1:6].mean(1))


def test_features_are_the_mean_patch_token(micro, images):
    tokens = micro.encoder(images)
    torch.testing.assert_close(micro.features(images), tokens[:, 1:].mean(1))


def test_position_table_by_hand():
    table = position_table(8, 2)[0]
    assert table.shape == (5, 8)
    assert torch.equal(table[0], torch.zeros(8))
    sin, cos = torch.tensor([1.0, 0.01]).sin(), torch.tensor([1.0, 0.01]).cos()
    zero, one = torch.zeros(2), torch.ones(2)
    torch.testing.assert_close(table[2], torch.cat([sin, cos, zero, one]))  # row 0, column 1: column first
    torch.testing.assert_close(table[3], torch.cat([zero, one, sin, cos]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_tiny_patch16_22", "did you mean vit_tiny_patch16_224"),
        ("vit_tiny_patch16_224.nonsense", "vit_tiny_patch16_224.augreg_in21k"),
    ],
)
def test_unknown_encoders_are_refused_by_name(name, message):
    with pytest.raises(UserError, match=message):
        encoder_of(name, 224)


def test_image_size_must_fit_the_patches():
    with pytest.raises(UserError, match="choose 28 or 32"):
        encoder_of("micro", 30)


# Masked autoencoder


def test_patches_of_a_hand_written_image():
    image = torch.arange(2 * 4 * 4).reshape(1, 2, 4, 4)
    patches = patchify(image, 2)
    assert patches.shape == (1, 4, 8)
    assert patches[0, 1].tolist() == [2, 18, 3, 19, 6, 22, 7, 23]  # upper right; row, column, channel
    assert torch.equal(unpatchify(patches, 2), image)


def test_zero_prediction_costs_767_of_768():
    targets = normalized_targets(torch.randn(2, 196, 768, generator=generator(), dtype=torch.float64))
    mask = mask_of(random_keep(2, 196, 49, generator()), 196)
    loss = reconstruction_loss(torch.zeros_like(targets), targets, mask)
    torch.testing.assert_close(loss, torch.full((2,), 767 / 768), rtol=0, atol=1e-5)


def test_constant_patches_have_target_zero():
    assert torch.equal(normalized_targets(torch.full((1, 2, 768), 0.25)), torch.zeros(1, 2, 768))


def test_loss_by_hand():
    predictions = torch.tensor([[[1.0, 3.0], [9.0, 9.0], [0.0, 2.0]]])
    loss = reconstruction_loss(predictions, torch.zeros(1, 3, 2), torch.tensor([[True, False, True]]))
    assert loss.tolist() == [(5.0 + 2.0) / 2]


def test_loss_ignores_visible_patches():
    mask = mask_of(random_keep(2, 16, 4, generator()), 16)
    predictions, targets = torch.randn(2, 2, 16, 12, generator=generator())
    predictions.requires_grad_()
    loss = reconstruction_loss(predictions, targets, mask)
    disturbed = predictions + 1000 * (~mask).unsqueeze(-1)
    assert torch.equal(loss, reconstruction_loss(disturbed, targets, mask))
    loss.sum().backward()
    assert torch.equal(predictions.grad.abs().sum(-1) > 0, mask)


@given(st.integers(1, 5), st.integers(2, 40), st.data())
@settings(max_examples=30, deadline=None)
def test_mask_is_the_complement_of_what_is_kept(batch, patches, data):
    keep = data.draw(st.integers(1, patches - 1))
    kept = random_keep(batch, patches, keep, generator())
    mask = mask_of(kept, patches)
    assert mask.sum(1).tolist() == [patches - keep] * batch
    for row, hidden in zip(kept.tolist(), mask.tolist(), strict=True):
        assert sorted(row) == [patch for patch in range(patches) if not hidden[patch]]


@pytest.mark.parametrize("name", ["tiny", "small", "base", "large"])
def test_published_sizes_keep_49_of_196(name):
    network = build_network(MODELS[name], seed=0, device="meta")
    assert (network.kept_patches, network.encoder.num_patches) == (49, 196)
    pixels = torch.empty(1, 3, 224, 224, device="meta")
    loss, predictions, mask = network.reconstruct(pixels, generator())
    assert (loss.shape, predictions.shape, mask.shape) == ((1,), (1, 196, 768), (1, 196))
    network.head.grow(3, generator())
    assert network.logits_of(network.features(pixels)).shape == (1, 3)


def test_decoder_restores_every_token_to_its_place(micro, images):
    keep = random_keep(3, 64, 16, generator())
    tokens = micro.encoder(images, keep)
    decoder, seen = micro.decoder, []
    handle = decoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    decoder(tokens, keep)
    handle.remove()
    placed = seen[0] - decoder.pos_embed
    embedded = decoder.embed(tokens)
    torch.testing.assert_close(placed[:, 0], embedded[:, 0])
    for image in range(3):
        for patch in range(64):
            at = (keep[image] == patch).nonzero().flatten().tolist()
            expected = embedded[image, 1 + at[0]] if at else decoder.mask_token[0, 0]
            torch.testing.assert_close(placed[image, 1 + patch], expected)


def test_reconstruction_is_its_parts(micro, images):
    loss, predictions, mask = micro.reconstruct(images, generator(5))
    keep = random_keep(3, 64, 16, generator(5))
    assert torch.equal(mask, mask_of(keep, 64))
    assert torch.equal(predictions, micro.decoder(micro.encoder(images, keep), keep))
    squares = (predictions - normalized_targets(patchify(images, 4))) ** 2
    torch.testing.assert_close(loss, torch.stack([s[m].mean() for s, m in zip(squares, mask, strict=True)]))


def test_perfect_predictions_paint_the_original_whatever_pixels_the_encoder_was_shown():
    network = build_network(replace(MODELS["tiny"], image_size=32), 0)
    network.pixel_scale, network.pixel_shift = torch.tensor([2.0, 1.0, 0.5])[:, None, None], torch.full((3, 1, 1), 0.3)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 4 - 2
    perfect = normalized_targets(patchify(network._as_pretrained(images), 16))
    painted = network.paint(images, perfect, torch.ones(2, 4, dtype=torch.bool))
    torch.testing.assert_close(painted, images, atol=1e-5, rtol=0)


def test_perfect_predictions_paint_the_original(images):
    mask = mask_of(random_keep(3, 64, 16, generator()), 64)
    perfect = normalized_targets(patchify(images, 4))
    torch.testing.assert_close(paint(images, perfect, mask, 4), images)
    visible = patchify(paint(images, torch.zeros_like(perfect), mask, 4), 4)[~mask]
    assert torch.equal(visible, patchify(images, 4)[~mask])
    assert torch.equal(patchify(hide(images, mask, 4), 4).abs().sum(-1) > 0, ~mask)


# Head


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_growing_keeps_old_rows_bit_for_bit(increments):
    head = GrowingHead(16)
    for number, increment in enumerate(increments):
        weight, bias, old = head.weight.detach().clone(), head.bias.detach().clone(), head.classes
        head.grow(old + increment, generator(number))
        assert head.classes == old + increment
        assert torch.equal(head.weight[:old], weight)
        assert torch.equal(head.bias[:old], bias)
        assert head.weight.requires_grad
        assert head.bias.requires_grad
        assert head(torch.zeros(2, 16)).shape == (2, head.classes)


def test_new_rows_are_those_of_a_linear_layer():
    head = GrowingHead(64)
    head.grow(1000, generator())
    for values in (head.weight, head.bias):
        assert values.abs().max() <= 1 / 8
        assert values.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.1)
    features = torch.randn(2, 64, generator=generator())
    torch.testing.assert_close(head(features), features @ head.weight.T + head.bias)


def test_a_head_cannot_shrink():
    head = GrowingHead(4)
    head.grow(3, generator())
    with pytest.raises(ValueError, match="cannot shrink to 2"):
        head.grow(2, generator())


# Initial weights


def test_initial_weights_depend_on_the_seed_alone(micro):
    torch.rand(3)
    before = torch.get_rng_state()
    again = build_network(MODELS["micro"], seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    state = micro.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in again.state_dict().items())
    other = build_network(MODELS["micro"], seed=1)
    assert not torch.equal(other.encoder.vit.blocks[0].attn.qkv.weight, state["encoder.vit.blocks.0.attn.qkv.weight"])


def test_positions_of_the_decoder_are_fixed(micro):
    assert "pos_embed" in dict(micro.decoder.named_buffers())
    assert "pos_embed" not in dict(micro.decoder.named_parameters())


def test_a_few_updates_lower_the_reconstruction_loss(images):
    network = build_network(MODELS["micro"], seed=0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        loss = network.reconstruct(images, generator())[0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
