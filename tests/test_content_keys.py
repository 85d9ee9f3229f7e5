"""Content keys: those of the bytes that are there now, whatever the memo says, and without reading what is known."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.feature_cache import cache_usage
from dietcl.streams.content_keys import ContentKeys, content_key, pixels_key
from dietcl.streams.decode import Unreadable
from dietcl.streams.image_reader import ImageReader
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import write_manifest

COUNT = 12
KINDS = ("files", "shards", "packs")
ROWS = np.arange(COUNT)
DATA = [b"image %d, " % (i % 9) * (1 + i % 9) for i in range(COUNT)]  # the last three repeat the first


def write_images(folder: Path, kind: str) -> Path:
    """Write images of a kind, in several files, and their manifest."""
    folder.mkdir(parents=True)
    columns: dict[str, Any] = {
        "id": [f"image {i}" for i in range(COUNT)],
        "label": ["a"] * COUNT,
        "time": [0.0] * COUNT,
        "split": ["train"] * COUNT,
    }
    if kind == "files":
        columns |= {"file": [f"{i}.jpg" for i in range(COUNT)], "offset": [-1] * COUNT}
        for name, data in zip(columns["file"], DATA, strict=True):
            (folder / name).write_bytes(data)
    elif kind == "shards":
        columns |= {
            "file": [f"{i % 2}.tar" for i in range(COUNT)],
            "length": [len(data) for data in DATA],
            "offset": [],
        }
        shards = {"0.tar": b"header", "1.tar": b"another header"}
        for name, data in zip(columns["file"], DATA, strict=True):
            columns["offset"].append(len(shards[name]))
            shards[name] += data
        for name, shard in shards.items():
            (folder / name).write_bytes(shard)
    else:
        columns |= {"file": [f"{i % 2}.npy" for i in range(COUNT)], "offset": [i // 2 for i in range(COUNT)]}
        write_pack(folder / "0.npy", 0)
        write_pack(folder / "1.npy", 0)
    return write_manifest(folder / "manifest.parquet", columns)


def write_pack(path: Path, first: int) -> None:
    """Write a pack of squares in color, or in gray."""
    shape = (6, 4, 4, 3) if path.stem == "0" else (6, 4, 4)
    np.save(path, np.arange(first, first + np.prod(shape)).reshape(shape).astype(np.uint8))


def expected(folder: Path, kind: str) -> list[bytes]:
    """The keys, from the files alone."""
    if kind == "packs":
        packs = [np.load(folder / f"{i}.npy") for i in range(2)]
        return [pixels_key(packs[i % 2][i // 2]) for i in range(COUNT)]
    return [content_key(data) for data in DATA]


def open_keys(manifest: Path, memo: Path) -> ContentKeys:
    """What a new process would make."""
    return ContentKeys(ImageReader(open_manifest(manifest)), memo)


def listed(keys: np.ndarray) -> list[bytes]:
    assert keys.dtype == np.uint8
    assert keys.shape[1:] == (16,)
    return [key.tobytes() for key in keys]


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows whose bytes or pixels were read."""
    rows: list[int] = []
    key = ContentKeys._key

    def counted(keys: ContentKeys, row: int) -> bytes:
        rows.append(row)
        return key(keys, row)

    monkeypatch.setattr(ContentKeys, "_key", counted)
    return rows


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Change a file of which only the time will tell."""
    before = path.stat()
    write(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert path.stat().st_size == before.st_size


def test_keys_are_of_the_bytes_or_of_pixels_and_shape() -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert content_key(b"abc").hex() == "eda7f8f5c84961cd1e9967b0c27a6743"  # another would make every cache useless
    assert pixels_key(pixels).hex() == "9ccf27d84e9786413d486717ed0355c3"
    assert pixels_key(pixels.reshape(2, 8, 3)) != pixels_key(pixels) != pixels_key(pixels[..., 0])
    assert pixels_key(np.asfortranarray(pixels)) == pixels_key(pixels)
    assert content_key(b"pixels (4, 4, 3):" + pixels.tobytes()) != pixels_key(pixels)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_has_its_key_and_is_read_once(tmp_path: Path, kind: str, read_rows: list[int]) -> None:
    manifest = write_images(tmp_path / "data", kind)
    keys = open_keys(manifest, tmp_path / "memo")
    some = np.array([5, 2, 5, 11], np.int32)
    assert listed(keys.of(some)) == [expected(tmp_path / "data", kind)[i] for i in some]
    assert listed(keys.of(ROWS)) == expected(tmp_path / "data", kind)
    assert sorted(set(read_rows)) == ROWS.tolist()
    read_rows.clear()
    assert listed(keys.of(ROWS[::-1])) == expected(tmp_path / "data", kind)[::-1]
    assert listed(open_keys(manifest, tmp_path / "memo").of(ROWS)) == expected(tmp_path / "data", kind)
    assert listed(keys.of(ROWS[:0])) == []
    assert not read_rows


def test_the_same_bytes_have_one_key_under_any_name(tmp_path: Path) -> None:
    in_files = listed(open_keys(write_images(tmp_path / "a", "files"), tmp_path / "memo").of(ROWS))
    in_shards = listed(open_keys(write_images(tmp_path / "b", "shards"), tmp_path / "memo").of(ROWS))
    assert in_files == in_shards
    assert in_files[:3] == in_files[9:]
    assert len(set(in_files)) == 9


def test_manifests_alike_in_two_folders_do_not_share_a_memo(tmp_path: Path) -> None:
    manifests = [write_images(tmp_path / name, "packs") for name in "ab"]
    before = (tmp_path / "a" / "0.npy").stat()
    write_pack(tmp_path / "b" / "0.npy", 100)
    os.utime(tmp_path / "b" / "0.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    for manifest in manifests:
        assert listed(open_keys(manifest, tmp_path / "memo").of(ROWS)) == expected(manifest.parent, "packs")


def test_a_replaced_file_of_the_same_size_gets_another_key_at_once(tmp_path: Path, read_rows: list[int]) -> None:
    manifest = write_images(tmp_path / "data", "files")
    keys = open_keys(manifest, tmp_path / "memo")
    before = listed(keys.of(ROWS))
    read_rows.clear()
    other = DATA[4].swapcase()
    replace_file(tmp_path / "data" / "4.jpg", lambda path: path.write_bytes(other))
    after = listed(keys.of(ROWS))
    assert read_rows == [4]
    assert after == [*before[:4], content_key(other), *before[5:]]


@pytest.mark.parametrize("kind", ["shards", "packs"])
def test_a_replaced_shard_or_pack_gets_other_keys_in_the_next_process(tmp_path: Path, kind: str) -> None:
    manifest = write_images(tmp_path / "data", kind)
    before = listed(open_keys(manifest, tmp_path / "memo").of(ROWS))
    path = tmp_path / "data" / ("0.tar" if kind == "shards" else "0.npy")
    replace_file(path, lambda path: path.write_bytes(path.read_bytes()[:-90] + os.urandom(90)))
    after = listed(open_keys(manifest, tmp_path / "memo").of(ROWS))
    assert after[1::2] == before[1::2]
    assert after[10] != before[10]


def test_a_time_before_1970_is_a_time(tmp_path: Path, read_rows: list[int]) -> None:
    manifest = write_images(tmp_path / "data", "files")
    os.utime(tmp_path / "data" / "3.jpg", ns=(-5, -5))
    for _ in range(2):
        assert listed(open_keys(manifest, tmp_path / "memo").of(ROWS)) == expected(tmp_path / "data", "files")
    assert len(read_rows) == COUNT


# Images that cannot be read.


def test_what_cannot_be_read_has_no_key_until_it_can(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "data", "files")
    open_keys(manifest, tmp_path / "memo").of(ROWS)  # while it could
    (tmp_path / "data" / "3.jpg").unlink()
    (tmp_path / "data" / "5.jpg").unlink()
    (tmp_path / "data" / "5.jpg").mkdir()
    (tmp_path / "outside").write_bytes(DATA[7])
    (tmp_path / "data" / "7.jpg").unlink()
    (tmp_path / "data" / "7.jpg").symlink_to(tmp_path / "outside")
    keys = open_keys(manifest, tmp_path / "memo")
    for _ in range(2):
        found = keys.of(ROWS)
        assert np.flatnonzero(~found.any(1)).tolist() == [3, 5, 7]
    for i in (3, 5, 7):
        path = tmp_path / "data" / f"{i}.jpg"
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(DATA[i])
    assert listed(keys.of(ROWS)) == expected(tmp_path / "data", "files")


def test_a_name_that_no_file_can_have_has_no_key(tmp_path: Path) -> None:
    index = open_manifest(write_images(tmp_path / "data", "files"))
    names = ["null \0 byte.jpg", *(f"{i}.jpg" for i in range(1, COUNT))]
    keys = ContentKeys(ImageReader(replace(index, files=names)), tmp_path / "memo").of(ROWS)
    assert listed(keys) == [bytes(16), *expected(tmp_path / "data", "files")[1:]]


def test_a_failure_to_read_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_images(tmp_path / "data", "shards")

    def fail(reader: ImageReader, row: int) -> bytes:
        raise Unreadable("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(ImageReader, "_data", fail)
        assert not open_keys(manifest, tmp_path / "memo").of(ROWS).any()
    assert listed(open_keys(manifest, tmp_path / "memo").of(ROWS)) == expected(tmp_path / "data", "shards")


@pytest.mark.parametrize("kind", ["shards", "packs"])
def test_rows_behind_the_end_of_a_file_have_no_key(tmp_path: Path, kind: str) -> None:
    manifest = write_images(tmp_path / "data", kind)
    wanted = expected(tmp_path / "data", kind)
    if kind == "shards":
        path = tmp_path / "data" / "0.tar"
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path = tmp_path / "data" / "0.npy"
        np.save(path, np.load(path)[:-1])
    keys = open_keys(manifest, tmp_path / "memo").of(ROWS)
    assert listed(keys) == [*wanted[:10], bytes(16), wanted[11]]


def test_remote_images_have_no_keys(tmp_path: Path) -> None:
    index = replace(open_manifest(write_images(tmp_path / "data", "files")), root="memory://data")
    assert not ContentKeys(ImageReader(index), tmp_path / "memo").of(ROWS).any()
    assert not (tmp_path / "memo").exists()


# The memo.


@pytest.fixture(scope="module")
def memorized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, bytes]:
    """A manifest, and the name and bytes of its memo."""
    folder = tmp_path_factory.mktemp("memorized")
    manifest = write_images(folder / "data", "files")
    open_keys(manifest, folder / "memo").of(ROWS)
    (path,) = (folder / "memo").iterdir()
    return manifest, path.name, path.read_bytes()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 24 * COUNT - 1), st.binary(min_size=1, max_size=60), st.integers(0, 24 * COUNT))
def test_a_damaged_memo_never_changes_a_key(memorized, start: int, noise: bytes, end: int) -> None:
    manifest, name, data = memorized
    with tempfile.TemporaryDirectory() as folder:
        damaged = data[:start] + noise + data[start + len(noise) :]
        (Path(folder) / name).write_bytes(damaged if end % 2 else damaged[:end])
        keys = open_keys(manifest, Path(folder))
        assert listed(keys.of(ROWS)) == expected(manifest.parent, "files")
        assert (Path(folder) / name).read_bytes() == data


def test_a_memo_takes_no_room_for_images_that_nobody_asked_for(tmp_path: Path) -> None:
    index = open_manifest(write_images(tmp_path / "data", "files"))
    columns = {name: np.resize(getattr(index, name), 10_000) for name in ("file", "offset", "length")}
    keys = ContentKeys(ImageReader(replace(index, **columns)), tmp_path / "features" / "images")
    assert listed(keys.of(np.array([0, 9999]))) == [content_key(DATA[0]), content_key(DATA[9999 % COUNT])]
    (path,) = (tmp_path / "features" / "images").iterdir()
    assert path.stat().st_size == 240_000
    used, files = cache_usage(tmp_path / "features")
    assert files == 1
    assert used < 100_000


def test_keys_are_found_without_a_place_for_a_memo(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "data", "shards")
    (tmp_path / "memo").write_text("not a folder")
    keys = open_keys(manifest, tmp_path / "memo")
    for _ in range(2):
        assert listed(keys.of(ROWS)) == expected(tmp_path / "data", "shards")


def test_a_memo_that_is_removed_is_made_again(tmp_path: Path, read_rows: list[int]) -> None:
    manifest = write_images(tmp_path / "data", "shards")
    keys = open_keys(manifest, tmp_path / "memo")
    keys.of(ROWS[:4])
    shutil.rmtree(tmp_path / "memo")
    assert listed(keys.of(ROWS)) == expected(tmp_path / "data", "shards")
    read_rows.clear()
    open_keys(manifest, tmp_path / "memo").of(ROWS[4:])
    assert not read_rows


def test_a_memo_that_goes_while_it_is_written_to_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_images(tmp_path / "data", "shards")
    keys = open_keys(manifest, tmp_path / "memo")
    with monkeypatch.context() as patch:
        patch.setattr(ContentKeys, "_create", lambda keys: None)
        assert listed(keys.of(ROWS)) == expected(tmp_path / "data", "shards")
    assert listed(keys.of(ROWS)) == expected(tmp_path / "data", "shards")
    assert any((tmp_path / "memo").iterdir())


def test_processes_share_a_memo(tmp_path: Path, read_rows: list[int]) -> None:
    manifest = write_images(tmp_path / "data", "packs")
    one, other = (open_keys(manifest, tmp_path / "memo") for _ in range(2))
    one.of(ROWS[:5])
    other.of(ROWS[5:])
    one.of(ROWS[4:8])
    other.of(ROWS)
    read_rows.clear()
    for keys in (one, other, open_keys(manifest, tmp_path / "memo")):
        assert listed(keys.of(ROWS)) == expected(tmp_path / "data", "packs")
    assert not read_rows


def test_a_memo_that_is_opened_is_no_longer_the_oldest_file(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "data", "files")
    open_keys(manifest, tmp_path / "memo").of(ROWS)
    (path,) = (tmp_path / "memo").iterdir()
    os.utime(path, (0, 0))
    open_keys(manifest, tmp_path / "memo")
    assert path.stat().st_mtime > 0
