"""Every method learns with every family of encoders, or is refused in a sentence that names methods that fit."""

from dataclasses import replace

import pytest

from dietcl.errors import UserError
from dietcl.methods import METHODS, every_method, needed_abilities
from dietcl.streams.index import open_manifest
from dietcl.streams.stream import build_stream
from helpers.encoders import FAMILIES, POOLED_FAMILIES, encoder_of, run_config, write_large_blobs
from helpers.recording import run_through
from helpers.tiny import tiny_learner

# What cannot be done with encoders that have no patches, and with one whose positions differ from block to block.
MASKING = {"dietcl", "two_stage", "joint"}
UNFIT = {
    **dict.fromkeys(POOLED_FAMILIES, MASKING | {"l2p", "dualnet"}),
    "tiny_eva_mixed": MASKING | {"l2p"},
}
# Budgets that buy updates of every kind.
BUDGETS = {"ccic": "5", "cassle": "4", "dualnet": "4", "fixmatch": "2", "l2p": "2", "lwf": "2"}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_large_blobs(tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def opened(manifest):
    index = open_manifest(manifest)
    config = run_config(manifest, "tiny_vit", "er")
    return build_stream(config.stream, index, config.recipe, config.seed), index


def attempt(manifest, opened, encoder, method, **options):
    """Learn two time steps; returns the learner, or the sentence that refused it."""
    config = run_config(manifest, encoder, method, BUDGETS.get(method, "1"), **options)
    config = replace(config, evaluation=replace(config.evaluation, test_images=2))
    try:
        learner = tiny_learner(config, *opened)
    except UserError as refusal:
        return str(refusal)
    return run_through(learner)


def learns(learner):
    assert learner.ledger.closed[-1].t == 2  # joint learns all of it in the last time step
    assert all(receipt.passes > 0 for receipt in learner.ledger.closed)
    assert learner.net.classes == 4
    assert all(bool(value.isfinite().all()) for value in learner.network.state_dict().values())
    return True


@pytest.mark.parametrize("encoder", FAMILIES)
def test_every_method_learns_or_is_refused_with_names_that_fit(manifest, opened, encoder):
    unfit, fit = UNFIT.get(encoder, set()), [name for name in METHODS if name not in UNFIT.get(encoder, set())]
    assert unfit == {name for name in METHODS if needed_abilities(name) - encoder_of(encoder).abilities}
    for method in METHODS:
        found = attempt(manifest, opened, encoder, method)
        if method in unfit:
            assert isinstance(found, str), method
            assert found.startswith(f"--method {method}: needs an encoder with ")
            assert found.endswith(f", which {encoder} does not have; methods that fit are {', '.join(fit)}")
        else:
            assert not isinstance(found, str), found
            assert learns(found), method


@pytest.mark.parametrize(("encoder", "train"), [("tiny_vit", "lora"), ("tiny_swin", "lora"), ("tiny_resnet", "last-1")])
def test_every_method_learns_with_a_part_of_the_encoder(manifest, opened, encoder, train):
    for method in METHODS:
        if method not in UNFIT.get(encoder, set()):
            found = attempt(manifest, opened, encoder, method, train=train)
            assert not isinstance(found, str), found
            assert learns(found), method


def test_variants_are_refused_by_what_they_need():
    pooled = encoder_of("tiny_resnet").abilities
    refused = {name for name in every_method() if needed_abilities(name) - pooled}
    assert refused >= {"dietcl:release", "dietcl:labeled", "er:dietcl_flops"}
    assert not refused & {"er:uniform", "linear_probe:sgd", "ranpac:frozen"}


def test_a_method_without_its_reconstructions_needs_no_patches(manifest, opened):
    for method, options in (("dietcl", {"unlabeled": 0.0}), ("two_stage", {"pretrain": 0.0})):
        assert learns(attempt(manifest, opened, "tiny_resnet", method, **options))
    refused = attempt(manifest, opened, "tiny_resnet", "er", dietcl_flops=True)
    assert refused.startswith("--method er: needs an encoder with patch tokens that can be masked, which tiny_resnet")
