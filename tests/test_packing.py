"""Packing: the same rows in the same order, pictures close to their sources, and a stop at any moment does no harm."""

import csv
import dataclasses
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams import packer
from dietcl.streams.decode import decode
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import Facts, read_facts, write_manifest
from dietcl.streams.packer import Packed, pack
from dietcl.streams.packing import Packing
from dietcl.streams.storage import Storage
from prepared import dietcl

FORMATS = ("jpeg", "webp", "raw")
# File, height and width; every third is a JPEG, and some are smaller than what they are packed to.
SHAPES = [(40, 60), (60, 40), (48, 48), (90, 200), (20, 30), (33, 47), (100, 24), (24, 24), (150, 151), (10, 8)]
BAD = {3: "cut: off.png", 11: "none.png", 12: "words.jpg"}
COUNT = 24
SIDE = 24
FACTS = Facts(
    root="photos", source="made here", recipe="time", time_steps=7, cut="duration", label_rate=0.3, mirror=False
)


def picture(number: int, shape: tuple[int, int] | None = None) -> np.ndarray:
    """A smooth picture with colors of its own in every corner."""
    height, width = shape or SHAPES[number % len(SHAPES)]
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    bands = [200 * x + 20, 200 * y + 30, 128 + 90 * np.sin(3 * x + 2 * y + number)]
    return np.stack(bands, 2).clip(0, 255).astype(np.uint8)


def columns() -> dict[str, Any]:
    """Rows in no order, with and without labels and times, of both splits."""
    names = [BAD.get(i) or f"{'über' if i % 2 else 'a: b'}/{i}.{'jpg' if i % 3 == 0 else 'png'}" for i in range(COUNT)]
    return {
        "id": [f"id {(7 * i) % COUNT}" for i in range(COUNT)],
        "file": names,
        "offset": [-1] * COUNT,
        "label": [None if i % 5 == 0 else f"class {i % 4}" for i in range(COUNT)],
        "time": [None if i % 6 == 0 else 100.0 - i for i in range(COUNT)],
        "split": ["test" if i % 4 == 3 else "train" for i in range(COUNT)],
    }


def make_source(folder: Path, bad: bool = True) -> Path:
    """Write real files and their manifest."""
    rows = columns()
    for i, name in enumerate(rows["file"]):
        if i in BAD and not bad:
            name = rows["file"][i] = f"good{i}.png"
        path = folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == BAD[3]:
            Image.fromarray(picture(i)).save(path)
            path.write_bytes(path.read_bytes()[:-400])
        elif name == "words.jpg":
            path.write_text("These are words.")
        elif name != "none.png":
            Image.fromarray(picture(i)).save(path, quality=98, subsampling=0)
    return write_manifest(folder / "manifest.parquet", rows, FACTS)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "SHARD", 7)
    monkeypatch.setattr(packer, "_AT_ONCE", 3)


def stored(folder: Path) -> list[np.ndarray]:
    """The packed pictures, read without any of our own code but the decoder."""
    rows = pq.read_table(folder / "manifest.parquet").to_pydict()
    found = []
    for file, offset, length in zip(rows["file"], rows["offset"], rows["length"], strict=True):
        if file.endswith(".npy"):
            found.append(np.load(folder / file, mmap_mode="r")[offset])
        else:
            with Image.open(io.BytesIO((folder / file).read_bytes()[offset : offset + length])) as image:
                found.append(np.array(image))
    return found


def psnr(found: np.ndarray, expected: np.ndarray) -> float:
    error = np.mean((found.astype(float) - expected.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def resized(number: int, side: int) -> np.ndarray:
    """What a careful hand would make of a picture."""
    image = Image.fromarray(picture(number))
    shorter = min(image.size)
    if shorter <= side:
        return np.asarray(image)
    width, height = (max(side, round(length * side / shorter)) for length in image.size)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


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
    for row, words in zip(problems[1:], ("truncated", "No such file", "of no format that is known"), strict=True):
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


def content(folder: Path) -> tuple[str, list[bytes]]:
    """What must not depend on how often a packing was stopped."""
    hash = open_manifest(folder / "manifest.parquet").hash
    return hash, [path.read_bytes() for path in sorted(folder.glob("images*"))]


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("stop", [3, 7, 9, 14, 21, 24])
def test_a_packing_that_was_stopped_goes_on(source: Path, tmp_path: Path, form: str, stop: int) -> None:
    packing, out = Packing(side=SIDE, format=form), tmp_path / "out"

    def until(done: int, total: int) -> None:
        assert total == COUNT
        if done >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(source, out, packing, until)
    assert not (out / "manifest.parquet").exists()
    shards = {path: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert len(shards) == (0 if form == "raw" else (stop - 1) // 7)
    told: list[int] = []
    packed = pack(source, out, packing, lambda done, total: told.append(done))
    assert told == sorted(told)
    assert told[-1] == COUNT
    assert {path: path.stat().st_mtime_ns for path in shards} == shards  # what was whole is not written again
    whole = pack(source, tmp_path / "whole", packing)
    assert dataclasses.astuple(packed)[1:] == dataclasses.astuple(whole)[1:]
    assert content(out) == content(tmp_path / "whole")
    assert (out / "quarantine.csv").read_text() == (tmp_path / "whole" / "quarantine.csv").read_text()
    assert not (out / ".packing").exists()


CHILD = """
import sys, time
from pathlib import Path
from dietcl.streams import packer
from dietcl.streams.packing import Packing
packer.SHARD, packer._AT_ONCE = 7, 3
def tell(done, total):
    print(done, flush=True)
    time.sleep(0.05)
packer.pack(Path(sys.argv[1]), Path(sys.argv[2]), Packing(side=24, format=sys.argv[3]), tell)
"""


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_a_packing_that_was_killed_goes_on(source: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), str(out), form], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= 9:
            break
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    assert not (out / "manifest.parquet").exists()
    first = out / "images-00000.tar"
    written = first.stat().st_mtime_ns if form == "jpeg" else None
    packing = Packing(side=SIDE, format=form)
    pack(source, out, packing)
    pack(source, tmp_path / "whole", packing)
    assert content(out) == content(tmp_path / "whole")
    assert written is None or first.stat().st_mtime_ns == written


@pytest.mark.parametrize("form", ["jpeg", "raw"])
@pytest.mark.parametrize("moment", ["write_json", "open_memmap", "savez", "rmtree", "Writer"])
def test_a_stop_at_an_odd_moment(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, moment: str
) -> None:
    owner = {"open_memmap": np.lib.format, "savez": np, "rmtree": packer.shutil}.get(moment, packer)
    packing, out = Packing(side=SIDE, format=form), tmp_path / "out"

    real = getattr(owner, moment)

    def die(*arguments: Any, **options: Any) -> Any:
        if moment == "open_memmap" and "w+" not in arguments:
            return real(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, die)
        if moment != "open_memmap" or form == "raw":
            with pytest.raises(KeyboardInterrupt):
                pack(source, out, packing)
    if moment == "rmtree":  # the very last thing: all is there already
        with pytest.raises(UserError, match="holds a manifest already"):
            pack(source, out, packing)
    else:
        pack(source, out, packing)
    pack(source, tmp_path / "whole", packing)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.usefixtures("small_shards")
def test_an_unfinished_packing_with_other_options_is_refused(source: Path, tmp_path: Path) -> None:
    out, packing = tmp_path / "out", Packing(side=SIDE, format="jpeg")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(source, out, packing, stop)
    before = sorted(path.name for path in out.rglob("*"))
    other = make_source(tmp_path / "other", bad=False)
    for manifest, options in (
        (source, dataclasses.replace(packing, side=32)),
        (source, dataclasses.replace(packing, format="webp")),
        (source, dataclasses.replace(packing, quality=91)),
        (other, packing),
    ):
        with pytest.raises(UserError) as caught:
            pack(manifest, out, options)
        assert str(caught.value).startswith(f"{out}: holds an unfinished packing with other options; ")
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in out.rglob("*")) == before
    assert pack(source, out, packing).kept == COUNT - len(BAD)


def test_folders_that_hold_something_are_left_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"out: is not empty; choose another --out"):
        pack(source, out, Packing(side=SIDE))
    assert [path.name for path in out.iterdir()] == ["letter.txt"]
    (out / "letter.txt").unlink()
    pack(source, out, Packing(side=SIDE))
    with pytest.raises(UserError, match=r"out: holds a manifest already; choose another --out"):
        pack(source, out, Packing(side=SIDE))
    with pytest.raises(UserError, match="holds a manifest already"):
        pack(source, source.parent, Packing(side=SIDE))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file: cannot be made a folder"):
        pack(source, tmp_path / "file", Packing(side=SIDE))
    with pytest.raises(UserError, match=r"none\.parquet: no such manifest"):
        pack(tmp_path / "none.parquet", tmp_path / "new", Packing(side=SIDE))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_that_can_be_read(tmp_path: Path, form: str) -> None:
    rows = columns()
    manifest = write_manifest(tmp_path / "in" / "manifest.parquet", rows, FACTS)
    with pytest.raises(UserError, match="in/photos: the folder that the manifest names is not there"):
        pack(manifest, tmp_path / "out", Packing(side=SIDE, format=form))
    (tmp_path / "in" / "photos").mkdir()
    with pytest.raises(UserError) as caught:
        pack(manifest, tmp_path / "out", Packing(side=SIDE, format=form))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{manifest}: not one image can be read")
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    named = Path(message.partition("see ")[2].partition(";")[0])
    assert len(named.read_text().splitlines()) == COUNT + 1
    # Once the disk with the images is there, the same command does its work.
    make_source(tmp_path / "in")
    write_manifest(manifest, rows, FACTS)
    assert pack(manifest, tmp_path / "out", Packing(side=SIDE, format=form)).kept == COUNT - len(BAD)


# The command.


def test_the_command(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_source(tmp_path / "my photos")
    monkeypatch.chdir(tmp_path / "my photos")
    plain = dietcl(capsys, "data", "pack", "manifest.parquet", "--side", SIDE)
    assert plain.code == 0, plain.said
    out = tmp_path / f"my photos-{SIDE}"  # beside the manifest's folder
    assert f"{COUNT - len(BAD)} images in" in plain.said
    assert f"{len(BAD)} images cannot be read and were left out: {out / 'quarantine.csv'}" in plain.out
    assert f"next: dietcl train --stream '{out / 'manifest.parquet'}'" in plain.out
    assert len(stored(out)) == COUNT - len(BAD)
    assert (out / "images.npy").is_file()  # small ones are raw

    as_json = dietcl(
        *(capsys, "data", "pack", "manifest.parquet", "--side", 72, "--format", "webp", "--quality", 50),
        *("--out", "../elsewhere", "--json"),
    )
    assert as_json.code == 0, as_json.said
    found = json.loads(as_json.out)
    assert Packed(**{**found, "manifest": Path(found["manifest"])}).kept == COUNT - len(BAD)
    assert found["bad"] == len(BAD)
    assert found["bytes"] == (tmp_path / "elsewhere/images-00000.tar").stat().st_size
    with tarfile.open(tmp_path / "elsewhere/images-00000.tar") as tar:
        assert {name.rpartition(".")[2] for name in tar.getnames()} == {"webp"}
    again = dietcl(capsys, "data", "pack", "manifest.parquet", "--out", "../elsewhere")
    assert again.code == 2
    assert "holds a manifest already" in again.err


def test_the_command_goes_on_or_starts_over(capsys: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for form, other in (("jpeg", "webp"), ("raw", "jpeg")):
        with pytest.raises(KeyboardInterrupt):
            pack(source, out, Packing(side=SIDE, format=form), stop)
        options = ["data", "pack", source, "--out", out, "--side", SIDE, "--format", other]
        refused = dietcl(capsys, *options)
        assert refused.code == 2
        assert "--fresh" in refused.err
        done = dietcl(capsys, *options, "--fresh", "--json")
        assert done.code == 0, done.said
        assert {path.name for path in out.glob("images*")} == {"images-00000.tar"}
        pack(source, tmp_path / f"whole-{other}", Packing(side=SIDE, format=other))
        assert content(out) == content(tmp_path / f"whole-{other}")
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["The manifest (.parquet)"]),
        (["none.parquet"], ["none.parquet: no such manifest"]),
        (["{source}", "--side", "7"], ["--side 7", "8 to 4096"]),
        (["{source}", "--side", "5000"], ["--side 5000"]),
        (["{source}", "--side", "wide"], ["--side", "wide"]),
        (["{source}", "--quality", "0"], ["--quality 0", "1 to 100"]),
        (["{source}", "--quality", "101"], ["--quality 101"]),
        (["{source}", "--format", "gif"], ["--format", "gif"]),
        (["{source}", "--depth", "3"], ["--depth"]),
        (["{source}", "--out", "taken"], ["taken"]),
        (["{source}", "--out", "full"], ["full: is not empty"]),
        (["text.parquet", "--out", "new"], ["text.parquet: not a readable Parquet file"]),
    ],
)
def test_wrong_options_get_a_sentence_and_exit_code_2(
    capsys: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    (tmp_path / "text.parquet").write_text("words")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    result = dietcl(capsys, "data", "pack", *(option.format(source=source) for option in options))
    assert result.code == 2, result.said
    assert all(word in result.said for word in words), result.said
    assert "Traceback" not in result.said
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".index"] == before


def test_ctrl_c_is_no_traceback(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom dietcl.streams import packer\nfrom dietcl.cli import main\n"
        "packer.SHARD, packer._AT_ONCE = 7, 3\nshard = packer._pack_shard\n"
        "def slow(*arguments):\n    print('at work', flush=True)\n    time.sleep(0.3)\n    shard(*arguments)\n"
        "packer._pack_shard = slow\nsys.exit(main(sys.argv[1:]))"
    )
    arguments = ["data", "pack", str(source), "--out", str(tmp_path / "out"), "--side", "24"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them and their children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "at work\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "manifest.parquet").exists()
