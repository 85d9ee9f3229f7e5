"""Scikit-learn's digits as a source."""

import sys
from pathlib import Path

import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.streams.index import open_manifest
from dietcl.streams.sources import Digits


def test_images_labels_and_split(cache: Path) -> None:
    manifest = Digits().prepare(cache)
    index = open_manifest(manifest)
    images = np.load(manifest.with_name("images.npy"), mmap_mode="r")
    assert (images.shape, images.dtype) == ((1797, 32, 32), np.uint8)
    assert images.max() > 240
    assert index.classes == tuple("0123456789")
    assert np.isnan(index.time).all()
    for digit in range(10):
        share = (index.split[index.label == digit] == 1).mean()
        assert share == pytest.approx(0.25, abs=0.01)


def test_split_depends_on_the_seed_alone(cache: Path, tmp_path: Path) -> None:
    first, again = (Digits(size=8).prepare(folder) for folder in (cache, tmp_path))
    assert first.read_bytes() == again.read_bytes()
    assert first.with_name("images.npy").read_bytes() == again.with_name("images.npy").read_bytes()
    other = open_manifest(Digits(size=8, seed=1).prepare(cache))
    assert not np.array_equal(open_manifest(first).split, other.split)


def test_missing_scikit_learn_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r"pip install 'dietcl\[digits\]'"):
        Digits().prepare(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"test_share": 1.0}, {"test_share": -0.1}, {"size": 4}])
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, float]) -> None:
    with pytest.raises(UserError, match="--source." + next(iter(options)).replace("_", "-")):
        Digits(**options).prepare(tmp_path)  # type: ignore[arg-type]
