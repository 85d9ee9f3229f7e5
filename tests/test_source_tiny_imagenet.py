"""Tiny ImageNet's folder: what the lists say, and where lists and files disagree."""

import csv
from pathlib import Path

import fsspec
import numpy as np
from PIL import Image

from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.quarantine import QUARANTINE
from dietcl.streams.sources.datasets.tiny_imagenet import TinyImageNet
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage


def write(folder: Path) -> Path:
    """Write two classes of two training images each, and three validation images."""
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "test" / "images").mkdir(parents=True)
    for number, wnid in enumerate(("n01443537", "n01629819")):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
        for i in range(2):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 100 * number + 50 * i)
    for i in range(3):
        save(folder / "val" / "images" / f"val_{i}.JPEG", 10 * i)
    save(folder / "test" / "images" / "test_0.JPEG", 0)
    (folder / "wnids.txt").write_text("n01629819\nn01443537\n")
    (folder / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn00001740\tentity\n")
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n" for i, wnid in enumerate(["n01629819", "n01443537", "n01629819"])]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def save(path: Path, gray: int) -> None:
    Image.new("RGB", (64, 64), (gray, gray, gray)).save(path, "JPEG")


def listing(manifest: Path) -> list[tuple[str, str, int]]:
    index = open_manifest(manifest)
    rows = zip(index.file, index.label, index.split, strict=True)
    return [(index.files[file], index.classes[label], int(split)) for file, label, split in rows]


def test_folders_name_the_classes_of_training_images_and_the_list_those_of_tests(tmp_path):
    made = prepare(TinyImageNet(), str(write(tmp_path / "in")), tmp_path / "out")
    assert made.problems == {}
    assert listing(made.manifest) == [
        ("train/n01443537/images/n01443537_0.JPEG", "n01443537", 0),
        ("train/n01443537/images/n01443537_1.JPEG", "n01443537", 0),
        ("train/n01629819/images/n01629819_0.JPEG", "n01629819", 0),
        ("train/n01629819/images/n01629819_1.JPEG", "n01629819", 0),
        ("val/images/val_0.JPEG", "n01629819", 1),
        ("val/images/val_1.JPEG", "n01443537", 1),
        ("val/images/val_2.JPEG", "n01629819", 1),
    ]
    pixels = Storage(open_manifest(made.manifest), 64).read(np.arange(7))
    assert pixels.float().mean((1, 2, 3)).round().tolist() == [0, 50, 100, 150, 0, 10, 20]


def test_lists_and_files_that_disagree_are_left_out_and_named(tmp_path):
    folder, out = write(tmp_path / "in"), tmp_path / "out"
    (folder / "train" / "n09999999" / "images").mkdir(parents=True)
    save(folder / "train" / "n09999999" / "images" / "a.JPEG", 0)
    save(folder / "train" / "n01443537" / "astray.JPEG", 0)
    (folder / "train" / "n01443537" / "images" / "notes.txt").write_text("")
    (folder / "train" / "n01443537" / "images" / "n01443537_0.JPEG").write_bytes(b"\xff\xd8\xff broken")
    (folder / "val" / "images" / "val_2.JPEG").write_bytes(b"")
    save(folder / "val" / "images" / "extra.JPEG", 0)
    with (folder / "val" / "val_annotations.txt").open("a") as lines:
        lines.write("val_0.JPEG\tn01443537\t0\n../../wnids.txt\tn01443537\nval_9.JPEG\tn01443537\nval_1.JPEG\n\n")
    made = prepare(TinyImageNet(), str(folder), out)
    found = list(csv.reader((out / QUARANTINE).open()))[1:]
    # Why a decoder gives up is its own business.
    assert sorted([file, row, text.partition(" (")[0]] for file, row, text in found) == [
        ["train/n01443537/astray.JPEG", "", "not at train/CLASS/images/"],
        ["train/n01443537/images/n01443537_0.JPEG", "", "not a readable image"],
        ["train/n01443537/images/notes.txt", "", "not an image by its name"],
        ["train/n09999999/images/a.JPEG", "", "the class is not in wnids.txt: n09999999"],
        ["val/images/extra.JPEG", "", "not listed in val/val_annotations.txt"],
        ["val/val_annotations.txt", "3", "the file is empty: val/images/val_2.JPEG"],
        ["val/val_annotations.txt", "4", "the file is listed twice: val_0.JPEG"],
        ["val/val_annotations.txt", "5", "the file is missing: ../../wnids.txt"],
        ["val/val_annotations.txt", "6", "the file is missing: val_9.JPEG"],
        ["val/val_annotations.txt", "7", "the class is not in wnids.txt: there is none"],
    ]
    assert made.kept == 3 + 2


def test_it_is_recognized_here_and_far_away(tmp_path):
    folder = write(tmp_path / "in")
    fsspec.filesystem("memory").put(str(folder), "/tiny", recursive=True)
    assert TinyImageNet.fits(FileRoot.of(folder), "")
    assert TinyImageNet.fits(FileRoot.of("memory://tiny"), "")
    assert not TinyImageNet.fits(FileRoot.of(folder / "train"), "")
    made = prepare(TinyImageNet(), "memory://tiny", tmp_path / "far")
    assert listing(made.manifest) == listing(prepare(TinyImageNet(), str(folder), tmp_path / "near").manifest)


def test_half_a_download_gives_what_is_there(tmp_path):
    folder = write(tmp_path / "in")
    (folder / "train").rename(tmp_path / "elsewhere")
    made = prepare(TinyImageNet(), str(folder), tmp_path / "out")
    assert (made.kept, made.problems) == (3, {"the folder is missing": 1})
