"""The public interface: what `import dietcl` offers, from a folder of images to the predictions of a run."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import dietcl
from dietcl.api import TimeStepInfo
from dietcl.methods import METHODS
from helpers.photos import photo
from helpers.runs import interrupt, outcome
from test_model import SMALL, STREAM

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A folder of JPEGs, one folder a class."""
    folder = tmp_path_factory.mktemp("photos") / "pets"
    for number in range(48):
        place = folder / f"class {number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number, 3)).save(place / f"{number}.jpg", quality=95)
    return folder


@pytest.fixture(scope="module")
def run(blobs, tmp_path_factory) -> dietcl.Run:
    return dietcl.train(blobs, "er", out=tmp_path_factory.mktemp("er") / "run", budget="6", **SMALL, **STREAM)


def test_import_loads_neither_torch_nor_numpy():
    code = "import dietcl, sys; assert not {'torch', 'numpy'} & sys.modules.keys(); print(*dir(dietcl))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    names = result.stdout.split()
    assert {"open_stream", "train", "load", "Model", "Method", "register_method", "methods", "compare"} <= {*names}
    assert all(hasattr(dietcl, name) for name in names)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        dietcl.trian  # noqa: B018


def test_methods_lists_them_all():
    assert [entry.name for entry in dietcl.methods()] == list(METHODS)


def test_a_folder_of_jpegs_is_prepared_once_and_again_when_a_file_changes(photos, cache):
    stream = dietcl.open_stream(photos, **STREAM)
    assert Path(stream.name).is_relative_to(cache)
    assert sorted(stream.classes) == ["class 0", "class 1", "class 2"]
    assert sum(step.labeled + step.unlabeled + step.test for step in stream.steps) == 48
    before = Path(stream.name).stat().st_mtime_ns
    again = dietcl.open_stream(str(photos), **STREAM)
    assert (again, Path(again.name).stat().st_mtime_ns) == (stream, before)
    Image.fromarray(photo(48, 3)).save(photos / "class 0/48.jpg")
    changed = dietcl.open_stream(photos, **STREAM)
    assert changed.name != stream.name
    assert sum(step.labeled + step.unlabeled + step.test for step in changed.steps) == 49


def test_a_built_in_stream_is_not_mistaken_for_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("glyphs").mkdir()
    with pytest.raises(dietcl.UserError, match=r"tme_steps: .* did you mean time_steps"):
        dietcl.open_stream("glyphs", tme_steps=2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"labelrate": 0.1}, "labelrate: there is no such option; did you mean label_rate?"),
        ({"devise": "cpu"}, "devise: there is no such option; did you mean device?"),
        ({"method": "dietcel"}, "dietcel: no such method; did you mean dietcl?"),
        ({"preset": "huge"}, "huge: no such preset"),
        ({"budget": "much"}, "much"),
    ],
)
def test_a_wrong_option_gets_the_nearest_name(blobs, tmp_path, options, sentence):
    with pytest.raises(dietcl.UserError, match=sentence):
        dietcl.train(blobs, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "option", "value", "advice"),
    [
        ("er", "precision", "fp8", "give auto, float32 or bfloat16"),
        ("er", "threads", "two", "give at least 1"),
        ("er", "fresh", 1, "give True or False"),
        ("er", "sampling", "unifrom", "give uniform or balanced"),
        ("linear_probe", "head", "rigde", "give ridge or sgd"),
        ("dietcl", "reconstruct", "labelled", "give unlabeled or labeled"),
        ("dietcl", "threshold", 400, "give a string"),
        ("dietcl", "alpha", True, "give a weight from 0"),
        ("er", "accounting", "flosp", "give images or flops"),
        ("er", "seed", "a", "give a whole number"),
        ("er", "seed", 1.5, "give a whole number"),
        ("er", "first_time_steps", "2", "give at least 1"),
        ("er", "at_least_one", "false", "give True or False"),
        ("er", "recipe", "tmie", "give class, time or data"),
        ("er", "recipe", ["class"], "give class, time or data"),
        ("er", "cut", "hour", "give count, duration, day, week, month, value or auto"),
        ("er", "time_steps", "many", "give from 1 to 5000"),
        ("er", "label_rate", "half", "give a share from 0 to 1"),
        ("er", "flip", "no", "give True or False"),
        ("er", "test_images", "all", "give at least 1"),
        ("er", "curves", None, "give a whole number from 0"),
        ("er", "batch", 12.0, "give a whole number"),
        ("er", "encoder", 5, "give a string"),
        ("er", "preset", 5, "give a string"),
        (5, "method", 5, "give a string"),
        ("er", "lr", np.ones(2), "give a number above 0"),
        ("er", "weights", 5, "give a string or None"),
    ],
)
def test_a_value_of_a_wrong_type_or_an_unknown_choice_is_refused(blobs, tmp_path, method, option, value, advice):
    sentence = f"--{option.replace('_', '-')} {value!r}: {advice}"
    with pytest.raises(dietcl.UserError, match=re.escape(sentence)) as caught:
        dietcl.train(blobs, **{"method": method, "out": tmp_path / "run", option: value})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_and_paths_are_plain_in_a_configuration(blobs):
    numbers = dietcl.build_config(blobs, "er", seed=np.int64(3), lr=np.float32(0.5), weights=Path("a.pth"))
    plain = dietcl.build_config(blobs, "er", seed=3, lr=0.5, weights="a.pth")
    assert numbers.hash() == plain.hash()
    assert numbers.resolved()["seed"] == 3


def test_options_of_sources_and_readers_are_checked_too(blobs):
    with pytest.raises(dietcl.UserError, match="foo: there is no such option; choose from"):
        dietcl.reader("table", foo=1)
    with pytest.raises(dietcl.UserError, match="clases: there is no such option; did you mean classes"):
        dietcl.reader("glyphs", clases=1)
    with pytest.raises(dietcl.UserError, match="--test-share 'half': give a number"):
        dietcl.reader("folder", test_share="half")
    with pytest.raises(dietcl.UserError, match="--classes 'few': give a whole number"):
        dietcl.build_config("glyphs", source={"classes": "few"})
    with pytest.raises(dietcl.UserError, match="has no such options"):
        dietcl.build_config(blobs, source={"classes": 3})
    with pytest.raises(dietcl.UserError, match="devise: there is no such option; did you mean device"):
        dietcl.train_config(dietcl.build_config(blobs), devise="cpu")
    assert dietcl.reader("glyphs", classes=7).classes == 7


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"methods": []}, "name at least one"),
        ({"methods": "re"}, "--method re: no such method"),
        ({"methods": "er", "seeds": 0}, "--seeds 0: give at least 1"),
        ({"methods": "er", "seeds": "two"}, "--seeds 'two': give at least 1"),
        ({"methods": "er", "jobs": 0}, "--jobs 0: give at least 1"),
        ({"methods": "er", "seed": 3}, "seed 3: a comparison takes seeds"),
    ],
)
def test_a_comparison_of_nothing_is_refused(blobs, tmp_path, arguments, sentence):
    with pytest.raises(dietcl.UserError, match=sentence):
        dietcl.compare(blobs, out=tmp_path / "all", **arguments)


def test_a_comparison_takes_the_name_of_one_method(blobs, tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr("dietcl.api.runs_due", lambda runs, *rest: asked.extend(c.method for c, _ in runs) or [])
    monkeypatch.setattr("dietcl.api.open_run", lambda folder: None)
    monkeypatch.setattr("dietcl.api.by_accuracy", lambda runs: [])
    dietcl.compare(blobs, "er", out=tmp_path / "all")
    assert asked == ["er"]


def test_what_cannot_be_downloaded_fails_before_the_stream_is_drawn_and_once(blobs, tmp_path, monkeypatch):
    tried: list[str] = []

    def fail(name):
        tried.append(name)
        raise dietcl.UserError("no connection; --weights random")

    def draw(*arguments):
        raise AssertionError("the stream was drawn")

    monkeypatch.setattr("dietcl.models.timm_models.download_weights", fail)
    monkeypatch.setattr("dietcl.run.stream_of", draw)
    monkeypatch.setattr("dietcl.many_runs.stream_of", draw)
    with pytest.raises(dietcl.UserError, match="--weights random"):
        dietcl.train(blobs, "er", out=tmp_path / "run", encoder="test_vit", device="cpu")
    assert tried == ["test_vit"]
    with pytest.raises(dietcl.UserError, match="--weights random"):
        dietcl.compare(blobs, ["er", "naive"], seeds=2, out=tmp_path / "all", encoder="test_vit")
    assert tried == ["test_vit"] * 2
    with pytest.raises(dietcl.UserError, match=r"nowhere\.pth is not a file"):
        dietcl.train(blobs, "er", out=tmp_path / "run", weights="nowhere.pth", device="cpu")


def test_one_version_is_stated():
    assert f'\nversion = "{dietcl.__version__}"\n' in (ROOT / "pyproject.toml").read_text()


def test_the_package_is_typed():
    assert (Path(dietcl.__file__).parent / "py.typed").is_file()
    returned, taken = get_type_hints(dietcl.reader)["return"], get_type_hints(dietcl.prepare)["reader"]
    for kind in ("table", "folder", "glyphs", "digits"):
        assert isinstance(dietcl.reader(kind), get_args(returned))
        assert isinstance(dietcl.reader(kind), get_args(taken))
    assert Any not in get_args(get_type_hints(dietcl.RunConfig)["source"])


def test_a_stream_of_one_counts_in_the_singular():
    step = TimeStepInfo(1, 1, 0, 0, ("one",))
    stream = dietcl.StreamInfo("tiny", {}, ("one",), (step,), "")
    assert repr(stream) == "StreamInfo(tiny: 1 time step, 1 image, 1 label)"


def test_an_option_of_a_run_is_no_option_of_a_stream(blobs):
    with pytest.raises(dietcl.UserError, match="device: is an option of a run"):
        dietcl.open_stream(blobs, device="cpu")


def test_a_run_tells_its_numbers_and_a_finished_one_is_returned_at_once(run, blobs):
    assert run.finished
    assert repr(run) == f"Run({run.path}: er, seed 0, {run.accuracy:.1%} accuracy)"
    assert run.accuracy == run.counts["correct"][-1].sum() / run.counts["count"][-1].sum()
    assert sum(row.total for row in run.by_class()) == run.confusion().total == 24
    said: list[str] = []
    again = dietcl.train(blobs, "er", out=run.path, budget="6", notify=said.append, **SMALL, **STREAM)
    assert again.accuracy == run.accuracy
    assert said == [f"{run.path}: finished before, so nothing was done"]


def test_an_interrupted_run_goes_on_to_the_same_end(run, blobs, tmp_path):
    options = {**SMALL, **STREAM, "budget": "6", "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        dietcl.train(blobs, "er", progress=interrupt(2, 0.5), checkpoint_every=2, **options)
    assert not dietcl.open_run(tmp_path / "run").finished
    with pytest.raises(dietcl.UserError, match="not finished"):
        dietcl.load(tmp_path / "run")
    said: list[str] = []
    dietcl.train(blobs, "er", notify=said.append, **options)
    assert any("resuming" in sentence for sentence in said)
    assert outcome(tmp_path / "run")["weights"] == outcome(run.path)["weights"]


def test_a_stream_of_options_goes_with_it_and_seeds_and_methods_are_compared(blobs, tmp_path):
    stream = dietcl.open_stream(blobs, **STREAM)
    found = dietcl.compare(stream, ["naive", "er:uniform"], seeds=2, out=tmp_path / "all", budget="2", **SMALL)
    assert not found.failures
    assert {(run.method, run.seed) for run in found.runs} == {(m, s) for m in ("naive", "er") for s in (0, 1)}
    assert all(run.config["recipe"]["time_steps"] == 2 for run in found.runs)
    assert len(found.rows()) == 2
    means = [np.mean([run.accuracy for run in found.runs if run.method == m]) for m in ("naive", "er")]
    assert found.runs[0].method == ("naive", "er")[int(np.argmax(means))] or means[0] == means[1]


def test_equal_pictures_get_equal_answers_whatever_their_form(run, blobs, tmp_path):
    model = dietcl.load(run.path, device="cpu")
    pixels = np.load(blobs.parent / "images.npy")[-5:]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    squares = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    expected = model.predict(paths, top=3)
    assert len({prediction.probability for prediction in expected}) == 5
    for images in (pixels, squares, squares.float() / 255, list(pixels), np.array([*map(str, paths)])):
        assert model.predict(images, top=3) == expected
    assert model.predict((path for path in paths), top=3) == expected
    assert model.predict([]) == []
    alone = model.predict(paths[0], top=3)  # a batch of another size rounds differently
    assert alone[0].classes == expected[0].classes
    assert alone[0].probabilities == pytest.approx(expected[0].probabilities)
    for single in (str(paths[0]), pixels[0], squares[0], Image.open(paths[0]), paths[0].read_bytes()):
        assert model.predict(single, top=3) == alone
    lazy = Image.open(paths[0])  # loaded by several threads
    assert {prediction.classes for prediction in model.predict([lazy] * 40, top=3)} == {alone[0].classes}


def test_a_broken_image_is_named_or_passed_by(run, tmp_path):
    model = dietcl.load(run.path, device="cpu")
    broken, good = tmp_path / "broken.jpg", np.zeros((20, 30), np.uint8)
    broken.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(dietcl.UserError, match=r"broken\.jpg: not a readable image"):
        model.predict([good, broken])
    with pytest.raises(dietcl.UserError, match="image 1: an array of int64 is not an image"):
        model.predict([good, good.astype(np.int64)])
    for thing in (None, 5):
        with pytest.raises(dietcl.UserError, match=f"{thing} is not an image; give a path, a PIL image, an array"):
            model.predict(thing)
        with pytest.raises(dietcl.UserError, match=r"image 0: .* is not an image"):
            model.predict([thing])
    with pytest.raises(dietcl.UserError, match="--precision 'fp8': give auto, float32 or bfloat16"):
        dietcl.load(run.path, precision="fp8")
    found = [answer for _, answer in model.iterate([good, broken, good], batch=2)]
    assert found[0] == found[2] == model.predict(good)[0]
    assert "not a readable image" in str(found[1])
    with pytest.raises(dietcl.UserError, match="--top 0: give at least 1"):
        model.predict(good, top=0)


def test_a_registered_method_trains_and_loads_where_it_is_registered(blobs, tmp_path):
    known = dict(METHODS)

    @dietcl.register_method("fine_tune")
    class FineTune(dietcl.Method):
        """Fine-tunes."""

        def next_phase(self, step, done, remaining):
            return None if done else dietcl.Phase(name="all", mix=dietcl.Mix(labeled=1))

        def losses(self, net, phase, batch):
            (logits,) = net.logits(batch.labeled)
            yield dietcl.Term("labeled", batch.labeled.cross_entropy(logits))

    try:
        run = dietcl.train(blobs, "fine_tune", out=tmp_path / "run", budget="2", **SMALL, **STREAM)
        images = np.load(blobs.parent / "images.npy")[-24:]
        assert len(run.model("cpu").predict(images)) == 24
    finally:
        METHODS.clear()
        METHODS.update(known)
    with pytest.raises(dietcl.UserError, match=r"no method fine_tune; .* register_method"):
        dietcl.load(run.path)


def test_all_labels_of_ones_own_data_are_revealed_by_default(tmp_path):
    for number in range(60):
        folder = tmp_path / "photos" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number, 2)).save(folder / f"{number}.jpg")
    manifest = dietcl.prepare(tmp_path / "photos")
    table = pq.read_table(manifest)
    bare = tmp_path / "bare.parquet"  # as somebody else would write it, without defaults of its own
    pq.write_table(table.replace_schema_metadata(None), bare)
    for stream in (dietcl.open_stream(manifest), dietcl.open_stream(bare, time_steps=2)):
        assert stream.labels == stream.images == (pc.equal(table["split"], "train")).to_numpy().sum()


@pytest.mark.long
def test_images_of_ones_own_without_a_label_are_guessed_by_default(tmp_path):
    lines = ["path,label"]
    for number in range(90):
        Image.fromarray(photo(number, 2)).save(tmp_path / f"{number}.jpg")
        lines.append(f"{number}.jpg," + (f"class {number % 2}" if number < 30 else ""))
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    run = dietcl.train(tmp_path / "photos.csv", out=tmp_path / "run", budget=20, device="cpu")
    chosen = run.config
    assert (chosen["method"], chosen["model"]["encoder"], chosen["recipe"]["recipe"]) == ("larder", "lite", "data")
    found = run.of("step_end")[-1]
    assert found["guesses"] > 0
    assert found["guesses_known"] == 0  # nobody knows, so that nothing is claimed of how many are right
