import argparse
import os
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dietcl import rng
from dietcl.errors import UserError
from dietcl.models import checkpoints, timm_models
from dietcl.models.checkpoints import load_weights, require_weights, save_weights, shipped
from dietcl.models.network import Network, build_network
from dietcl.models.presets import ModelConfig

CONFIG = ModelConfig(encoder="micro", image_size=16, decoder_dim=32, decoder_depth=2, decoder_heads=2)
LINEAR = ("weight", "bias")
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def known() -> Network:
    network = build_network(CONFIG, seed=1)
    random = rng.torch_generator("cpu", 1, "test")
    with torch.no_grad():
        for value in network.state_dict().values():
            value.add_(torch.randn(value.shape, generator=random) * 0.05)
    return network


def fresh(**change: object) -> Network:
    fields = {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}
    return build_network(ModelConfig(**(fields | change)), seed=2)


def outputs(network: Network) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(2, 3, 16, 16, generator=rng.torch_generator("cpu", 0, "images"))
    return network.features(images), network.reconstruct(images, rng.torch_generator("cpu", 0, "mask"))[1]


def assert_same(one: Network, other: Network, decoder: bool = True) -> None:
    for mine, yours in list(zip(outputs(one), outputs(other), strict=True))[: 2 if decoder else 1]:
        assert torch.equal(mine, yours)


def mae_state(network: Network) -> State:
    """The layout of facebookresearch/mae, name by name."""
    vit, decoder = network.encoder.vit.state_dict(), network.decoder.state_dict()
    state = {"cls_token": vit["cls_token"], "pos_embed": vit["pos_embed"]}
    state |= {"mask_token": decoder["mask_token"], "decoder_pos_embed": decoder["pos_embed"]}
    inner = [
        f"{layer}.{kind}"
        for layer in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for kind in LINEAR
    ]
    for kind in LINEAR:
        state |= {f"{name}.{kind}": vit[f"{name}.{kind}"] for name in ("patch_embed.proj", "norm")}
        state |= {f"decoder_{name}.{kind}": decoder[f"{name}.{kind}"] for name in ("embed", "norm", "pred")}
    for name in inner:
        state |= {f"blocks.{i}.{name}": vit[f"blocks.{i}.{name}"] for i in range(network.encoder.depth)}
        state |= {
            f"decoder_blocks.{i}.{name}": decoder[f"blocks.{i}.{name}"] for i in range(len(network.decoder.blocks))
        }
    return state


def huggingface_state(network: Network) -> State:
    """The layout of HuggingFace's vit-mae, name by name."""
    vit, decoder = network.encoder.vit.state_dict(), network.decoder.state_dict()
    state = {
        "vit.embeddings.cls_token": vit["cls_token"],
        "vit.embeddings.position_embeddings": vit["pos_embed"],
        "decoder.mask_token": decoder["mask_token"],
        "decoder.decoder_pos_embed": decoder["pos_embed"],
    }
    layers = {
        "layernorm_before": "norm1",
        "attention.output.dense": "attn.proj",
        "layernorm_after": "norm2",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }
    for kind in LINEAR:
        state[f"vit.embeddings.patch_embeddings.projection.{kind}"] = vit[f"patch_embed.proj.{kind}"]
        state[f"vit.layernorm.{kind}"] = vit[f"norm.{kind}"]
        for name in ("embed", "norm", "pred"):
            state[f"decoder.decoder_{name}.{kind}"] = decoder[f"{name}.{kind}"]
        for prefix, source, depth in (
            ("vit.encoder.layer", vit, network.encoder.depth),
            ("decoder.decoder_layers", decoder, len(network.decoder.blocks)),
        ):
            for i in range(depth):
                for theirs, ours in layers.items():
                    state[f"{prefix}.{i}.{theirs}.{kind}"] = source[f"blocks.{i}.{ours}.{kind}"]
                thirds = source[f"blocks.{i}.attn.qkv.{kind}"].chunk(3)
                for name, rows in zip(("query", "key", "value"), thirds, strict=True):
                    state[f"{prefix}.{i}.attention.attention.{name}.{kind}"] = rows.clone()
    return state


def timm_state(network: Network) -> State:
    classifier = {"head.weight": torch.zeros(1000, 96), "head.bias": torch.zeros(1000)}
    return network.encoder.vit.state_dict() | classifier


def write(state: State, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path


# Our own files


def test_own_files_come_back_bit_for_bit(known, tmp_path):
    path = tmp_path / "folder" / "weights.safetensors"
    save_weights(known, path, {"command": "made by a test"})
    loaded = load_weights(network := fresh(), path)
    assert (loaded.format, loaded.parts, loaded.interpolated) == ("dietcl", ("encoder", "decoder"), ())
    assert_same(known, network)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"command": "made by a test"}


def test_half_precision_is_cast_up(known, tmp_path):
    path = tmp_path / "half.safetensors"
    save_weights(known, path, {}, half=True)
    load_weights(network := fresh(), path)
    for key, value in network.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, known.state_dict()[key].half().float())


def test_a_head_is_left_out(tmp_path):
    network = fresh()
    network.head.grow(5, rng.torch_generator("cpu", 0, "head"))
    save_weights(network, tmp_path / "w.safetensors", {})
    loaded = load_weights(without := fresh(), tmp_path / "w.safetensors")
    assert (loaded.ignored, without.head.classes) == (("head.bias", "head.weight"), 0)
    assert loaded.parts == ("encoder", "decoder")


def test_a_failed_write_leaves_the_old_file(known, tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(known, path, {})
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_weights(fresh(), path, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_shipped_weights_lie_in_the_package():
    assert shipped("any").parent == Path(checkpoints.__file__).parent / "weights"


# Others' files


def test_mae_checkpoint(known, tmp_path):
    path = tmp_path / "mae_pretrain_full.pth"
    # Training scripts of that layout keep their arguments and counters beside the weights.
    torch.save({"model": mae_state(known), "epoch": 3, "args": argparse.Namespace(lr=0.1)}, path)
    loaded = load_weights(network := fresh(), path)
    assert (loaded.format, loaded.parts) == ("facebookresearch/mae", ("encoder", "decoder"))
    assert_same(known, network)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_huggingface_checkpoint(known, tmp_path, name):
    loaded = load_weights(network := fresh(), write(huggingface_state(known), tmp_path / name))
    assert (loaded.format, loaded.parts) == ("HuggingFace", ("encoder", "decoder"))
    assert_same(known, network)


def test_huggingface_classifier_gives_its_encoder(known, tmp_path):
    state = {key: value for key, value in huggingface_state(known).items() if key.startswith("vit.")}
    state |= {"classifier.weight": torch.zeros(10, 96), "classifier.bias": torch.zeros(10)}
    loaded = load_weights(network := fresh(), write(state, tmp_path / "m.safetensors"))
    assert (loaded.parts, loaded.ignored) == (("encoder",), ("classifier.bias", "classifier.weight"))
    assert_same(known, network, decoder=False)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth"])
def test_timm_checkpoint(known, tmp_path, name):
    loaded = load_weights(network := fresh(), write(timm_state(known), tmp_path / name))
    assert (loaded.format, loaded.parts) == ("timm", ("encoder",))
    assert loaded.ignored == ("head.bias", "head.weight")
    assert "timm: loaded encoder" in str(loaded)
    assert_same(known, network, decoder=False)


def test_timm_name(monkeypatch):
    published = timm_models.timm.create_model("test_vit", pretrained=False)
    network = fresh(encoder="test_vit", image_size=32)
    monkeypatch.setattr(timm_models.timm, "create_model", lambda name, pretrained: published)
    assert load_weights(network, "test_vit").interpolated == ("encoder.vit.pos_embed",)
    assert torch.equal(network.encoder.vit.blocks[0].attn.qkv.weight, published.blocks[0].attn.qkv.weight)


def test_no_connection_is_one_clear_sentence(monkeypatch):
    network = fresh()

    def fail(name, pretrained):
        raise OSError("no route\nlong story")

    monkeypatch.setattr(timm_models.timm, "create_model", fail)
    with pytest.raises(
        UserError, match=r"no route\); check the connection, give a local file as --weights FILE, .* --weights random$"
    ):
        load_weights(network, "vit_tiny_patch16_224")


def test_an_unreachable_server_is_not_retried(monkeypatch, tmp_path):
    with socket.socket() as unused:  # a port that refuses connections
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setattr(timm_models.hub, "HF_HUB_CACHE", str(tmp_path))
        started = time.perf_counter()
        with pytest.raises(UserError, match=r"test_vit.* cannot be downloaded .*--weights random"):
            load_weights(fresh(encoder="test_vit", image_size=160), "test_vit")
    assert time.perf_counter() - started < 10  # the client's own retries take a minute
    assert not timm_models.hub.HF_HUB_OFFLINE


@pytest.mark.parametrize("layout", [mae_state, huggingface_state, timm_state])
@pytest.mark.parametrize("size", [12, 32])
def test_other_image_sizes_interpolate_positions(known, tmp_path, layout, size):
    network = fresh(image_size=size)
    loaded = load_weights(network, write(layout(known), tmp_path / "w.pth"))
    both = ("encoder.vit.pos_embed", "decoder.pos_embed")
    assert loaded.interpolated == (both[:1] if layout is timm_state else both)
    own, theirs = network.encoder.vit.pos_embed, known.encoder.vit.pos_embed
    assert torch.equal(own[:, 0], theirs[:, 0])
    # Interpolation neither shifts nor scales: the mean over the grid stays.
    torch.testing.assert_close(own[:, 1:].mean(1), theirs[:, 1:].mean(1), atol=0.05, rtol=0)
    assert network.features(torch.zeros(1, 3, size, size)).isfinite().all()


# What cannot be loaded


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.pth is not a file"):
        load_weights(fresh(), tmp_path / "nowhere.pth")
    with pytest.raises(UserError, match=r"weights/mae\.pth is not a file"):
        load_weights(fresh(), "weights/mae.pth")
    with pytest.raises(UserError, match="did you mean vit_tiny_patch16_224"):
        load_weights(fresh(), "vit_tiny_patch16_2244")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["model.safetensors", "config.json"], "model.safetensors"),
        (["weights.safetensors"], "weights.safetensors"),
        ([], "FILE"),
    ],
)
def test_a_folder_is_refused_with_the_file_of_weights_in_it(tmp_path, files, named):
    for name in files:
        (tmp_path / name).touch()
    for attempt in (lambda: load_weights(fresh(), tmp_path), lambda: require_weights(str(tmp_path))):
        with pytest.raises(UserError, match=rf"is a folder: give a file of weights, such as .*/{named}$"):
            attempt()


def test_weights_in_the_cache_of_downloads_are_not_fetched_again(monkeypatch):
    asked = []
    monkeypatch.setattr(timm_models, "download_weights", asked.append)
    require_weights("test_vit")
    assert asked == ["test_vit"]
    monkeypatch.setattr(timm_models, "try_to_load_from_cache", lambda place, file: f"{place}/{file}")
    require_weights("test_vit")
    require_weights(None)
    require_weights("shipped")
    assert asked == ["test_vit"]
    with pytest.raises(UserError, match=r"knows no weights 'test_vit\.other'"):
        require_weights("test_vit.other")


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_runs_code_is_refused(known, tmp_path, legacy):
    trap, path = tmp_path / "trap", tmp_path / "evil.pth"
    content = {"model": mae_state(known), "extra": Malicious(trap)}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"evil\.pth .*could run code"):
        load_weights(fresh(), path)
    assert not trap.exists()
    torch.load(path, weights_only=False)
    assert trap.exists(), "the trap itself must work, or the test shows nothing"


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 cut short"])
def test_damaged_files(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=name):
        load_weights(fresh(), path)


def test_files_of_something_else(tmp_path):
    with pytest.raises(UserError, match=r"none of the known layouts.*conv1\.weight"):
        load_weights(fresh(), write({"conv1.weight": torch.zeros(1)}, tmp_path / "resnet.safetensors"))
    with pytest.raises(UserError, match="no tensors"):
        load_weights(fresh(), write({"epoch": 3}, tmp_path / "log.pth"))
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(UserError, match="holds a list"):
        load_weights(fresh(), tmp_path / "list.pth")


@pytest.mark.parametrize("layout", [mae_state, huggingface_state, timm_state])
def test_a_mismatch_names_key_shapes_and_option(known, tmp_path, layout):
    path = write(layout(known), tmp_path / "w.pth")
    with pytest.raises(
        UserError, match=r"encoder\.vit\.\S+ has shape \[.*96.*\].*where.*set encoder .*width 96 and 4 blocks"
    ):
        load_weights(fresh(encoder="test_vit", image_size=32), path)
    if layout is not timm_state:
        with pytest.raises(UserError, match=r"decoder\.\S+ has shape .*decoder_dim.*width 32 and 2 blocks"):
            load_weights(fresh(decoder_dim=64), path)
        with pytest.raises(UserError, match=r"no place for decoder\.blocks\.1.*decoder_depth"):
            load_weights(fresh(decoder_depth=1), path)
        with pytest.raises(UserError, match=r"lacks decoder\.blocks\.2.*decoder_depth"):
            load_weights(fresh(decoder_depth=3), path)


def test_unknown_and_missing_names(known, tmp_path):
    surplus = timm_state(known) | {"adapter.weight": torch.zeros(1)}
    with pytest.raises(UserError, match=r"no place for encoder\.vit\.adapter\.weight"):
        load_weights(fresh(), write(surplus, tmp_path / "a.safetensors"))
    own = known.state_dict() | {"teacher.weight": torch.zeros(1)}
    own = {key: value for key, value in own.items() if not key.startswith("head.")}
    with pytest.raises(UserError, match=r"no place for teacher\.weight"):
        load_weights(fresh(), write(own, tmp_path / "b.safetensors"))
    pooled = {
        key.replace("norm.", "fc_norm.") if key.startswith("norm.") else key: v for key, v in timm_state(known).items()
    }
    with pytest.raises(UserError, match=r"lacks encoder\.vit\.norm\.weight.*pools before its norm"):
        load_weights(fresh(), write(pooled, tmp_path / "c.safetensors"))
    headless = {"encoder.vit.cls_token": torch.zeros(1, 1, 96)}
    with pytest.raises(UserError, match=r"lacks encoder\.vit\.pos_embed"):
        load_weights(fresh(), write(headless, tmp_path / "d.safetensors"))


def test_a_refused_file_changes_no_weight(known, tmp_path):
    network = fresh(decoder_depth=1)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(UserError):
        load_weights(network, write(mae_state(known), tmp_path / "w.pth"))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
