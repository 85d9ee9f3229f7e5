"""Packing: the same rows in the same order, pictures close to their sources, and a stop at any moment does no harm."""

import csv
import dataclasses
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dietcl.streams import packer
from dietcl.streams.decode import decode
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import Facts, read_facts, write_manifest
from dietcl.streams.options import Packing
from dietcl.streams.packer import pack
from dietcl.streams.storage import Storage
from helpers.pack_sources import (
    BAD,
    COUNT,
    FACTS,
    FORMATS,
    SHAPES,
    SIDE,
    picture,
    psnr,
    resized,
    stored,
)


@pytest.mark.parametrize("form", FORMATS)
def test_rows_stay_and_bad_ones_are_listed(source: Path, tmp_path: Path, form: str) -> None:
    packed = pack(source, tmp_path / "out", Packing(side=SIDE, format=form))
    good = [i for i in range(COUNT) if i not in BAD]
    assert dataclasses.astuple(packed)[:3] == (tmp_path / "out" / "manifest.parquet", len(good), len(BAD))
    before, after = (pq.read_table(path).to_pydict() for path in (source, packed.manifest))
    for name in ("id", "label", "time", "split"):
        assert after[name] == [before[name][i] for i in good], name
    with (tmp_path / "out" / "quarantine.csv").open(newline="", encoding="utf-8") as file:
        problems = list(csv.reader(file))
    assert problems[0] == ["file", "row", "problem"]
    places = [(row[0], int(row[1])) for row in problems[1:]]
    assert places == [(str(source.parent / "photos" / BAD[i]), i) for i in sorted(BAD)]
    for row, words in zip(problems[1:], ("truncated", "No such file", "unknown format"), strict=True):
        assert words in row[2]
    assert read_facts(packed.manifest) == dataclasses.replace(FACTS, root=".")
    files = {path.name for path in (tmp_path / "out").iterdir()} - {"manifest.index"}
    images = "images.npy" if form == "raw" else "images-00000.tar"
    assert files == {"manifest.parquet", "quarantine.csv", images}
    assert packed.bytes == (tmp_path / "out" / images).stat().st_size
    # Without its source it is as whole as with it.
    moved = tmp_path / "moved"
    (tmp_path / "out").rename(moved)
    storage = Storage(open_manifest(moved / "manifest.parquet"), SIDE)
    storage.read(np.arange(len(good)))
    assert not storage.bad


@pytest.mark.parametrize("side", [8, SIDE, 64])
@pytest.mark.parametrize("form", ["jpeg", "webp"])
def test_whole_pictures_of_the_wanted_size_close_to_their_sources(
    source: Path, tmp_path: Path, form: str, side: int
) -> None:
    pack(source, tmp_path / "out", Packing(side=side, format=form, quality=95))
    good = [i for i in range(COUNT) if i not in BAD]
    for i, found in zip(good, stored(tmp_path / "out"), strict=True):
        height, width = SHAPES[i % len(SHAPES)]
        shorter = min(height, width)
        if shorter <= side:
            assert found.shape == (height, width, 3)  # never enlarged
        else:
            assert min(found.shape[:2]) == side
        scale = min(1, side / shorter)
        assert abs(found.shape[0] - height * scale) <= 1
        assert abs(found.shape[1] - width * scale) <= 1
        expected = resized(i, side)
        if found.shape == expected.shape:
            assert psnr(found, expected) > (30 if side > 8 else 26), i
        # A JPEG is reduced by whole blocks, and the last of them may be mostly padding.
        off = np.abs(found.reshape(-1, 3).mean(0) - picture(i).reshape(-1, 3).mean(0)).max()
        assert off < (4 if side > 8 else 10)


@pytest.mark.parametrize("form", ["raw", "auto"])
def test_raw_squares_are_what_would_be_read(source: Path, tmp_path: Path, form: str) -> None:
    pack(source, tmp_path / "out", Packing(side=SIDE, format=form))
    good = np.array([i for i in range(COUNT) if i not in BAD])
    expected = Storage(open_manifest(source), SIDE, bad_share=1).read(good).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(np.stack(stored(tmp_path / "out")), expected)
    storage = Storage(open_manifest(tmp_path / "out" / "manifest.parquet"), SIDE)
    np.testing.assert_array_equal(storage.read(np.arange(len(good))).permute(0, 2, 3, 1).numpy(), expected)


def test_a_worse_quality_is_smaller(source: Path, tmp_path: Path) -> None:
    for form in ("jpeg", "webp"):
        sizes = []
        for quality in (30, 98):
            packed = pack(source, tmp_path / f"{form}{quality}", Packing(side=64, format=form, quality=quality))
            sizes.append(sum(pq.read_table(packed.manifest)["length"].to_pylist()))
        assert sizes[0] < 0.8 * sizes[1]


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", FORMATS)
def test_several_shards(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Rows cross the borders of shards and of the batches in which manifests are read."""
    monkeypatch.setattr("dietcl.streams.manifest.BATCH", 5)
    packing = Packing(side=SIDE, format=form)
    packed = pack(source, tmp_path / "many", packing)
    monkeypatch.setattr(packer, "SHARD", 1000)
    whole = pack(source, tmp_path / "one", packing)
    for one, other in zip(stored(tmp_path / "many"), stored(tmp_path / "one"), strict=True):
        np.testing.assert_array_equal(one, other)
    rows, expected = (pq.read_table(path).to_pydict() for path in (packed.manifest, whole.manifest))
    assert all(rows[name] == expected[name] for name in ("id", "label", "time", "split", "length"))
    if form == "raw":
        assert set(rows["file"]) == {"images.npy"}
        return
    good = [i for i in range(COUNT) if i not in BAD]
    assert rows["file"] == [f"images-{i // 7:05d}.tar" for i in good]
    assert packed.bytes == sum(path.stat().st_size for path in (tmp_path / "many").glob("images*"))


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", ["jpeg", "webp"])
def test_shards_are_tar_files_that_any_tool_reads(source: Path, tmp_path: Path, form: str) -> None:
    pack(source, tmp_path / "out", Packing(side=SIDE, format=form))
    rows = pq.read_table(tmp_path / "out" / "manifest.parquet").to_pydict()
    places = list(zip(rows["file"], rows["offset"], rows["length"], strict=True))
    found = {}
    for path in sorted((tmp_path / "out").glob("*.tar")):
        content = path.read_bytes()
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            for member in members:
                data = tar.extractfile(member).read()  # type: ignore[union-attr]
                assert content[member.offset_data : member.offset_data + member.size] == data
                found[path.name, member.offset_data, member.size] = (member.name, data)
        listed = subprocess.run(["tar", "tf", str(path)], capture_output=True, text=True, check=True)
        assert listed.stdout.split() == [member.name for member in members]
    assert list(found) == places
    good = [i for i in range(COUNT) if i not in BAD]
    kind = "jpg" if form == "jpeg" else form
    assert [name for name, _ in found.values()] == [f"{i:09d}.{kind}" for i in good]
    for i, (_, data) in zip(good, found.values(), strict=True):
        assert psnr(decode(data, SIDE), stored(tmp_path / "out")[good.index(i)]) > 30


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_turned_photo_ends_upright(tmp_path: Path, form: str, orientation: int) -> None:
    upright = np.zeros((40, 80, 3), np.uint8)
    upright[:20, :40], upright[20:, 40:] = (220, 30, 30), (30, 30, 220)
    turns = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(upright).transpose(turns[orientation]).save(tmp_path / "a.jpg", quality=95, exif=exif)
    rows = {"id": ["a"], "file": ["a.jpg"], "offset": [-1], "label": ["x"], "time": [0.0], "split": ["train"]}
    pack(write_manifest(tmp_path / "manifest.parquet", rows), tmp_path / "out", Packing(side=20, format=form))
    (found,) = stored(tmp_path / "out")
    assert found.shape == ((20, 20, 3) if form == "raw" else (20, 40, 3))
    assert np.abs(found[3, 3].astype(int) - (220, 30, 30)).max() < 30
    assert np.abs(found[-3, -3].astype(int) - (30, 30, 220)).max() < 30
    if form != "raw":
        data = (tmp_path / "out" / "images-00000.tar").read_bytes()
        assert b"Exif" not in data  # else it would be turned once more


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("gray", [False, True])
def test_manifests_of_packs(tmp_path: Path, form: str, gray: bool) -> None:
    images = np.stack([picture(i, (20, 20)) for i in range(9)])
    large = np.stack([picture(i, (50, 50)) for i in range(4)])
    np.save(tmp_path / "a.npy", images[..., 0] if gray else images)
    np.save(tmp_path / "b.npy", large[..., 0] if gray else large)
    order = [("a.npy", 8), ("b.npy", 1), ("a.npy", 0), ("a.npy", 3), ("b.npy", 0)]
    rows = {
        "id": [f"{file}{place}" for file, place in order],
        "file": [file for file, _ in order],
        "offset": [place for _, place in order],
        "label": ["x", "y", None, "x", "y"],
        "time": np.arange(5.0),
        "split": ["train", "test", "train", "train", "train"],
    }
    manifest = write_manifest(tmp_path / "in" / "manifest.parquet", rows, Facts(root=".."))
    packed = pack(manifest, tmp_path / "out", Packing(side=32, format=form, quality=95))
    assert (packed.kept, packed.bad) == (5, 0)
    for (file, place), found in zip(order, stored(tmp_path / "out"), strict=True):
        source = {"a.npy": images, "b.npy": large}[file][place]
        source = np.repeat(source[..., :1], 3, 2) if gray else source
        side = 32 if form == "raw" or file == "b.npy" else 20  # a small one keeps its size, except as a raw square
        assert found.shape == (side, side, 3)
        expected = np.asarray(Image.fromarray(source).resize((side, side), Image.Resampling.BILINEAR))
        assert psnr(found, expected) > 30


@pytest.mark.parametrize(("form", "length"), [("webp", 17_000), ("jpeg", 66_000), ("raw", 66_000)])
def test_a_picture_too_long_for_its_format_is_one_bad_picture(tmp_path: Path, form: str, length: int) -> None:
    Image.new("RGB", (length, 8), (9, 99, 199)).save(tmp_path / "long.png", compress_level=1)
    Image.fromarray(picture(0)).save(tmp_path / "good.png")
    rows = {
        "id": ["a", "b", "c"],
        "file": ["good.png", "long.png", "good.png"],
        "offset": [-1] * 3,
        "label": ["x"] * 3,
        "time": [0.0] * 3,
        "split": ["train"] * 3,
    }
    packed = pack(write_manifest(tmp_path / "manifest.parquet", rows), tmp_path / "out", Packing(side=8, format=form))
    assert (packed.kept, packed.bad) == ((3, 0) if form == "raw" else (2, 1))
    assert pq.read_table(packed.manifest)["id"].to_pylist() == (["a", "b", "c"] if form == "raw" else ["a", "c"])
    assert len(stored(tmp_path / "out")) == packed.kept
    assert ("long.png" in (tmp_path / "out" / "quarantine.csv").read_text()) == (form != "raw")
