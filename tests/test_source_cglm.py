"""CGLM: a miniature copy in the released layout, and lines that are broken."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.options import Recipe
from dietcl.streams.sources.datasets.cglm import Cglm
from dietcl.streams.sources.registry import prepare
from dietcl.streams.statistics import statistics
from dietcl.streams.stream import build_stream
from helpers.prepared import quarantine

COUNT = 40
TRAIN = [(f"{100 + number % 5}", f"{number % 3}/a/{number:03d}.jpg", 5.0 * number) for number in range(COUNT)]
TEST = [("101", "t/0.jpg", 0.0), ("104", "t/1.jpg", 101.5), ("999", "t/2.jpg", 500.0)]  # 999 is in no training image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy with 40 training images of 5 classes and 3 test images."""
    root = tmp_path / "cglm"
    for name, table in (("train.txt", TRAIN), ("test.txt", TEST)):
        for _, path, _ in table:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (90, 30, 10)).save(root / path, "JPEG")
        (root / name).write_text("".join(f"{label}\t{path}\t{time}\n" for label, path, time in table))
    return root


def test_a_copy_comes_out_whole_and_is_cut_by_time(folder: Path, tmp_path: Path) -> None:
    assert Cglm.fits(FileRoot.of(folder), "")
    result = prepare(Cglm(), str(folder), tmp_path / "out")
    assert (result.kept, dict(result.problems)) == (43, {})
    index = open_manifest(result.manifest)
    assert [index.files[code] for code in index.file] == [path for _, path, _ in (*TRAIN, *TEST)]
    assert [index.classes[code] for code in index.label] == [label for label, _, _ in (*TRAIN, *TEST)]
    assert index.time.tolist() == [time for _, _, time in (*TRAIN, *TEST)]
    facts = read_facts(result.manifest)
    assert (facts.source, facts.recipe, facts.time_steps, facts.label_rate) == ("cglm", "time", 20, 0.05)
    stream = build_stream("cglm", index, Recipe(recipe="time", time_steps=20, label_rate=0.5), 0)
    rows = [np.sort(stream.index_row[np.concatenate([step.labeled, step.unlabeled])]).tolist() for step in stream.steps]
    assert rows == [[2 * t, 2 * t + 1] for t in range(20)]
    assert [len(test.rows) for test in stream.tests] == [1, *[0] * 9, 1, *[0] * 8, 1]
    assert stream.tests[-1].labels.tolist() == [-1]  # never revealed, and counted as wrong
    assert statistics(stream, index).test_only_classes == 1


@pytest.mark.parametrize("images", ["", "train", "train/"])
def test_paths_may_begin_in_the_folder_of_the_download(folder: Path, tmp_path: Path, images: str) -> None:
    (folder / "train").mkdir()
    for name in ("0", "1", "2", "t"):
        (folder / name).rename(folder / "train" / name)
    result = prepare(Cglm(images=images), str(folder), tmp_path / "out")
    assert result.kept == 43
    index = open_manifest(result.manifest)
    assert index.files[0] == "train/0/a/000.jpg"


@pytest.mark.parametrize("options", [{}, {"images": "nowhere"}])
def test_images_that_are_nowhere_are_an_error_even_if_none_is_verified(
    folder: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    if not options:
        for name in ("0", "1", "2"):
            (folder / name).rename(tmp_path / name)
    with pytest.raises(UserError, match=r"no such image, nor any other of 40 .*--images"):
        prepare(Cglm(**options), str(folder), tmp_path / "out", "none")


def test_bad_lines_are_left_out_and_named(folder: Path, tmp_path: Path) -> None:
    with (folder / "train.txt").open("a") as file:
        file.write(
            "101\t0/a/000.jpg\n101\t\t7\n101\tp.jpg\t7\t8\n\n101\tq.jpg\tnoon\n101\t../r.jpg\t7\n7 words and no tab\n"
        )
    result = prepare(Cglm(), str(folder), tmp_path / "out", "none")
    assert result.kept == 43
    ragged = "the line is not a class, a path and a time between tabs"
    assert sorted(quarantine(tmp_path / "out"), key=lambda line: int(line[1])) == [
        ["train.txt", "41", ragged],
        ["train.txt", "42", ragged],
        ["train.txt", "43", ragged],
        ["train.txt", "45", "the time is neither a number nor a date ('noon'): q.jpg"],
        ["train.txt", "46", "the path leads outside the folder: ../r.jpg"],
        ["train.txt", "47", ragged],
    ]


def test_lines_may_end_as_on_windows(folder: Path, tmp_path: Path) -> None:
    reference = open_manifest(prepare(Cglm(), str(folder), tmp_path / "out").manifest).hash
    for name in ("train.txt", "test.txt"):
        (folder / name).write_bytes((folder / name).read_bytes().replace(b"\n", b"\r\n"))
    assert open_manifest(prepare(Cglm(), str(folder), tmp_path / "other").manifest).hash == reference


@pytest.mark.parametrize("missing", ["train.txt", "test.txt"])
def test_a_missing_table_is_named(folder: Path, tmp_path: Path, missing: str) -> None:
    (folder / missing).unlink()
    assert not Cglm.fits(FileRoot.of(folder), "")
    with pytest.raises(UserError, match=f"{missing}: missing"):
        prepare(Cglm(), str(folder), tmp_path / "out")


def test_other_tables_are_not_taken(folder: Path, tmp_path: Path) -> None:
    assert not Cglm.fits(FileRoot.of(folder), "train.txt")
    with pytest.raises(UserError, match="give the folder"):
        prepare(Cglm(), str(folder / "train.txt"), tmp_path / "out")
    (folder / "train.txt").write_text("a,b,c\n")
    assert not Cglm.fits(FileRoot.of(folder), "")
