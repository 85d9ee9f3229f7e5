"""Packs of WebP strips: real zips, and what is wrong with them."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.index import open_manifest
from dietcl.streams.sources.strips import Strips
from dietcl.streams.storage import Storage


def write_pack(path: Path) -> np.ndarray:
    """Write 3 training images of class a and 2 test images of class b; returns all of them."""
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    with zipfile.ZipFile(path, "w") as pack:
        pack.writestr("meta.json", json.dumps({"size": 8, "classes": ["a", "b"]}))
        for name, strip in (("train/a/00.webp", images[:3]), ("test/b/00.webp", images[3:])):
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
