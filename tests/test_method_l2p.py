"""Learning to Prompt against plain prompts, and what is left of the encoder."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods.l2p import L2P, PromptPool
from dietcl.models.flops import cost_model
from helpers.fixed_batch import CURRENT, compare, fixed_batch, fixed_learner
from helpers.recording import equal, hand_over, run_through, updates_of
from helpers.reference_losses import plain_block, plain_cross_entropy, plain_encoder, plain_patches
from helpers.tiny import MODEL, tiny_config, tiny_learner


def plain_prompted(images, prompts, weights):
    """Put the prompts between class token and patches, and average what becomes of them."""
    patches = plain_patches(images).permute(0, 1, 4, 2, 3).flatten(2)
    kernel = weights["encoder.vit.patch_embed.proj.weight"].flatten(1)
    tokens = patches @ kernel.T + weights["encoder.vit.patch_embed.proj.bias"] + weights["encoder.vit.pos_embed"][:, 1:]
    first = (weights["encoder.vit.cls_token"] + weights["encoder.vit.pos_embed"][:, :1]).expand(len(images), -1, -1)
    x = torch.cat([first, prompts, tokens], dim=1)
    for block in range(4):
        x = plain_block(x, weights, f"encoder.vit.blocks.{block}", heads=3)
    x = F.layer_norm(x, (96,), weights["encoder.vit.norm.weight"], weights["encoder.vit.norm.bias"], 1e-6)
    return sum(x[:, 1 + i] for i in range(prompts.shape[1])) / prompts.shape[1]


def plain_choice(images, weights, keys, top, first):
    """Return for each image the numbers of its keys, best first, and all its cosines."""
    choice, cosines = [], []
    for query in plain_encoder(images, first)[:, 0].detach():
        values = [(query * key).sum() / (query.square().sum().sqrt() * key.square().sum().sqrt()) for key in keys]
        choice.append(sorted(range(len(keys)), key=lambda j, v=values: -v[j].item())[:top])
        cosines.append(values)
    return choice, cosines


def plain_l2p(batch, top, frozen=True, first=None):
    """Return functions of the weights for both terms."""
    parts = [part for part in (batch.labeled, batch.memory) if part is not None]
    images = torch.cat([part.images for part in parts])

    def held(weights):
        return {n: w.detach() if frozen and n.startswith("encoder") else w for n, w in weights.items()}

    def replay(weights):
        keys, prompts = weights["module prompts.keys"], weights["module prompts.prompts"]
        choice, _ = plain_choice(images, weights, keys, top, first or weights)
        tokens = torch.stack([torch.cat([prompts[j] for j in chosen]) for chosen in choice])
        features = plain_prompted(images, tokens, held(weights))
        logits = features @ weights["head.weight"].T + weights["head.bias"]
        total, start = 0.0, 0
        for part in parts:
            only = CURRENT if part.pool == "labeled" else None
            total = total + len(part) * plain_cross_entropy(logits[start : start + len(part)], part, only)
            start += len(part)
        return total / start

    def keys(weights):
        choice, cosines = plain_choice(images, weights, weights["module prompts.keys"], top, first or weights)
        return -sum(sum(values[j] for j in chosen) for chosen, values in zip(choice, cosines, strict=True)) / len(
            choice
        )

    return replay, keys


@pytest.mark.parametrize("without", [{}, {"labeled": None}, {"memory": None}])
def test_l2p_equals_the_plain_implementation(blobs, without):
    batch = fixed_batch(unlabeled=None, **without)
    learner = fixed_learner(blobs, "l2p")
    replay, keys = plain_l2p(batch, top=5)
    compare(learner, batch, {"replay": (1.0, replay), "keys": (0.1, keys)}, phase="prompt")
    assert all(p.grad is None for p in learner.network.encoder.parameters())
    assert learner.network.head.weight.grad is not None


def test_with_a_trained_encoder_the_first_one_makes_the_queries(blobs):
    batch = fixed_batch(unlabeled=None)
    learner = fixed_learner(blobs, "l2p", frozen=False, prompts=4, length=2, top=2, strength=0.7)
    learner.method.load_state({name: value.double() for name, value in learner.method.state().items()})
    first = {name: value.clone() for name, value in learner.network.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in learner.network.encoder.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    replay, keys = plain_l2p(batch, top=2, frozen=False, first=first)
    compare(learner, batch, {"replay": (1.0, replay), "keys": (0.7, keys)}, phase="prompt")
    assert all(p.grad is not None for p in learner.network.encoder.parameters())


def test_one_prompt_without_keys_is_plain_prompt_tuning(blobs):
    batch = fixed_batch(unlabeled=None, labeled=None)
    learner = fixed_learner(blobs, "l2p", prompts=1, top=1, strength=0.0)

    def tuning(weights):
        held = {name: value.detach() for name, value in weights.items() if name.startswith("encoder")}
        tokens = weights["module prompts.prompts"].expand(len(batch.memory), -1, -1)
        logits = plain_prompted(batch.memory.images, tokens, held) @ weights["head.weight"].T + weights["head.bias"]
        return plain_cross_entropy(logits, batch.memory)

    compare(learner, batch, {"replay": (1.0, tuning)}, phase="prompt")
    keys = learner.method.modules()["prompts"].keys
    assert keys.grad is None or not keys.grad.any()


def test_the_choice_does_not_depend_on_the_length_of_keys_or_queries():
    pool = PromptPool(6, 2, 3, 8)
    query = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    tokens, likeness = pool(query)
    assert tokens.shape == (20, 6, 8)
    with torch.no_grad():
        pool.keys *= torch.tensor([0.01, 1, 3, 10, 0.5, 100])[:, None]
    again, as_much = pool(7 * query)
    assert torch.equal(again, tokens)
    torch.testing.assert_close(as_much, likeness)


def test_hand_values_of_the_choice():
    pool = PromptPool(3, 1, 2, 2)
    with torch.no_grad():
        pool.keys.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        pool.prompts.copy_(torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 3.0]]]))
    tokens, likeness = pool(torch.tensor([[3.0, 4.0], [-1.0, 0.0]]))
    assert tokens.tolist() == [[[2, 2], [1, 1]], [[3, 3], [2, 2]]]
    assert likeness.item() == pytest.approx(((0.8 + 0.6) + (1 + 0)) / 2)


def test_only_the_current_half_is_masked(blobs):
    learner = fixed_learner(blobs, "l2p")
    for batch, moved in (
        (fixed_batch(unlabeled=None, memory=None), [False, True, False, True, True]),
        (fixed_batch(unlabeled=None, labeled=None), [True] * 5),
    ):
        learner.network.zero_grad()
        term, _ = learner.method.losses(learner.net, learner.method.next_phase(learner.stream.steps[1], (), 1), batch)
        term.value.backward()
        assert (learner.network.head.weight.grad.abs().sum(1) > 0).tolist() == moved


def test_training_leaves_a_frozen_encoder_and_its_queries_as_they_were(blobs):
    learner = tiny_learner(tiny_config(blobs, "l2p", budget="5"))
    images = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in learner.network.encoder.state_dict().items()}
    prompts = learner.method.modules()["prompts"].prompts.detach().clone()
    with learner.ledger.free():
        query = learner.net.query(images, "query")
    run_through(learner)
    with learner.ledger.free():
        assert torch.equal(learner.net.query(images, "query"), query)
    assert equal(dict(learner.network.encoder.state_dict()), before)
    assert not torch.equal(learner.method.modules()["prompts"].prompts, prompts)


def test_a_trained_encoder_changes_but_its_queries_do_not(blobs):
    learner = tiny_learner(tiny_config(blobs, "l2p", budget="5", frozen=False))
    before = {name: value.clone() for name, value in learner.network.encoder.state_dict().items()}
    first = {name: value.clone() for name, value in learner.method.state().items()}
    run_through(learner)
    assert not equal(dict(learner.network.encoder.state_dict()), before)
    assert equal(learner.method.state(), first)
    assert all(torch.equal(first[f"encoder.{name}"], value) for name, value in before.items())


def test_every_test_image_is_predicted_for_itself(blobs):
    learner = fixed_learner(blobs, "l2p")
    images = fixed_batch().memory.images
    with torch.no_grad(), learner.ledger.free():
        together = learner.method.predict(learner.net, images)
        alone = torch.cat([learner.method.predict(learner.net, image[None]) for image in images])
    torch.testing.assert_close(together, alone)


def test_without_replay_only_this_time_steps_labels_are_drawn(blobs):
    step = tiny_learner(tiny_config(blobs)).stream.steps[1]
    with_replay, without = (L2P(L2P.Config(replay=replay)).next_phase(step, (), 9.0).mix for replay in (True, False))
    assert (with_replay.labeled, with_replay.memory, with_replay.past_only) == (1 / 2, 1 / 2, False)
    assert (without.labeled, without.memory) == (1, 0)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("accounting", ["images", "flops"])
def test_receipts_have_a_query_and_a_prompted_pass_for_each_image(blobs, accounting, frozen):
    config = replace(tiny_config(blobs, "l2p", budget="6", frozen=frozen), accounting=accounting)
    learner = tiny_learner(config)
    events = updates_of(learner)
    operation = "prompt" if frozen else "prompt_train"
    cost = cost_model(MODEL)
    for receipt in learner.ledger.closed:
        images = 12 * sum(event["t"] == receipt.t for event in events)
        assert images > 0
        items = {item.purpose: item for item in receipt.items if item.purpose != "evaluation"}
        assert items.keys() == {"query", "pool", "prompt", "head"}
        assert {name: (item.operation, item.images) for name, item in items.items()} == {
            "query": ("forward", images),
            "pool": ("module", images),
            "prompt": (operation, images),
            "head": ("head_train", images),
        }
        flops = {
            "query": cost.flops("forward", receipt.classes),
            # Comparing keys, and choosing prompts, each forward and backward.
            "pool": 2 * (2 * 96 * 10) + 2 * (2 * 5 * 10 * 5 * 96),
            "prompt": cost.flops(operation, receipt.classes, 25),
            "head": 2 * 2 * 96 * receipt.classes,
        }
        passes = {name: value / receipt.pass_flops for name, value in flops.items()}
        if accounting == "images":
            passes |= {"query": 1 / 3, "prompt": 1.0}
        for name, item in items.items():
            assert item.flops == pytest.approx(images * flops[name], rel=0.01)
            assert item.passes == pytest.approx(images * passes[name], rel=0.01)


@pytest.mark.parametrize("frozen", [True, False])
def test_l2p_goes_on_from_a_checkpoint(blobs, tmp_path, frozen):
    config = tiny_config(blobs, "l2p", budget="3", frozen=frozen)
    whole, stopped, resumed = (tiny_learner(config) for _ in range(3))
    run_through(whole)
    for t in learn(stopped):
        if t == 2:
            break
    hand_over(stopped, resumed, tmp_path / "checkpoint")
    for _ in learn(resumed):
        pass
    assert equal(dict(resumed.network.state_dict()), dict(whole.network.state_dict()))
    prompts = (learner.method.modules()["prompts"].state_dict() for learner in (whole, resumed))
    assert equal(*map(dict, prompts))
    assert (resumed.counts.loss_sum == whole.counts.loss_sum).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompts": 0}, "--prompts 0"),
        ({"length": 0}, "--length 0"),
        ({"top": 0}, "--top 0"),
        ({"top": 11}, "--top 11"),
        ({"strength": -0.1}, "--strength -0.1"),
        ({"strength": math.nan}, "--strength nan"),
    ],
)
def test_impossible_options_are_refused(options, named):
    with pytest.raises(UserError, match=named):
        L2P.Config(**options)
