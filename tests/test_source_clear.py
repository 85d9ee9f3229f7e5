"""CLEAR's folder: buckets of time in JSON files, true ones and hostile ones."""

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.datasets.clear import Clear
from dietcl.streams.sources.registry import prepare
from helpers.prepared import quarantine

CLASSES = ["BACKGROUND", "baseball"]


def write(folder: Path) -> Path:
    """Write one image of each of two classes in the buckets 0, 1, 2 and 10, for training and for tests."""
    for split in ("train", "test"):
        lists: dict[str, dict[str, str]] = {}
        for bucket in ("10", "0", "1", "2"):
            for label in CLASSES:
                image = f"labeled_images/{bucket}/{label}/{split}-{bucket}.jpg"
                (folder / split / image).parent.mkdir(parents=True)
                Image.new("RGB", (8, 8)).save(folder / split / image)
                lists.setdefault(bucket, {})[label] = f"labeled_metadata/{bucket}/{label}.json"
                put(folder / split / lists[bucket][label], {"4218": {"ID": "4218", "IMG_PATH": image}})
        put(folder / split / "labeled_metadata.json", lists)
        (folder / split / "class_names.txt").write_text("\n".join(CLASSES))
    return folder


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def listing(manifest: Path) -> list[tuple[str, str, float, int]]:
    index = open_manifest(manifest)
    rows = zip(index.file, index.label, index.time, index.split, strict=True)
    return [(index.files[file], index.classes[label], float(time), int(split)) for file, label, time, split in rows]


def test_the_bucket_is_the_time_and_background_a_class(tmp_path):
    made = prepare(Clear(), str(write(tmp_path / "in")), tmp_path / "out")
    assert listing(made.manifest) == [
        (f"{split}/labeled_images/{bucket}/{label}/{split}-{bucket}.jpg", label, bucket, number)
        for number, split in enumerate(("train", "test"))
        for bucket in (1, 2, 10)
        for label in CLASSES
    ]
    facts = read_facts(made.manifest)
    assert (facts.recipe, facts.time_steps) == ("time", 3)
    assert made.problems == {"bucket 0 is left out": 2}


def test_bucket_0_comes_in_if_asked_for(tmp_path):
    made = prepare(Clear(with_bucket_0=True), str(write(tmp_path / "in")), tmp_path / "out")
    assert [time for *_, time, _ in listing(made.manifest)] == [0, 0, 1, 1, 2, 2, 10, 10] * 2
    assert read_facts(made.manifest).time_steps == 4
    assert made.problems == {}


def test_hostile_lists_are_left_out_and_named(tmp_path):
    folder, out = write(tmp_path / "in"), tmp_path / "out"
    secret = tmp_path / "secret.json"
    put(secret, {"1": {"IMG_PATH": "labeled_images/1/baseball/train-1.jpg"}})
    (folder / "train" / "link.json").symlink_to(secret)
    deep = folder / "train" / "deep.json"
    deep.write_text("[" * 100_000)
    put(folder / "train" / "list.json", [1, 2])
    good = "labeled_images/1/baseball/train-1.jpg"
    entries = ["text", {}, {"IMG_PATH": 5}, {"IMG_PATH": "../../secret.json"}, {"IMG_PATH": str(secret)}]
    entries += [{"IMG_PATH": "a\ud800.jpg"}, {"IMG_PATH": "gone.jpg"}, {"IMG_PATH": good}, {"IMG_PATH": good}]
    put(folder / "train" / "mixed.json", dict(enumerate(entries)))
    lists = {
        "1": {"baseball": "mixed.json", "BACKGROUND": "../../secret.json", "stranger": "mixed.json"},
        "2": {"baseball": "link.json", "BACKGROUND": str(secret)},
        "3": {"baseball": "deep.json", "BACKGROUND": "list.json"},
        "4": {"baseball": "gone.json", "BACKGROUND": 7},
        "5": ["baseball"],
        "six": {},
    }
    put(folder / "train" / "labeled_metadata.json", lists)
    (folder / "test" / "labeled_metadata.json").write_text("{")
    made = prepare(Clear(), str(folder), out)
    assert listing(made.manifest) == [(f"train/{good}", "baseball", 1, 0)]
    top, mixed = "train/labeled_metadata.json", "train/mixed.json"
    # What a parser says in brackets is its own business.
    assert sorted([file, row, text.partition(" (")[0]] for file, row, text in quarantine(out)) == sorted(
        [
            [top, "", "the path leads outside the folder: list of 'BACKGROUND' in bucket 1"],
            [top, "", "the class is not in train/class_names.txt: 'stranger'"],
            [top, "", "the path leads outside the folder: list of 'BACKGROUND' in bucket 2"],
            [top, "", "there is no path: list of 'BACKGROUND' in bucket 4"],
            [top, "", "the bucket has no classes: 5"],
            [top, "", "the bucket has no number: 'six'"],
            ["test/labeled_metadata.json", "", "cannot be read"],
            ["train/link.json", "", "cannot be read"],
            ["train/deep.json", "", "cannot be read"],
            ["train/list.json", "", "not a JSON mapping"],
            ["train/gone.json", "", "cannot be read"],
            *([mixed, row, "there is no path"] for row in "012"),
            *([mixed, row, "the path leads outside the folder"] for row in "34"),
            [mixed, "5", "the path is not text"],
            ["train/gone.jpg", "", "cannot be read"],
            [f"train/{good}", "", f"the id occurs twice: train/{good}"],
        ]
    )


def test_it_is_recognized_here_and_far_away(tmp_path):
    folder = write(tmp_path / "in")
    fsspec.filesystem("memory").put(str(folder), "/clear", recursive=True)
    assert Clear.fits(FileRoot.of(folder), "")
    assert Clear.fits(FileRoot.of("memory://clear"), "")
    assert not Clear.fits(FileRoot.of(folder / "train"), "")
    far = prepare(Clear(), "memory://clear", tmp_path / "far")
    assert listing(far.manifest) == listing(prepare(Clear(), str(folder), tmp_path / "near").manifest)


def test_nothing_but_broken_lists_is_an_error_that_names_the_quarantine(tmp_path):
    put(tmp_path / "in" / "train" / "labeled_metadata.json", [])
    with pytest.raises(UserError, match=r"quarantine\.csv"):
        prepare(Clear(), str(tmp_path / "in"), tmp_path / "out")
