"""IDX files of the MNIST family: written byte by byte, zipped, cut off, and with headers that lie."""

import gzip
import struct
from pathlib import Path

import fsspec
import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.readers.idx import Idx
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage
from helpers.prepared import quarantine

IMAGES = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)


def write(path: Path, array: np.ndarray, sizes: tuple[int, ...] | None = None, magic: int | None = None) -> bytes:
    """Write an IDX file, zipped if its name says so; returns what is in it."""
    sizes = array.shape if sizes is None else sizes
    data = struct.pack(f">{1 + len(sizes)}I", magic or 0x800 + len(sizes), *sizes) + array.tobytes()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return data


def write_set(folder: Path, prefix: str = "", test: str = "t10k", end: str = "", images: np.ndarray = IMAGES) -> Path:
    """Write three training images (labels 7, 0, 7) and two for tests (labels 0, 1)."""
    for part, rows, labels in (("train", images[:3], [7, 0, 7]), (test, images[3:], [0, 1])):
        write(folder / f"{prefix}{part}-images-idx3-ubyte{end}", rows)
        write(folder / f"{prefix}{part}-labels-idx1-ubyte{end}", np.array(labels, np.uint8))
    return folder


@pytest.mark.parametrize("end", ["", ".gz"])
def test_images_and_labels_come_in_their_order(tmp_path, end):
    made = prepare(Idx(), str(write_set(tmp_path / "in", end=end)), tmp_path / "out")
    index = open_manifest(made.manifest)
    assert [index.classes[code] for code in index.label] == ["7", "0", "7", "0", "1"]
    assert index.split.tolist() == [0, 0, 0, 1, 1]
    assert (np.load(tmp_path / "out" / "images.npy") == IMAGES).all()
    assert not read_facts(made.manifest).mirror
    assert Storage(index, 4).read(np.array([1]))[0, :, 2, 3].tolist() == [16 + 2 * 4 + 3] * 3  # gray


def test_emnist_has_several_sets_and_swaps_rows_and_columns(tmp_path):
    write_set(tmp_path / "in", "emnist-letters-", "test", ".gz")
    only = prepare(Idx(transpose=True), str(tmp_path / "in"), tmp_path / "only")
    assert (np.load(only.manifest.parent / "images.npy") == IMAGES.transpose(0, 2, 1)).all()
    write_set(tmp_path / "in", "emnist-digits-", "test", ".gz", 255 - IMAGES)
    with pytest.raises(UserError, match=r"--prefix '': choose from 'emnist-digits-', 'emnist-letters-'"):
        prepare(Idx(), str(tmp_path / "in"), tmp_path / "out")
    made = prepare(Idx(prefix="emnist-digits-"), str(tmp_path / "in"), tmp_path / "out")
    assert (np.load(made.manifest.parent / "images.npy") == 255 - IMAGES).all()


def test_a_plain_file_goes_before_its_zipped_twin(tmp_path):
    write_set(tmp_path / "in")
    write_set(tmp_path / "in", end=".gz", images=255 - IMAGES)
    made = prepare(Idx(), str(tmp_path / "in"), tmp_path / "out")
    assert made.kept == 5
    assert (np.load(tmp_path / "out" / "images.npy") == IMAGES).all()


def test_what_is_whole_of_a_file_that_is_cut_off_is_kept(tmp_path):
    folder, out = write_set(tmp_path / "in"), tmp_path / "out"
    for name, less in (("train-images-idx3-ubyte", 20), ("t10k-labels-idx1-ubyte", 1)):
        (folder / name).write_bytes((folder / name).read_bytes()[:-less])
    made = prepare(Idx(), str(folder), out)
    assert made.kept == 1 + 1
    assert quarantine(out) == [
        [
            "train-images-idx3-ubyte",
            "1",
            "shorter than its header states: 1 of 3; ends inside a record (12 of 16 bytes)",
        ],
        ["t10k-labels-idx1-ubyte", "1", "shorter than its header states: 1 of 2; unexpected end of file"],
    ]
    assert np.load(out / "images.npy")[:, 0, 0].tolist() == [0, 48]


def test_a_zipped_file_may_be_cut_off_or_spoiled(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (1000, 20, 20), dtype=np.uint8)  # zipping does not shrink it
    folder = write_set(tmp_path / "in", images=noise[:5])
    file = folder / "train-images-idx3-ubyte.gz"
    write(file, noise)
    write(folder / "train-labels-idx1-ubyte", np.zeros(1000, np.uint8))
    (folder / "train-images-idx3-ubyte").unlink()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    made = prepare(Idx(), str(folder), tmp_path / "cut")
    train = made.kept - 2  # training images come first
    assert 490 < train < 500
    assert quarantine(tmp_path / "cut")[0][:2] == [file.name, str(train)]
    assert (np.load(tmp_path / "cut" / "images.npy")[:train] == noise[:train]).all()
    file.write_bytes(whole[:-8] + bytes(4) + whole[-4:])  # all data, and a wrong checksum
    made = prepare(Idx(), str(folder), tmp_path / "spoiled")
    assert made.kept == 1002
    assert [row[:2] for row in quarantine(tmp_path / "spoiled")] == [[file.name, "1000"]]


@pytest.mark.parametrize(
    ("name", "sizes", "magic", "words"),
    [
        (
            "train-images-idx3-ubyte",
            (4, 4, 4),
            None,
            r"train-images-idx3-ubyte: images: 4, labels in train-labels-idx1-ubyte: 3",
        ),
        ("train-images-idx3-ubyte", (3, 2, 8), None, r"train-images-idx3-ubyte: images are 2 x 8"),
        ("train-images-idx3-ubyte", (3, 0, 0), None, r"train-images-idx3-ubyte: images are 0 x 0"),
        ("train-images-idx3-ubyte", (3, 2**31, 2**31), None, r"train-images-idx3-ubyte: images are 2147483648 x"),
        ("train-images-idx3-ubyte", (3, 4, 4), 0xD03, r"train-images-idx3-ubyte: not an IDX file of images"),
        ("train-labels-idx1-ubyte", (3, 4, 4), None, r"train-labels-idx1-ubyte: not an IDX file of labels"),
    ],
)
def test_a_header_that_lies_is_named(tmp_path, name, sizes, magic, words):
    write(write_set(tmp_path / "in") / name, IMAGES[:3], sizes, magic)
    with pytest.raises(UserError, match=words):
        prepare(Idx(), str(tmp_path / "in"), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_file_that_is_no_gzip_and_labels_that_are_not_there(tmp_path):
    folder = write_set(tmp_path / "in", end=".gz")
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\.gz: not an IDX file"):
        prepare(Idx(), str(folder), tmp_path / "out")
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        UserError, match=r"train-labels-idx1-ubyte: the labels of train-images-idx3-ubyte\.gz are missing"
    ):
        prepare(Idx(), str(folder), tmp_path / "out")


def test_more_than_the_header_says_is_noted(tmp_path):
    file = write_set(tmp_path / "in") / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes() + bytes(16))
    made = prepare(Idx(), str(tmp_path / "in"), tmp_path / "out")
    assert made.kept == 5
    assert quarantine(tmp_path / "out") == [[file.name, "3", "unexpected data after the last record: more data"]]


def test_it_is_recognized_here_and_far_away(tmp_path):
    folder = write_set(tmp_path / "in", end=".gz")
    fsspec.filesystem("memory").put(str(folder), "/mnist", recursive=True)
    assert Idx.fits(FileRoot.of(folder), "")
    assert Idx.fits(FileRoot.of("memory://mnist"), "")
    assert not Idx.fits(FileRoot.of(tmp_path), "")
    with pytest.raises(UserError, match=r"no file is named like train-images"):
        prepare(Idx(), str(tmp_path), tmp_path / "out")
    made = prepare(Idx(), "memory://mnist", tmp_path / "far")
    assert (np.load(made.manifest.parent / "images.npy") == IMAGES).all()
