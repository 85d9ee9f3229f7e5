"""Packs of WebP strips: real zips, and what is wrong with them."""

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from dietcl.cli.config_options import parse
from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.quarantine import QUARANTINE
from dietcl.streams.sources.readers.webp_zip import Strips
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage

# The hash of the manifest below, by which runs know their streams.
PACK = "f89defab4ad6ee175a5fbafe8f0140d4b0847b1e449681fc4e564cd613d927ba"


def write_pack(path: Path, classes: tuple[str, str] = ("a", "b"), **meta: Any) -> np.ndarray:
    """Write 3 training images of one class and 2 test images of another; returns all of them."""
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    with zipfile.ZipFile(path, "w") as pack:
        pack.writestr("meta.json", json.dumps({"size": 8, "classes": classes, **meta}))
        for name, strip in (
            (f"train/{classes[0]}/00.webp", images[:3]),
            (f"test/{classes[1]}/00.webp", images[3:]),
        ):
            picture = io.BytesIO()
            Image.fromarray(strip.reshape(-1, 8, 3)).save(picture, "WEBP", lossless=True)
            pack.writestr(name, picture.getvalue())
    return images


def test_a_pack_becomes_a_manifest_with_the_same_pixels(tmp_path):
    images = write_pack(tmp_path / "pack.zip")
    manifest = Strips(path=tmp_path / "pack.zip").prepare(tmp_path / "cache")
    index = open_manifest(manifest)
    assert list(index.classes) == ["a", "b"]
    by_label = np.argsort(index.label, kind="stable")
    assert index.split[by_label].tolist() == [0, 0, 0, 1, 1]
    read = Storage(index, 8).read(by_label).permute(0, 2, 3, 1).numpy()
    assert (read == images).all()
    assert Strips(path=tmp_path / "pack.zip").prepare(tmp_path / "cache") == manifest


def test_what_is_no_pack_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.zip"):
        Strips(path=tmp_path / "nowhere.zip").prepare(tmp_path)
    (tmp_path / "text.zip").write_text("not a zip")
    with pytest.raises(UserError, match=r"text\.zip"):
        Strips(path=tmp_path / "text.zip").prepare(tmp_path)
    with zipfile.ZipFile(tmp_path / "bare.zip", "w") as pack:
        pack.writestr("train/a/00.webp", b"")
    with pytest.raises(UserError, match=r"bare\.zip"):
        Strips(path=tmp_path / "bare.zip").prepare(tmp_path)


def test_a_pack_is_prepared_as_any_other_kind_of_data(tmp_path):
    images = write_pack(tmp_path / "pack.zip")
    assert Strips.fits(FileRoot.of(tmp_path), "pack.zip")
    made = prepare(Strips(), str(tmp_path / "pack.zip"), tmp_path / "out")
    cached = Strips(path=tmp_path / "pack.zip").prepare(tmp_path / "cache")
    index = open_manifest(made.manifest)
    assert index.hash == open_manifest(cached).hash == PACK
    assert read_facts(made.manifest).recipe == "data"  # it has one class only
    assert (
        np.load(tmp_path / "out" / "images.npy") == np.concatenate([images[3:], images[:3]])
    ).all()  # test/ is first
    fsspec.filesystem("memory").put(str(tmp_path / "pack.zip"), "/packs/pack.zip")
    far = prepare(Strips(), "memory://packs/pack.zip", tmp_path / "far")
    assert open_manifest(far.manifest).hash == PACK


def test_the_day_a_class_was_first_seen_is_its_time(tmp_path):
    seen = {"Apple Red 1": "1970-01-02", "Pear 2": "1970-01-03"}
    write_pack(tmp_path / "pack.zip", ("Apple Red 1", "Pear 2"), first_seen=seen)
    cached = Strips(path=tmp_path / "pack.zip").prepare(tmp_path / "cache")
    made = prepare(Strips(), str(tmp_path / "pack.zip"), tmp_path / "out")
    index = open_manifest(made.manifest)
    assert index.hash == open_manifest(cached).hash
    assert index.classes == ("Apple Red 1", "Pear 2")
    assert index.time.tolist() == [172800] * 2 + [86400] * 3
    facts = read_facts(made.manifest)
    assert (facts.recipe, facts.time_steps) == ("time", 2)
    coarse = Strips(path=tmp_path / "pack.zip", label="first-word").prepare(tmp_path / "cache")
    assert open_manifest(coarse).classes == ("Apple", "Pear")


def test_strips_that_cannot_be_used_are_left_out_and_named(tmp_path):
    path = tmp_path / "pack.zip"
    write_pack(path, first_seen={"a": "1970-01-02", "b": {"no": "date"}})
    with zipfile.ZipFile(path, "a") as pack:
        pack.writestr("train/a/01.webp", b"RIFF broken")
        pack.writestr("train/02.webp", b"")
        for name, shape in (("train/a/03.webp", (8, 16)), ("train/a/04.webp", (12, 8))):
            picture = io.BytesIO()
            Image.fromarray(np.zeros((*shape, 3), np.uint8)).save(picture, "WEBP")
            pack.writestr(name, picture.getvalue())
    made = prepare(Strips(), str(path), tmp_path / "out")
    assert made.kept == 3
    found = list(csv.reader((tmp_path / "out" / QUARANTINE).open()))[1:]
    assert sorted([row, text.partition(" (")[0]] for _, row, text in found) == [
        ["", "not a column of squares of 8 pixels: train/a/03.webp"],
        ["", "not a column of squares of 8 pixels: train/a/04.webp"],
        ["", "not a readable image"],
        ["", "not named split/class/name.webp: train/02.webp"],
        ["0", "the time is neither a number nor a date"],
        ["1", "the time is neither a number nor a date"],
    ]
    with pytest.raises(UserError, match=r"pack\.zip: .*dietcl data prepare"):
        Strips(path=path).prepare(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/manifest.parquet"))


@pytest.mark.parametrize(
    "meta", ["[]", "{}", '{"size": 0}', '{"size": "x"}', '{"size": 8, "first_seen": 1}', "[" * 10**5]
)
def test_a_meta_file_that_says_nonsense_is_named(tmp_path, meta):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as pack:
        pack.writestr("meta.json", meta)
        pack.writestr("train/a/00.webp", b"")
    with pytest.raises(UserError, match=r"bad\.zip: not a zip of WebP strips"):
        prepare(Strips(), str(tmp_path / "bad.zip"), tmp_path / "out")


def test_zips_of_other_kinds_are_not_taken(tmp_path):
    (tmp_path / "text.zip").write_text("not a zip")
    with zipfile.ZipFile(tmp_path / "bare.zip", "w") as pack:
        pack.writestr("photo.jpg", b"")
    assert not any(Strips.fits(FileRoot.of(tmp_path), name) for name in ("text.zip", "bare.zip", "", "x.npz"))


def test_the_path_is_no_option_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        parse(Strips(), ["--help"], "dietcl", "")
    shown = capsys.readouterr().out
    assert "--label" in shown
    assert "--path" not in shown
    assert parse(Strips(path=Path("kept.zip")), [], "dietcl", "").path == Path("kept.zip")
