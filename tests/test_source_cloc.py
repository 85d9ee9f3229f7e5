"""CLOC: a miniature copy in the layout of the release, worked out by hand, and copies that are broken or hostile."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams import manifest_builder
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.options import Recipe
from dietcl.streams.sources.datasets import cloc
from dietcl.streams.sources.datasets.cloc import LABELS, LOCATIONS, TIMES, VALIDATION, Cloc
from dietcl.streams.sources.registry import Prepared, prepare
from dietcl.streams.stream import build_stream

STEPS, PER_STEP = 20, 3
COUNT = STEPS * PER_STEP
PLACES = [f"{number % 7:03d}/{number:04d}.jpg" for number in range(COUNT)]
LABEL = [number % 4 for number in range(COUNT)]
TIME = [1000 + 10 * number for number in range(COUNT)]
# At the very first moment, in the middle, and after the last training image.
TESTS = [(1, 1000, "test/a.jpg"), (2, 1305, "test/b.jpg"), (3, 9999, "test/c.jpg")]


def jpeg(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (len(path.name) * 9 % 256, 80, 30)).save(path, "JPEG")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy with 60 training and 3 test images."""
    folder = tmp_path / "release"
    for place in (*PLACES, *(place for _, _, place in TESTS)):
        jpeg(folder / "dataset" / "images" / place)
    torch.save([f"{place}\n" for place in PLACES], folder / LOCATIONS)
    torch.save(LABEL, folder / LABELS)
    torch.save(TIME, folder / TIMES)
    lines = [f"{label},2010-01-01 00:00:00.0,{time},17@N00,{place}\n" for label, time, place in TESTS]
    (folder / VALIDATION).write_text("".join(lines))
    return folder


def prepared(folder: Path, verify: manifest_builder.Verify = "decode", **options: str) -> Prepared:
    return prepare(Cloc(**options), str(folder), folder.parent / "out", verify)


def quarantine(folder: Path) -> list[list[str]]:
    with (folder.parent / "out" / "quarantine.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def files(index: Index) -> list[str]:
    return [index.files[code] for code in index.file]


def test_a_copy_of_the_release_comes_out_whole_and_in_order(release: Path) -> None:
    assert Cloc.fits(FileRoot.of(release), "")
    result = prepared(release)
    assert (result.kept, dict(result.problems)) == (COUNT + 3, {})
    index = open_manifest(result.manifest)
    expected = [f"dataset/images/{place}" for place in (*PLACES, *(place for _, _, place in TESTS))]
    assert files(index) == expected  # and no line ends
    assert [index.classes[code] for code in index.label] == [str(label) for label in (*LABEL, 1, 2, 3)]
    assert index.time.tolist() == [*TIME, 1000, 1305, 9999]
    assert index.split.tolist() == [0] * COUNT + [1] * 3
    facts = read_facts(result.manifest)
    assert (facts.source, facts.recipe, facts.time_steps, facts.label_rate) == ("cloc", "time", 20, 0.005)


def test_every_time_step_holds_its_own_twentieth_and_not_the_first(release: Path) -> None:
    index = open_manifest(prepared(release).manifest)
    stream = build_stream("cloc", index, Recipe(recipe="time", time_steps=STEPS, label_rate=0.5), 0)
    rows = [np.sort(stream.index_row[np.concatenate([step.labeled, step.unlabeled])]).tolist() for step in stream.steps]
    assert rows == [list(range(PER_STEP * t, PER_STEP * (t + 1))) for t in range(STEPS)]
    # The released script numbers the members of each twentieth from 0 and uses these numbers on the whole lists.
    length = len(LABEL) // STEPS
    released = [[i for i, _ in enumerate(LABEL[length * t : length * (t + 1)])] for t in range(STEPS)]
    assert released == [[0, 1, 2]] * STEPS
    assert [len(test.rows) for test in stream.tests] == [1, *[0] * 9, 1, *[0] * 8, 1]


def test_images_of_one_moment_share_the_time_step_where_the_first_of_them_falls(release: Path) -> None:
    torch.save([f"{place}\n" for place in PLACES[:8]], release / LOCATIONS)
    torch.save(LABEL[:8], release / LABELS)
    torch.save([0, 0, 0, 1, 1, 2, 3, 3], release / TIMES)
    index = open_manifest(prepared(release).manifest)
    stream = build_stream("cloc", index, Recipe(recipe="time", time_steps=4, label_rate=0), 0)
    rows = [np.sort(stream.index_row[step.unlabeled]).tolist() for step in stream.steps]
    assert rows == [[0, 1, 2], [3, 4], [5], [6, 7]]


@pytest.mark.parametrize("save", [torch.tensor, lambda values: torch.tensor(values, dtype=torch.int16), tuple])
def test_tensors_are_as_good_as_lists(release: Path, save: Callable[[list[int]], Any]) -> None:
    reference = open_manifest(prepared(release).manifest).hash
    torch.save(save(LABEL), release / LABELS)
    torch.save(save(TIME), release / TIMES)
    result = prepare(Cloc(), str(release), release.parent / "other")
    assert open_manifest(result.manifest).hash == reference


def test_files_of_old_torch_are_read(release: Path) -> None:
    reference = open_manifest(prepared(release).manifest).hash
    for file, values in ((LABELS, LABEL), (TIMES, TIME), (LOCATIONS, [f"{place}\n" for place in PLACES])):
        torch.save(values, release / file, _use_new_zipfile_serialization=False)
    result = prepare(Cloc(), str(release), release.parent / "other")
    assert open_manifest(result.manifest).hash == reference


def test_the_lists_go_over_in_slices(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = open_manifest(prepared(release).manifest).hash
    sizes = []
    refer = manifest_builder.ManifestBuilder.refer
    monkeypatch.setattr(cloc, "BATCH", 16)
    monkeypatch.setattr(
        manifest_builder.ManifestBuilder,
        "refer",
        lambda self, file, **more: (sizes.append(len(file)), refer(self, file, **more)),
    )
    result = prepare(Cloc(), str(release), release.parent / "other", "none")
    assert sizes == [16, 16, 16, 12, 3]
    assert open_manifest(result.manifest).hash == reference


def test_the_folder_above_and_other_places_of_the_images(release: Path) -> None:
    assert Cloc.fits(FileRoot.of(release.parent), "")
    assert prepare(Cloc(), str(release.parent), release.parent / "above").kept == COUNT + 3
    (release / "dataset").rename(release.parent / "downloaded")
    with pytest.raises(UserError, match="--images"):
        prepare(Cloc(), str(release.parent), release.parent / "lost", "none")
    result = prepare(Cloc(images="downloaded/images/"), str(release.parent), release.parent / "found")
    assert result.kept == COUNT + 3
    assert files(open_manifest(result.manifest))[0] == "downloaded/images/000/0000.jpg"


def test_images_that_flickr_has_lost_go_to_the_quarantine(release: Path) -> None:
    (release / "dataset" / "images" / PLACES[4]).unlink()
    result = prepared(release)
    assert result.kept == COUNT + 2
    assert quarantine(release)[0][:2] == [LOCATIONS, "4"]
    assert prepare(Cloc(), str(release), release.parent / "trusting", "none").kept == COUNT + 3


@pytest.mark.parametrize(
    ("file", "value", "sentence"),
    [
        (LABELS, "7", "the label is not a whole number from 0"),
        (LABELS, 1.5, "the label is not a whole number from 0"),
        (LABELS, -1, "the label is not a whole number from 0"),
        (LABELS, None, "the label is not a whole number from 0"),
        (LABELS, [1, 2], "the label is not a whole number from 0"),
        (TIMES, "noon", "the time is not a number"),
        (TIMES, float("nan"), "the time is not a number"),
        (TIMES, 10**400, "the time is not a number"),
        (LOCATIONS, 3, "the location is not a path"),
        (LOCATIONS, " \n", "the location is not a path"),
        (LOCATIONS, "a" * 5000, "the location is not a path"),
        (LOCATIONS, "\ud800.jpg", "the location is not a path"),
        (LOCATIONS, "../../secret.jpg", "the path leads outside the folder: dataset/images/../../secret.jpg"),
    ],
)
def test_a_bad_entry_is_left_out_and_named(release: Path, file: str, value: Any, sentence: str) -> None:
    values = torch.load(release / file, weights_only=True)
    values[5] = value
    torch.save(values, release / file)
    result = prepared(release, "none")
    assert result.kept == COUNT + 2
    assert quarantine(release) == [[LOCATIONS, "5", sentence]]


def test_bad_lines_of_the_validation_table_are_left_out_and_named(release: Path) -> None:
    with (release / VALIDATION).open("a") as file:
        file.write(
            "1,2010,5\nx,2010,5,u,test/a2.jpg\n1,2010,soon,u,test/a3.jpg\n1,2010,5,u,\n\n1,2010,5,u,v,test/d.jpg"
        )
    result = prepared(release, "none")
    assert quarantine(release) == [
        [VALIDATION, "4", "the line has fewer than 5 columns"],
        [VALIDATION, "6", "the time is not a number"],
        [VALIDATION, "5", "the label is not a whole number from 0"],
        [VALIDATION, "7", "the location is not a path"],
    ]
    # The path is the last column, and the last line needs no end.
    assert files(open_manifest(result.manifest))[-1] == "dataset/images/test/d.jpg"


class Malice:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("file", [LABELS, TIMES, LOCATIONS])
@pytest.mark.parametrize("as_zip", [True, False])
def test_code_in_a_list_is_refused_and_does_not_run(release: Path, file: str, as_zip: bool) -> None:
    trap = release.parent / "trap"
    torch.save([1, Malice(trap)], release / file, _use_new_zipfile_serialization=as_zip)
    with pytest.raises(UserError, match=f"{file}: refused") as caught:
        prepared(release)
    assert "\n" not in str(caught.value)
    assert not trap.exists()
    assert not (release.parent / "out" / "manifest.parquet").exists()
    torch.load(release / file, weights_only=False)
    assert trap.exists()  # it would have run


@pytest.mark.parametrize("as_zip", [True, False])
def test_code_behind_a_long_list_is_refused_before_anything_is_handed_over(
    release: Path, monkeypatch: pytest.MonkeyPatch, as_zip: bool
) -> None:
    monkeypatch.setattr(cloc, "BATCH", 16)
    monkeypatch.setattr(
        manifest_builder.ManifestBuilder, "refer", lambda *_, **__: pytest.fail("rows were handed over")
    )
    trap = release.parent / "trap"
    values = [f"{place}\n" for place in PLACES] * 50
    torch.save([*values, Malice(trap)], release / LOCATIONS, _use_new_zipfile_serialization=as_zip)
    torch.save(LABEL * 50 + [0], release / LABELS)
    torch.save(TIME * 50 + [0], release / TIMES)
    with pytest.raises(UserError, match=f"{LOCATIONS}: refused"):
        prepared(release, "none")
    assert not trap.exists()
    assert not (release.parent / "out" / "manifest.parquet").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x80\x02garbage", b"plain text, and much of it"])
def test_a_broken_list_is_one_sentence(release: Path, content: bytes) -> None:
    (release / TIMES).write_bytes(content)
    with pytest.raises(UserError, match=f"{TIMES}: ") as caught:
        prepared(release)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [{"labels": LABEL}, 3, torch.zeros(2, COUNT), torch.tensor(5).expand(10**12), torch.zeros(3, device="meta")],
)
def test_what_is_no_list_is_refused(release: Path, value: Any) -> None:
    torch.save(value, release / LABELS)
    with pytest.raises(UserError, match=LABELS):
        prepared(release)


def test_lists_of_different_lengths_are_refused(release: Path) -> None:
    torch.save(LABEL[:-1], release / LABELS)
    with pytest.raises(UserError, match=f"differ in length .*{LABELS} 59, {TIMES} 60"):
        prepared(release)


@pytest.mark.parametrize("file", [LABELS, TIMES, VALIDATION])
def test_a_missing_file_is_named(release: Path, file: str) -> None:
    (release / file).unlink()
    with pytest.raises(UserError, match=f"{file}: missing"):
        prepared(release)


def test_other_folders_and_files_are_not_taken(release: Path, tmp_path: Path) -> None:
    assert not Cloc.fits(FileRoot.of(tmp_path / "release" / "dataset"), "")
    assert not Cloc.fits(FileRoot.of(release), LABELS)
    for path in (release / LABELS, release / "dataset"):
        with pytest.raises(UserError, match="give CLOC's folder release/"):
            prepare(Cloc(), str(path), tmp_path / "out")
