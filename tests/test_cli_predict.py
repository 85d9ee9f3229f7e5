"""`dietcl predict` and `dietcl evaluate`, on a run of real images."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

import dietcl
from dietcl.cli.main import main
from helpers.runs import run as carry_out
from helpers.tiny import tiny_config, write_blobs


@pytest.fixture(scope="module")
def finished(blobs, tmp_path_factory):
    """A finished run of the colored squares, and a folder of new pictures, one of them broken."""
    place = tmp_path_factory.mktemp("predict")
    carry_out(tiny_config(blobs, "linear_probe", budget="9"), place / "run")
    generator = np.random.default_rng(1)
    (place / "new" / "deeper").mkdir(parents=True)
    for name in ("a.jpg", "b.png", "deeper/c.jpg"):
        Image.fromarray(generator.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(place / "new" / name)
    (place / "new" / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    return place


def predict(capsys, *arguments):
    """Run the verb; returns its exit code, standard output and standard error."""
    code = main(["predict", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_files_folders_and_patterns_are_classified_and_broken_ones_listed(finished, capsys):
    new = finished / "new"
    code, out, err = predict(capsys, finished / "run", new, "--csv", "--top", "2")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    names = [row["file"].removeprefix(f"{new}/") for row in rows]
    assert names == ["a.jpg", "b.png", "broken.jpg", "deeper/c.jpg"]
    assert [bool(row["error"]) for row in rows] == [False, False, True, False]
    assert "1 of 4 images could not be read" in err
    assert f"{new}/broken.jpg" in err
    answers = dietcl.load(finished / "run").predict([new / "a.jpg", new / "b.png", new / "deeper/c.jpg"], top=2)
    good = [row for row in rows if not row["error"]]
    assert [(row["class_1"], row["class_2"]) for row in good] == [answer.classes for answer in answers]
    assert [float(row["probability_1"]) for row in good] == pytest.approx([a.probability for a in answers], abs=1e-6)
    _, of_pattern, _ = predict(capsys, finished / "run", f"{new}/**/*.jpg", "--csv", "--top", "2")
    assert [row for row in rows if row["file"].endswith(".jpg")] == list(csv.DictReader(io.StringIO(of_pattern)))


def test_a_list_on_standard_input_and_json_lines(finished, capsys, monkeypatch):
    paths = [str(finished / "new" / name) for name in ("b.png", "broken.jpg")]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*paths, ""])))
    code, out, _ = predict(capsys, finished / "run", "-", "--json", "--top", "99")
    one, other = map(json.loads, out.splitlines())
    assert code == 0
    assert (one["file"], other["file"]) == tuple(paths)
    assert sum(entry["probability"] for entry in one["classes"]) == pytest.approx(1)
    assert len(one["classes"]) == len(dietcl.load(finished / "run").classes)
    assert "error" in other


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
def test_answers_go_to_a_pipe_although_the_progress_goes_to_a_terminal():
    code = "from dietcl.cli.progress import progress_bar\nwith progress_bar('x', 'images', 1):\n    print('answer')"
    _, terminal = os.openpty()
    result = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=terminal, check=True)
    assert result.stdout == b"answer\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{run}"], "give images to classify"),
        (["{run}", "nowhere"], "nowhere: no such file, folder or pattern"),
        (["{new}", "{new}"], "holds no model"),
        (["{run}", "{new}", "--top", "0"], "--top 0: give at least 1"),
        (["{run}", "{new}", "--csv", "--json"], "give one of them"),
        (["{run}", "{run}"], "the folder holds no image"),
    ],
)
def test_wrong_input_gets_one_sentence(finished, capsys, arguments, sentence):
    places = {"run": finished / "run", "new": finished / "new"}
    code, out, err = predict(capsys, *(argument.format(**places) for argument in arguments))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_nothing_but_broken_images_is_an_error(finished, capsys):
    code, _, err = predict(capsys, finished / "run", finished / "new/broken.jpg")
    assert code == 2
    assert err.startswith("1 of 1 image could not be read:")


def test_an_empty_list_on_standard_input_is_named(finished, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    code, out, err = predict(capsys, finished / "run", "-")
    assert (code, out) == (2, "")
    assert "-: the list on standard input is empty" in err


def test_evaluate_counts_what_the_run_counted(finished, blobs, capsys):
    run = dietcl.open_run(finished / "run")
    assert main(["evaluate", str(finished / "run"), str(blobs), "--json", "--out", str(finished / "page")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == run.accuracy
    assert (finished / "page/evaluation.html").is_file()
    expected = {(row.name, row.right, row.total) for row in run.by_class()}
    assert main(["evaluate", str(finished / "run"), str(blobs), "--out", str(finished / "page")]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name, *_ in expected)
    assert main(["evaluate", str(finished / "run"), "photos"]) == 2
    assert "dietcl data prepare photos" in capsys.readouterr().err


def test_evaluate_names_the_images_by_split_and_every_class_by_its_name(finished, capsys):
    """Of a manifest with two classes more than the model knows."""
    (finished / "wider").mkdir()
    manifest = write_blobs(finished / "wider", classes=8)
    for split, images in {"auto": "32 test images", "train": "160 training images", "all": "192 images"}.items():
        out = finished / f"page-{split}"
        assert main(["evaluate", str(finished / "run"), str(manifest), "--split", split, "--out", str(out)]) == 0
        said, told = capsys.readouterr()
        assert f" of {images} right (" in said
        assert ", chance 16.7%); worst classes:" in said
        assert told == "the model does not know class 6, class 7; their images count as wrong\n"
        text = (out / "evaluation.html").read_text(encoding="utf-8")
        assert f"{images} of 8 classes (2 unknown to it) correctly" in text
        assert "never revealed" not in text
        assert f"dietcl predict {finished / 'run'} photo.jpg" in text
        link = re.search(r'<a href="([^"]*)">model.json</a>', text)
        assert (out / unquote(link[1])).samefile(finished / "run/model.json")
        numbers = json.loads((out / "evaluation.json").read_text())
        assert {row["class"] for row in numbers["by_class"]} == {f"class {i}" for i in range(8)}
        assert (numbers["chance"], numbers["unknown_classes"]) == (1 / 6, ["class 6", "class 7"])


def test_evaluate_takes_the_file_of_a_model_for_its_folder(finished, blobs, capsys):
    assert main(["evaluate", str(finished / "run" / "model.json"), str(blobs), "--json"]) == 0
    page = finished / "run" / f"evaluation-{blobs.parent.name}" / "evaluation.html"
    assert json.loads(capsys.readouterr().out)["page"] == str(page)
    assert f"<h1>run on {blobs.parent.name}</h1>" in page.read_text(encoding="utf-8")
