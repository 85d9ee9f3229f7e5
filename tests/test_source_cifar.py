"""CIFAR's binary version: records written byte by byte, cut off, mislabeled, and the pickles that are never loaded."""

import pickle
from pathlib import Path

import fsspec
import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.datasets.cifar import Cifar
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage
from helpers.prepared import quarantine

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def record(*head: int, red: int = 0, green: int = 0, blue: int = 0) -> bytes:
    """Write one image: a red value at row 0, column 1, a green one at row 2, column 0, a blue one at the end."""
    planes = np.zeros((3, 1024), np.uint8)
    planes[0, 1], planes[1, 64], planes[2, 1023] = red, green, blue
    return bytes(head) + planes.tobytes()


def write_ten(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(record(number, red=number) + record(0))
    (folder / "test_batch.bin").write_bytes(record(9, red=250, green=251, blue=252))
    (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")


def write_hundred(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "train.bin").write_bytes(record(1, 2, green=7) + record(0, 0))
    (folder / "test.bin").write_bytes(record(0, 1))
    (folder / "coarse_label_names.txt").write_text("fish\r\nfruit\r\n")
    (folder / "fine_label_names.txt").write_text("aquarium_fish\nflatfish\napple\n")


def labels(manifest: Path) -> list[str]:
    index = open_manifest(manifest)
    return [index.classes[code] for code in index.label]


def test_planes_become_pixels_and_numbers_become_names(tmp_path):
    write_ten(tmp_path / "in")
    made = prepare(Cifar(), str(tmp_path / "in"), tmp_path / "out")
    index = open_manifest(made.manifest)
    assert (made.kept, made.problems) == (11, {})
    assert index.split.tolist() == [0] * 10 + [1]
    assert labels(made.manifest)[::2] == ["automobile", "bird", "cat", "deer", "dog", "truck"]
    assert read_facts(made.manifest).time_steps == 5  # two classes each
    images = np.load(tmp_path / "out" / "images.npy")
    assert images.shape == (11, 32, 32, 3)
    expected = np.zeros((32, 32, 3), np.uint8)
    expected[0, 1, 0], expected[2, 0, 1], expected[31, 31, 2] = 250, 251, 252
    assert (images[10] == expected).all()
    read = Storage(index, 32).read(np.array([10, 2])).numpy()
    assert (read[0].transpose(1, 2, 0) == expected).all()
    assert read[1].sum() == read[1, 0, 0, 1] == 2


@pytest.mark.parametrize(
    ("coarse", "expected"), [(False, ["apple", "aquarium_fish", "flatfish"]), (True, ["fruit", "fish", "fish"])]
)
def test_cifar_100_has_two_labels(tmp_path, coarse, expected):
    write_hundred(tmp_path / "in")
    made = prepare(Cifar(coarse=coarse), str(tmp_path / "in"), tmp_path / "out")
    assert labels(made.manifest) == expected
    assert np.load(tmp_path / "out" / "images.npy")[0, 2, 0, 1] == 7


def test_what_is_cut_off_mislabeled_or_missing_is_left_out_and_named(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    write_ten(folder)
    (folder / "data_batch_2.bin").write_bytes(record(1, red=9) + record(10) + record(2, red=8) + bytes(100))
    (folder / "data_batch_4.bin").unlink()
    (folder / "data_batch_5.bin").write_bytes(b"")
    made = prepare(Cifar(), str(folder), out)
    assert quarantine(out) == [
        ["data_batch_2.bin", "1", "the label is not one of the 10 classes: 10"],
        ["data_batch_2.bin", "3", "ends inside a record (100 of 3073 bytes)"],
        ["data_batch_4.bin", "", "the file is missing"],
    ]
    assert made.kept == 2 + 2 + 2 + 1
    assert np.load(out / "images.npy")[:, 0, 1, 0].tolist() == [1, 0, 9, 8, 3, 0, 250]
    one = prepare(Cifar(), str(folder / "test_batch.bin"), tmp_path / "one")
    assert labels(one.manifest) == ["truck"]


class Trap:
    """Writes a file if it is ever unpickled."""

    def __reduce__(self):
        return (open, ("sprung", "w"))


@pytest.mark.parametrize("files", [["data_batch_1", "batches.meta"], ["train", "test", "meta"]])
def test_pickles_are_refused_and_never_loaded(tmp_path, monkeypatch, files):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for file in files:
        (tmp_path / "in" / file).write_bytes(pickle.dumps(Trap()))
    assert Cifar.fits(FileRoot.of(tmp_path / "in"), "")
    with pytest.raises(UserError, match=r"in.*pickles.*binary version"):
        prepare(Cifar(), str(tmp_path / "in"), tmp_path / "out")
    if files[0] == "data_batch_1":
        with pytest.raises(UserError, match=r"data_batch_1: .*pickles"):
            prepare(Cifar(), str(tmp_path / "in" / "data_batch_1"), tmp_path / "out")
    assert not (tmp_path / "sprung").exists()


def test_it_is_told_from_other_folders_and_wrong_options(tmp_path):
    write_ten(tmp_path / "ten")
    write_hundred(tmp_path / "hundred")
    for folder in ("train", "test", "meta"):
        (tmp_path / "other" / folder).mkdir(parents=True)
    assert [Cifar.fits(FileRoot.of(tmp_path / name), "") for name in ("ten", "hundred", "other")] == [True, True, False]
    with pytest.raises(UserError, match=r"--coarse"):
        prepare(Cifar(coarse=True), str(tmp_path / "ten"), tmp_path / "out")
    with pytest.raises(UserError, match=r"other: none of data_batch_1\.bin"):
        prepare(Cifar(), str(tmp_path / "other"), tmp_path / "out")
    (tmp_path / "ten" / "batches.meta.txt").write_text("\n")
    with pytest.raises(UserError, match=r"batches\.meta\.txt: names no classes"):
        prepare(Cifar(), str(tmp_path / "ten"), tmp_path / "out")


def test_it_may_lie_far_away(tmp_path):
    write_ten(tmp_path / "in")
    fsspec.filesystem("memory").put(str(tmp_path / "in"), "/cifar", recursive=True)
    assert Cifar.fits(FileRoot.of("memory://cifar"), "")
    here = prepare(Cifar(), str(tmp_path / "in"), tmp_path / "here")
    there = prepare(Cifar(), "memory://cifar", tmp_path / "there")
    assert open_manifest(here.manifest).hash == open_manifest(there.manifest).hash
    assert (tmp_path / "here" / "images.npy").read_bytes() == (tmp_path / "there" / "images.npy").read_bytes()
