"""Features that the cache holds and images that it saves from being read: nobody may notice, but by the time."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dietcl
from dietcl.measure import measure
from dietcl.streams.lazy_images import Known, LazyImages

OPTIONS = {
    "encoder": "test_vit",
    "weights": "random",
    "image_size": 32,
    "device": "cpu",
    "recipe": "data",
    "time_steps": 1,
}


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """JPEGs of two classes, and a cache of this test's own."""
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for name, brightness in (("cat", 60), ("dog", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = generator.normal(brightness, 40, (40, 56, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.jpg")
    return tmp_path / "photos"


def empty_cache() -> None:
    shutil.rmtree(Path(os.environ["DIETCL_CACHE"]) / "features", ignore_errors=True)


def lazy(count: int = 5, known: int = 2) -> tuple[LazyImages, torch.Tensor, list[list[int]]]:
    """Images of which some are known, what they are, and which of them were read."""
    images, read = torch.rand(count, 3, 4, 4), []

    def reading(some):
        read.append(some.tolist())
        return images[some]

    facts = Known(
        "features", np.ones((count, 16), np.uint8), np.zeros((count, 2), np.float16), np.arange(count) < known
    )
    return LazyImages(facts, reading, 4, torch.device("cpu")), images, read


def test_lazy_images_are_read_when_something_computes_with_them_and_once():
    images, expected, read = lazy()
    assert (images.shape, len(images), images.device.type) == ((5, 3, 4, 4), 5, "cpu")
    assert not read
    assert torch.equal(images * 2, expected * 2)
    assert torch.equal(torch.cat([images, images]), torch.cat([expected, expected]))
    assert torch.equal(images[1], expected[1])
    assert torch.equal(torch.nn.functional.avg_pool2d(images, 2), torch.nn.functional.avg_pool2d(expected, 2))
    assert read == [[0, 1, 2, 3, 4]]


def test_some_lazy_images_are_read_without_the_others():
    images, expected, read = lazy()
    assert torch.equal(images.some(np.array([4, 2])), expected[[4, 2]])
    part = images[1:4]
    assert isinstance(part, LazyImages)
    assert part.known.is_known.tolist() == [True, False, False]
    assert torch.equal(part.some(np.array([2])), expected[[3]])
    assert read == [[4, 2], [3]]


def test_a_method_that_looks_at_pixels_gets_them_though_features_are_known(photos, tmp_path):
    files = sorted(map(str, photos.rglob("*.jpg")))
    run = dietcl.train(photos, "dualnet", out=tmp_path / "dual", train="head", width=16, budget=1, **OPTIONS)
    empty_cache()
    cold = dietcl.load(run.path, "cpu").probabilities(files)
    dietcl.train(photos, "ncm", out=tmp_path / "ncm", **OPTIONS)  # keeps features of the same encoder
    warm = dietcl.load(run.path, "cpu")
    assert warm.lookup is not None
    np.testing.assert_array_equal(warm.probabilities(files), cold)
    np.testing.assert_array_equal(dietcl.load(run.path, "cpu", cache_size="0").probabilities(files), cold)


def test_features_of_some_files_of_a_batch_are_read_and_of_others_computed(photos, tmp_path):
    files = sorted(map(str, photos.rglob("*.jpg")))
    model = dietcl.load(dietcl.train(photos, "ncm", out=tmp_path / "ncm", **OPTIONS).path, "cpu")
    empty_cache()
    expected = model.probabilities(files, batch=8)
    empty_cache()
    again = dietcl.load(tmp_path / "ncm", "cpu")
    again.predict(files[::2], batch=8)
    np.testing.assert_allclose(again.probabilities(files, batch=8), expected, atol=2e-3)


def test_an_unreadable_image_stays_unreadable_however_often_it_is_asked_for(photos, tmp_path):
    run = dietcl.train(photos, "ncm", out=tmp_path / "ncm", **OPTIONS)
    manifest = dietcl.prepare(photos)
    broken = photos / "cat" / "3.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:300])
    for _ in range(2):
        model = dietcl.load(run.path, "cpu")
        found = measure(model, manifest, "all")
        assert (int(found.confusion.count.sum()), len(found.unreadable)) == (23, 1)
        with pytest.raises(dietcl.UserError, match=r"3\.jpg"):
            model.predict(str(broken))
    broken.write_bytes(whole)
    assert not measure(dietcl.load(run.path, "cpu"), manifest, "all").unreadable


def test_a_measurement_keeps_the_features_of_few_images(photos, tmp_path):
    run = dietcl.train(photos, "ncm", out=tmp_path / "ncm", **OPTIONS)
    empty_cache()
    measure(dietcl.load(run.path, "cpu"), dietcl.prepare(photos), "all")
    model = dietcl.load(run.path, "cpu")
    assert model.lookup is not None
    model.predict(sorted(map(str, photos.rglob("*.jpg"))))
    segments = [*(Path(os.environ["DIETCL_CACHE"]) / "features").rglob("*.rows")]
    assert len(segments) == 1  # nothing was left to compute and keep


def test_images_that_take_each_others_place_with_their_size_and_time_are_told_apart(photos, tmp_path):
    # As `cp -p` or an archive leaves them.
    one, other = photos / "cat" / "0.jpg", photos / "dog" / "0.jpg"
    run = dietcl.train(photos, "ncm", out=tmp_path / "ncm", **OPTIONS)
    manifest, size = dietcl.prepare(photos), max(one.stat().st_size, other.stat().st_size)
    for file in (one, other):  # bytes behind the end of a JPEG are ignored
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))
        os.utime(file, (1e9, 1e9))
    before = measure(dietcl.load(run.path, "cpu"), manifest, "all").confusion
    contents = one.read_bytes(), other.read_bytes()
    for file, content in zip((other, one), contents, strict=True):
        file.write_bytes(content)
        os.utime(file, (1e9, 1e9))
    after = measure(dietcl.load(run.path, "cpu"), manifest, "all").confusion
    fresh = measure(dietcl.load(run.path, "cpu", cache_size="0"), manifest, "all").confusion
    assert np.array_equal(after.matrix(), fresh.matrix())
    assert not np.array_equal(after.matrix(), before.matrix())
