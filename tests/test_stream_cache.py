"""Kept streams: what is mapped is what would be cut, and whatever is wrong with it, it is cut anew."""

import dataclasses
import itertools
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.streams import index as index_module
from dietcl.streams import stream_cache
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import write_manifest
from dietcl.streams.options import Mix, Recipe
from dietcl.streams.sampler import pools_of, sample
from dietcl.streams.stream import Stream, build_stream
from helpers.tiny import tiny_config, tiny_learner, write_blobs

RECIPES = {
    "class": Recipe(recipe="class", time_steps=3, label_rate=0.2),
    "time": Recipe(recipe="time", time_steps=5, label_rate=0.3, at_least_one=True, test_per_time_step=3),
    "duration": Recipe(recipe="time", time_steps=4, cut="duration", label_rate=0.1),
    "data": Recipe(recipe="data", time_steps=7, label_rate=0.5),
    "no label": Recipe(recipe="data", time_steps=2, label_rate=0.0),
}
CLASS = RECIPES["class"]
ARRAYS = ("labeled", "labels", "unlabeled", "unplaced", "test_rows", "test_labels", "index_row")


@pytest.fixture(autouse=True)
def keep_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_cache, "LARGE", 10)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of all streams that were cut."""
    seeds: list[int] = []

    def counted(name: str, index: Index, recipe: Recipe, seed: int) -> Stream:
        seeds.append(seed)
        return build_stream(name, index, recipe, seed)

    monkeypatch.setattr(stream_cache, "build_stream", counted)
    return seeds


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_blobs(tmp_path / "blobs")


def folders(index: Index) -> list[Path]:
    """What is kept beside an index."""
    assert index.folder is not None
    return sorted(path for path in (index.folder / "streams").iterdir())


def assert_same(found: Any, expected: Any, path: str = "stream") -> None:
    """Compare two streams field by field: types, values, and the kind of numbers."""
    assert type(found) is type(expected), path
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name), f"{path}.{field.name}")
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, path
        np.testing.assert_array_equal(found, expected, err_msg=path)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected), path
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    else:
        assert found == expected, path


def is_mapped(stream: Stream) -> bool:
    """Tell whether the rows lie in a file."""
    base: Any = stream.index_row
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return not isinstance(base, np.ndarray)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("seed", [0, 7])
def test_what_is_mapped_is_what_would_be_cut(manifest: Path, builds: list[int], name: str, seed: int) -> None:
    index, recipe = open_manifest(manifest), RECIPES[name]
    expected = build_stream("blobs", index, recipe, seed)
    for _ in range(3):
        found = stream_cache.cached_stream("blobs", open_manifest(manifest), recipe, seed)
        assert_same(found, expected)
        assert is_mapped(found)
    assert builds == [seed]  # once, and then never again
    assert stream_cache.cached_stream("other name", index, recipe, seed).name == "other name"
    assert len(builds) == 1
    assert_same(found.union(), expected.union())


def test_time_steps_without_images(tmp_path: Path, builds: list[int]) -> None:
    count = 30
    path = write_manifest(
        tmp_path / "manifest.parquet",
        {
            "id": [str(i) for i in range(count)],
            "file": ["x.npy"] * count,
            "offset": np.arange(count),
            "label": [None if i % 5 == 0 else f"Klasse „{i % 3}“ 日本" for i in range(count)],
            "time": np.repeat([0.0, 1.0, 9.0], 10),  # nothing arrives between
            "split": ["train"] * count,
        },
    )
    recipe = Recipe(recipe="time", cut="duration", time_steps=6, label_rate=0.5)
    expected = build_stream("s", index := open_manifest(path), recipe, 0)
    assert any(not len(step.unlabeled) for step in expected.steps)
    assert not any(len(test.rows) for test in expected.tests)
    for _ in range(2):
        assert_same(stream_cache.cached_stream("s", index, recipe, 0), expected)
    assert len(builds) == 1


def test_a_small_stream_is_not_kept(manifest: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_manifest(manifest)
    monkeypatch.setattr(stream_cache, "LARGE", len(index) + 1)
    for _ in range(2):
        assert_same(stream_cache.cached_stream("s", index, CLASS, 0), build_stream("s", index, CLASS, 0))
    assert len(builds) == 2
    assert index.folder is not None
    assert not (index.folder / "streams").exists()
    monkeypatch.setattr(stream_cache, "LARGE", len(index))
    stream_cache.cached_stream("s", index, CLASS, 0)
    assert len(folders(index)) == 1


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half a header":
        path.write_bytes(path.read_bytes()[:20])
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-5])
    elif how == "shorter than said":  # whole by itself, but not all that there was
        if path.suffix == ".npy":
            np.save(path, np.load(path)[:-1])
        else:
            facts = json.loads(path.read_text())
            path.write_text(json.dumps({"identity": facts["identity"]}))
    elif how == "another kind":
        path.write_text("null")


HOW = ("missing", "empty", "half a header", "short", "shorter than said", "another kind")
DAMAGES = itertools.product([*(f"{array}.npy" for array in ARRAYS), "stream.json"], HOW)


# Of an array that is empty, nothing is missing.
@pytest.mark.parametrize(("name", "how"), [pair for pair in DAMAGES if pair != ("unplaced.npy", "shorter than said")])
def test_a_damaged_one_is_cut_again_and_mended(
    manifest: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    index = open_manifest(manifest)
    expected = stream_cache.cached_stream("s", index, CLASS, 0)
    assert len(builds) == 1
    (folder,) = folders(index)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(whole) == {*(f"{array}.npy" for array in ARRAYS), "stream.json"}
    shutil.copytree(folder, folder.with_name(".copy"))  # `expected` is mapped from what is damaged now
    for array in folder.iterdir():
        array.unlink()
        shutil.copy(folder.with_name(".copy") / array.name, array)
    shutil.rmtree(folder.with_name(".copy"))
    damage(folder / name, how)
    for _ in range(2):
        assert_same(stream_cache.cached_stream("s", index, CLASS, 0), expected)
    assert len(builds) == 2  # only the first time: then it is whole again
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert folders(index) == [folder]


@pytest.mark.parametrize("how", ["missing", "empty", "half a header", "short", "another kind"])
@pytest.mark.parametrize("name", ["label.npy", "files.arrow", "index.json"])
def test_an_index_is_mended_the_same_way(manifest: Path, name: str, how: str) -> None:
    index = open_manifest(manifest)
    expected = (index.hash, index.label.tolist(), [index.files[file] for file in index.file])
    assert index.folder is not None
    fresh = write_blobs(manifest.parent / "other")  # what is damaged must not be mapped by anyone
    damage(open_manifest(fresh).folder / name, how)  # type: ignore[operator]
    for _ in range(2):
        found = open_manifest(fresh)
        assert (found.hash, found.label.tolist(), [found.files[file] for file in found.file]) == expected
        assert found.folder is not None


def test_at_most_a_few_are_kept_and_the_oldest_go(manifest: Path, builds: list[int]) -> None:
    index = open_manifest(manifest)
    streams = []
    for seed in range(stream_cache.MOST + 3):
        streams.append(stream_cache.cached_stream("s", index, CLASS, seed))
        for folder in folders(index):  # clocks may be coarse: let each be older than the next
            os.utime(folder, ns=(folder.stat().st_mtime_ns - 10**9,) * 2)
        assert len(folders(index)) == min(seed + 1, stream_cache.MOST)
    assert builds == [*range(stream_cache.MOST + 3)]
    for seed in range(3, stream_cache.MOST + 3):
        stream_cache.cached_stream("s", index, CLASS, seed)
    assert len(builds) == stream_cache.MOST + 3
    # Who still has one that was removed goes on reading it.
    for seed, stream in enumerate(streams):
        assert_same(stream, build_stream("s", index, CLASS, seed))
    stream_cache.cached_stream("s", index, CLASS, 0)
    assert builds[-1] == 0
    assert len(folders(index)) == stream_cache.MOST


def test_seeds_recipes_and_manifests_are_kept_apart(manifest: Path, builds: list[int]) -> None:
    index = open_manifest(manifest)
    variants: list[tuple[Recipe, int]] = [
        (CLASS, 0),
        (CLASS, 1),
        (dataclasses.replace(CLASS, label_rate=0.3), 0),
        (dataclasses.replace(CLASS, at_least_one=True), 0),
    ]
    assert len(variants) <= stream_cache.MOST
    for _ in range(2):
        for recipe, seed in variants:
            assert_same(stream_cache.cached_stream("s", index, recipe, seed), build_stream("s", index, recipe, seed))
    assert len(builds) == len(folders(index)) == len(variants)
    assert len({folder.name for folder in folders(index)}) == len(variants)


def test_a_changed_manifest_gets_other_streams(manifest: Path, builds: list[int]) -> None:
    first = stream_cache.cached_stream("s", open_manifest(manifest), CLASS, 0)
    before = dataclasses.replace(first, index_row=first.index_row.copy())
    write_blobs(manifest.parent, classes=5)
    os.utime(manifest, ns=(1, 1))
    index = open_manifest(manifest)
    second = stream_cache.cached_stream("s", index, CLASS, 0)
    assert len(builds) == 2
    assert second.identity != first.identity
    assert len(second.index_row) == len(index) != len(first.index_row)
    assert_same(second, build_stream("s", index, CLASS, 0))
    np.testing.assert_array_equal(first.index_row, before.index_row)  # who has the old one keeps it
    assert len(folders(index)) == 1
    # Nothing is left of the old ones.
    assert len(list((manifest.parent / "manifest.index").glob("*/streams/*"))) == 1


def test_an_index_that_is_not_kept_keeps_no_stream(
    manifest: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest.with_name("manifest.index").write_text("in the way")
    (tmp_path / "blocked").write_text("in the way")
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "blocked"))
    monkeypatch.setattr(index_module.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    index = open_manifest(manifest)
    assert index.folder is None
    for _ in range(2):
        assert_same(stream_cache.cached_stream("s", index, CLASS, 0), build_stream("s", index, CLASS, 0))
    assert len(builds) == 2
    assert not list((tmp_path / "temporary").iterdir())


def test_a_folder_that_cannot_be_written_to(manifest: Path, builds: list[int]) -> None:
    index = open_manifest(manifest)
    assert index.folder is not None
    (index.folder / "streams").write_text("in the way")  # for root, too
    for _ in range(2):
        assert_same(stream_cache.cached_stream("s", index, CLASS, 0), build_stream("s", index, CLASS, 0))
    assert len(builds) == 2


def test_a_full_disk_leaves_nothing_behind(manifest: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    index = open_manifest(manifest)
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        assert_same(stream_cache.cached_stream("s", index, CLASS, 0), build_stream("s", index, CLASS, 0))
    assert folders(index) == []
    assert is_mapped(stream_cache.cached_stream("s", index, CLASS, 0))


def test_another_process_that_was_faster(manifest: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_manifest(manifest)
    inner: list[Stream] = []
    write = stream_cache._write

    def write_while_another_does(stream: Stream, folder: Path) -> None:
        if not inner:
            monkeypatch.setattr(stream_cache, "_write", write)
            inner.append(stream_cache.cached_stream("s", index, CLASS, 0))
        write(stream, folder)

    monkeypatch.setattr(stream_cache, "_write", write_while_another_does)
    outer = stream_cache.cached_stream("s", index, CLASS, 0)
    assert_same(outer, inner[0])
    assert len(folders(index)) == 1
    stream_cache.cached_stream("s", index, CLASS, 0)
    assert len(builds) == 2


def test_mapped_rows_are_read_only_and_can_be_drawn_from(manifest: Path) -> None:
    index = open_manifest(manifest)
    built = build_stream("s", index, CLASS, 0)
    mapped = stream_cache.cached_stream("s", index, CLASS, 0)
    arrays = [mapped.index_row, *(getattr(step, name) for step in mapped.steps for name in ARRAYS[:3])]
    arrays += [array for test in mapped.tests for array in (test.rows, test.labels)]
    for array in arrays:
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for mix in (
        Mix(unlabeled=1, labeled=1, memory=1),
        Mix(memory=1, capacity=5),
        Mix(memory=1, by_class=True, capacity=4),
        Mix(memory=1, by_time_step=True, past_only=True),
    ):
        for t in (2, 3):
            draws = []
            for stream in (built, mapped):
                pools = pools_of(stream, t, mix)
                draws.append(sample(pools, mix.counts(12, pools), (1, 2)))
            assert_same(draws[1], draws[0])


@pytest.mark.parametrize("method", ["dietcl", "gdumb", "ncm"])
def test_a_run_on_a_kept_stream_is_the_same_run(blobs: Path, method: str) -> None:
    config = tiny_config(blobs, method, budget="3")
    index = open_manifest(blobs)
    stream = stream_cache.cached_stream(config.stream, index, config.recipe, config.seed)
    assert is_mapped(stream)
    learners = [tiny_learner(config, index=index), tiny_learner(config, stream, index)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of tensors on arrays that must not be written to
        for learner in learners:
            assert [*learn(learner)][-1] == 3
    first, second = learners
    assert first.counts.count.sum() > 0
    for name in ("correct", "count", "loss_sum"):
        np.testing.assert_array_equal(getattr(first.counts, name), getattr(second.counts, name))
    weights = second.network.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in first.network.state_dict().items())
    start = tiny_learner(config, index=index).network.state_dict()
    if method not in ("ncm",):
        assert any(not torch.equal(value, start[name]) for name, value in weights.items() if name in start)
