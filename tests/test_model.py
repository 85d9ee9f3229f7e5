"""The model of a run: it classifies as the run did, holds only what that takes, and names what is missing."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

import dietcl
import dietcl.run
from dietcl.engine.learner import Learner
from dietcl.methods import every_method, method_class, method_config
from dietcl.methods.pieces.ridge import score_shares
from dietcl.model import save_model
from dietcl.streams.normalize import normalize
from helpers.tiny import AMPLE, TINY

SMALL = {
    "image_size": 16,
    "decoder_dim": 16,
    "decoder_depth": 1,
    "decoder_heads": 2,
    "weights": "random",
    "batch": 12,
    "micro_batch": 6,
    "device": "cpu",
}
STREAM = {"time_steps": 2, "label_rate": 0.2}


def train(stream: Path, folder: Path, method: str, **options: object) -> tuple[dietcl.Run, Learner]:
    """Train a tiny model through the public interface; returns also the learner that the model was saved from."""
    learners: list[Learner] = []

    def keep(learner: Learner, place: Path) -> None:
        learners.append(learner)
        save_model(learner, place)

    name = method.partition(":")[0]
    threshold = {"threshold": "2"} if name == "dietcl" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dietcl.run, "save_model", keep)
        size = {} if "encoder" in options else {"preset": "micro"}
        given = {
            **size,
            **SMALL,
            **STREAM,
            **TINY.get(name, {}),
            **threshold,
            "budget": AMPLE.get(name, "3"),
            **options,
        }
        run = dietcl.train(stream, method, out=folder, **given)
    return run, learners[0]


@pytest.fixture(scope="module", params=every_method())
def trained(request, blobs, tmp_path_factory) -> tuple[dietcl.Run, Learner]:
    return train(blobs, tmp_path_factory.mktemp("run") / "run", request.param)


def test_every_model_answers_image_by_image_as_the_evaluation_of_its_run(trained, blobs):
    run, learner = trained
    model = dietcl.load(run.path, device="cpu")
    pack = np.load(blobs.parent / "images.npy")
    truths, answers = [], []
    for test in learner.stream.tests:
        images = pack[learner.loader.storage.index.offset[learner.stream.index_row[test.rows]]]
        expected, _ = learner.evaluator.predict(learner.method, learner.net, test)
        predicted = [prediction.name for prediction in model.predict(images)]
        assert predicted == [learner.stream.classes[number] for number in expected]
        squares = torch.from_numpy(images).permute(0, 3, 1, 2)
        with learner.ledger.free(), torch.no_grad():
            scores = learner.method.predict(learner.net, normalize(squares))
        torch.testing.assert_close(model.scores(squares), scores, rtol=1e-5, atol=1e-6)
        truths += [learner.stream.classes[number] for number in test.labels]
        answers += predicted
    confusion = run.confusion()
    names = confusion.classes
    cells = zip(confusion.truth, confusion.predicted, confusion.count, strict=True)
    assert {(names[t], names[p]): n for t, p, n in cells} == {
        pair: list(zip(truths, answers, strict=True)).count(pair) for pair in zip(truths, answers, strict=True)
    }
    right = sum(truth == answer for truth, answer in zip(truths, answers, strict=True))
    assert right == run.counts["correct"][-1].sum() == confusion.right
    assert run.accuracy == right / len(truths)


def test_probabilities_of_every_model_sum_to_one_in_the_order_of_its_scores(trained, blobs):
    run, _ = trained
    model = run.model("cpu")
    images = np.load(blobs.parent / "images.npy")[-24:]
    table = model.probabilities(images)
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-5)
    scores = model.scores(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    ranked = np.take_along_axis(table, np.argsort(-scores, axis=1), axis=1)
    assert (np.diff(ranked, axis=1) <= 0).all()
    for row, prediction in zip(table, model.predict(images, top=3), strict=True):
        assert prediction.probabilities == tuple(float(row[model.classes.index(name)]) for name in prediction.classes)
        assert prediction.probability == row.max()


def test_a_model_holds_no_tensor_that_answering_does_not_need(trained):
    run, _ = trained
    tensors = load_file(run.path / "model.safetensors")
    own = {name for name in tensors if name.startswith(("method/", "modules/"))}
    is_ridge = run.config["method_config"].get("head") == "ridge"
    needed = {
        "acm": {"method/rows", "method/labels", "method/values"},
        "ccic": {"method/rows", "method/labels", "method/values", "method/revealed"},
        "linear_probe": {"method/weight", "method/bias"} if is_ridge else set(),
        "ncm": {"method/sums", "method/counts"},
        "ranpac": {"method/weight", "modules/projection/0.weight"},
        "l2p": {"modules/prompts/prompts", "modules/prompts/keys"},
    }
    if run.method == "dualnet":
        assert own
        assert {name.split("/")[1] for name in own} == {"branch"}
    else:
        assert own == needed.get(run.method, set())


def test_sums_of_products_stay_out_of_a_ranpac_model(blobs, tmp_path):
    run, learner = train(blobs, tmp_path / "run", "ranpac", random_features=5)
    assert "gram" in learner.method.state()
    assert {name for name in load_file(run.path / "model.safetensors") if name.startswith("method/")} == {
        "method/weight"
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-11, 2, width=16), min_size=4, max_size=4), min_size=1, max_size=5))
def test_shares_of_solved_scores_are_probabilities_in_their_order(rows):
    scores = torch.tensor(rows)
    shares = score_shares(scores)
    torch.testing.assert_close(shares.sum(1), torch.ones(len(rows)))
    assert (shares >= 0).all()
    for values, found in zip(scores, shares, strict=True):
        order = values.argsort(descending=True)
        assert (found[order].diff() <= 0).all()


def test_a_solved_head_is_as_sure_as_its_scores():
    scores = torch.tensor([[0.9, 0.05, 0.0, -0.1]])
    assert score_shares(scores)[0, 0] > 0.93  # softmax: 0.45
    assert method_class("ranpac")(method_config("ranpac")).probabilities(scores)[0, 0] > 0.93
    assert method_class("linear_probe")(method_config("linear_probe:sgd")).probabilities(scores)[0, 0] < 0.5


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory) -> Path:
    return train(blobs, tmp_path_factory.mktemp("finished") / "run", "naive")[0].path


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy of a finished run's model, to be damaged."""
    place = tmp_path / "run"
    place.mkdir()
    for name in ("config.json", "finished", "model.json", "model.safetensors"):
        (place / name).write_bytes((finished / name).read_bytes())
    return place


def edit(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def remove(folder: Path, key: str) -> None:
    path = folder / "model.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["head.weight"]
    (folder / "model.safetensors").write_bytes(save(tensors))


def change_a_byte(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)


def truncate(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])


def of_version_before(folder: Path) -> None:
    (folder / "model.json").unlink()
    (folder / "model.safetensors").rename(folder / "weights.safetensors")


def unfinished(folder: Path) -> None:
    for name in ("finished", "model.json", "model.safetensors"):
        (folder / name).unlink()


def no_run(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "model.json").write_text("{"), "model.json: cannot be read"),
        (lambda folder: (folder / "model.json").write_text("[]"), "model.json: is not a JSON object"),
        *((lambda folder, key=key: remove(folder, key), f"lacks {key}") for key in ("classes", "seed", "method")),
        (lambda folder: edit(folder, format=3), "has format 3, and this version reads 1 to 2; update dietcl"),
        (lambda folder: edit(folder, preprocessing={"mean": [0.5], "std": [0.25]}), "do not fit this version"),
        (lambda folder: edit(folder, method="taught"), "no method taught; .* register_method"),
        (lambda folder: edit(folder, model={"encoder": "micro"}), "do not fit this version"),
        (lambda folder: edit(folder, classes=["one"]), "do not fit this version"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: is missing"),
        (truncate, "model.safetensors: cannot be read .* is incomplete"),
        (drop_tensor, "model.safetensors: lacks head.weight"),
        (change_a_byte, "model.safetensors: is damaged"),
        (unfinished, "the run is not finished"),
        (of_version_before, "a run of an earlier version"),
        (no_run, "holds no model"),
    ],
)
def test_what_is_not_a_whole_model_says_what_is_missing(folder, damage, sentence):
    damage(folder)
    with pytest.raises(dietcl.UserError, match=sentence) as caught:
        dietcl.load(folder)
    assert "\n" not in str(caught.value)


def test_a_model_standardizes_pixels_as_its_description_says(blobs, tmp_path, monkeypatch):
    run, _ = train(blobs, tmp_path / "run", "naive", encoder="test_vit", image_size=32)
    description = json.loads((run.path / "model.json").read_text())
    stored = {name: description["preprocessing"][name] for name in ("mean", "std")}
    assert stored == {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}  # of this encoder, not of the package
    assert description["dietcl"] == dietcl.__version__ == "0.3.0"
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = dietcl.load(run.path, device="cpu").scores(pixels)
    other = ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    monkeypatch.setattr("dietcl.models.timm_models.pixel_statistics", lambda name: other)  # as another timm might say
    assert torch.equal(dietcl.load(run.path, device="cpu").scores(pixels), before)
    edit(run.path, preprocessing=description["preprocessing"] | {"mean": other[0], "std": other[1]})
    of_other = dietcl.load(run.path, device="cpu").scores(pixels)
    assert not torch.equal(of_other, before)
    edit(run.path, format=1, preprocessing={"mean": 0.5, "std": 0.25})  # which left the statistics to timm
    assert torch.equal(dietcl.load(run.path, device="cpu").scores(pixels), of_other)


def test_counts_of_one_have_singular_nouns(folder):
    model = dietcl.load(folder, device="cpu")
    assert repr(model) == "Model(naive, micro at 16 px, 6 classes)"
    model.classes = ("one",)
    assert repr(model) == "Model(naive, micro at 16 px, 1 class)"


def test_a_model_is_found_by_its_folder_or_either_file_and_nowhere_else(folder):
    for place in (folder, str(folder), folder / "model.json", folder / "model.safetensors"):
        assert sorted(dietcl.load(place, device="cpu").classes) == [f"class {i}" for i in range(6)]
    with pytest.raises(dietcl.UserError, match="no such folder"):
        dietcl.load(folder / "nowhere")
