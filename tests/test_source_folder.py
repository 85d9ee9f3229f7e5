"""Folders of images: what their layout says about classes, time steps and tests."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.readers.folder import LINK_NOT_FOLLOWED, Folder
from dietcl.streams.sources.registry import Prepared, locate, prepare, recognize


def fill(root: Path, *names: str) -> Path:
    """Write a small image, or some text where the name is not an image's, under every name."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() in (".jpg", ".png", ".jpeg", ".webp", ".gif", ".bmp"):
            kind = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else path.suffix[1:]
            Image.fromarray(np.full((8, 8, 3), 20 + number % 200, np.uint8)).save(path, kind)
        else:
            path.write_text("words")
    return root


def read(root: Path, out: Path, **options: Any) -> tuple[dict[str, tuple[Any, Any, str]], Prepared]:
    """Prepare a folder; returns label, time and split by file."""
    prepared = prepare(Folder(**options), str(root), out)
    table = pq.read_table(prepared.manifest)
    columns = (table[name].to_pylist() for name in ("label", "time", "split"))
    rows = dict(zip(table["file"].to_pylist(), zip(*columns, strict=True), strict=True))
    assert table["id"].to_pylist() == list(rows)
    assert set(table["offset"].to_pylist()) == {-1}
    return rows, prepared


def quarantined(out: Path) -> dict[str, str]:
    """Problems by file."""
    lines = (out / "quarantine.csv").read_text().splitlines()
    assert lines[0] == "file,row,problem"
    return {line.split(",")[0]: line.split(",", 2)[2] for line in lines[1:]}


def test_class_folders(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "cat/1.jpg", "cat/2.PNG", "dog/1.jpeg", "dog/3.webp", "eel/x.gif", "eel/y.bmp")
    rows, prepared = read(root, tmp_path / "out", test_share=0.0)
    assert {file: label for file, (label, _, _) in rows.items()} == {
        "cat/1.jpg": "cat",
        "cat/2.PNG": "cat",
        "dog/1.jpeg": "dog",
        "dog/3.webp": "dog",
        "eel/x.gif": "eel",
        "eel/y.bmp": "eel",
    }
    assert {(time, split) for _, time, split in rows.values()} == {(None, "train")}
    assert prepared.kept == 6
    assert prepared.problems == {}
    facts = read_facts(prepared.manifest)
    assert (facts.source, facts.recipe, facts.root) == ("folder", "class", str(root.resolve()))


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_train_and_test_folders(tmp_path: Path, test: str) -> None:
    root = fill(tmp_path / "in", "train/cat/1.jpg", "train/dog/1.jpg", f"{test}/cat/9.jpg", "extra/cat/2.jpg", "a.jpg")
    rows, _ = read(root, tmp_path / "out", test_share=0.5)
    # The share is of no account where there is a test folder.
    assert rows == {
        "a.jpg": (None, None, "train"),
        "train/cat/1.jpg": ("cat", None, "train"),
        "train/dog/1.jpg": ("dog", None, "train"),
        f"{test}/cat/9.jpg": ("cat", None, "test"),
    }
    assert quarantined(tmp_path / "out") == {"extra/cat/2.jpg": "neither in train/ nor in test/"}


def test_a_test_folder_alone_is_a_class(tmp_path: Path) -> None:
    rows, _ = read(fill(tmp_path / "in", "test/1.jpg", "cat/1.jpg"), tmp_path / "out", test_share=0.0)
    assert rows == {"cat/1.jpg": ("cat", None, "train"), "test/1.jpg": ("test", None, "train")}


def test_folders_of_time_steps_in_natural_order(tmp_path: Path) -> None:
    names = [f"{step}/{label}/{i}.jpg" for step in ("10", "2", "1") for label in ("cat", "dog") for i in range(2)]
    rows, prepared = read(fill(tmp_path / "in", *names), tmp_path / "out", test_share=0.0)
    assert {file.split("/")[0]: time for file, (_, time, _) in rows.items()} == {"1": 0, "2": 1, "10": 2}
    assert {label for label, _, _ in rows.values()} == {"cat", "dog"}
    facts = read_facts(prepared.manifest)
    assert (facts.recipe, facts.time_steps) == ("time", 3)


def test_names_of_time_steps_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    names = ["week 2", "week 10", "week 1b", "week 1", "about"]
    rows, _ = read(fill(tmp_path / "in", *(f"{name}/c/1.jpg" for name in names)), tmp_path / "out", test_share=0.0)
    ordered = sorted(rows, key=lambda file: rows[file][1])
    assert [file.split("/")[0] for file in ordered] == ["about", "week 1", "week 1b", "week 2", "week 10"]


def test_time_steps_below_train_and_test_share_their_numbers(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "train/1/cat/a.jpg", "train/3/cat/b.jpg", "test/2/cat/c.jpg", "test/3/cat/d.jpg")
    rows, prepared = read(root, tmp_path / "out")
    assert rows == {
        "test/2/cat/c.jpg": ("cat", 1, "test"),
        "test/3/cat/d.jpg": ("cat", 2, "test"),
        "train/1/cat/a.jpg": ("cat", 0, "train"),
        "train/3/cat/b.jpg": ("cat", 2, "train"),
    }
    assert read_facts(prepared.manifest).time_steps == 3


def test_classes_inside_classes_below_time_steps(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "1/animal/cat/a.jpg", "1/animal/dog/a.jpg", "2/animal/cat/a.jpg", "2/stone/b.jpg")
    rows, _ = read(root, tmp_path / "out", test_share=0.0)
    assert rows == {
        "1/animal/cat/a.jpg": ("animal/cat", 0, "train"),
        "1/animal/dog/a.jpg": ("animal/dog", 0, "train"),
        "2/animal/cat/a.jpg": ("animal/cat", 1, "train"),
        "2/stone/b.jpg": ("stone", 1, "train"),
    }


def test_a_folder_inside_a_class_folder_is_a_class_of_its_own(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "cat/a.jpg", "dog/b.jpg", "dog/young/c.jpg")
    rows, _ = read(root, tmp_path / "out", test_share=0.0)
    assert {file: label for file, (label, _, _) in rows.items()} == {
        "cat/a.jpg": "cat",
        "dog/b.jpg": "dog",
        "dog/young/c.jpg": "dog/young",
    }


@pytest.mark.parametrize("below", ["", "train/"])
@pytest.mark.parametrize(
    "names",
    [
        ["cat/1.jpg", "cat/old/1.jpg", "dog/1.jpg"],
        ["cat/old/1.jpg", "dog/1.jpg"],
        ["ape/old/1.jpg", "cat/1.jpg", "cat/old/1.jpg"],
        ["ape/old/1.jpg", "cat/young/1.jpg", "dog/1.jpg", "dog/old/2.jpg"],
    ],
)
def test_one_class_folder_with_folders_makes_no_time_steps(tmp_path: Path, below: str, names: list[str]) -> None:
    root = fill(tmp_path / "in", *(below + name for name in names), *(["test/cat/young/9.jpg"] if below else []))
    rows, prepared = read(root, tmp_path / "out", test_share=0.0)
    assert {file: row[:2] for file, row in rows.items() if not file.startswith("test/")} == {
        below + name: (name.rpartition("/")[0], None) for name in names
    }
    assert read_facts(prepared.manifest).recipe != "time"


@pytest.mark.parametrize("extra", ["1/notes.txt", "1/.thumb.jpg", "2/cat/deep/3.jpg", "0.jpg"])
def test_what_does_not_hide_time_steps(tmp_path: Path, extra: str) -> None:
    rows, _ = read(fill(tmp_path / "in", "1/cat/1.jpg", "2/cat/2.jpg", extra), tmp_path / "out", test_share=0.0)
    assert rows["1/cat/1.jpg"] == ("cat", 0, "train")
    assert rows["2/cat/2.jpg"] == ("cat", 1, "train")


def test_flat_class_folders_are_not_all_listed_to_find_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "in", *(f"{label}/{i}.jpg" for label in "abcdef" for i in range(2)))
    listed: list[str] = []
    whole = FileRoot._scan
    monkeypatch.setattr(FileRoot, "_scan", lambda place, under: listed.append(under) or whole(place, under))
    read(root, tmp_path / "out")
    assert sorted(listed) == ["", "", "", "a", "a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("steps", [True, False])
def test_the_layout_of_a_far_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: bool) -> None:
    place = FileRoot.of(f"memory://layout-{steps}")
    data = (fill(tmp_path, "x.jpg") / "x.jpg").read_bytes()
    for name in (
        ("1/cat/a.jpg", "10/cat/a.jpg", "2/cat/a.jpg") if steps else ("cat/a.jpg", "cat/old/a.jpg", "dog/a.jpg")
    ):
        place._remote.pipe_file(place.path(name), data)
    whole = place._remote.ls

    def ls(path: str, **options: Any) -> Any:
        own = {"name": f"{place._remote._strip_protocol(path)}/", "type": "directory", "size": 0}  # as S3 may have it
        return [own, *whole(path, **options)]

    monkeypatch.setattr(place._remote, "ls", ls)
    table = pq.read_table(prepare(Folder(test_share=0.0), place.root, tmp_path / "out").manifest)
    assert table["label"].to_pylist() == (["cat"] * 3 if steps else ["cat", "cat/old", "dog"])
    assert table["time"].to_pylist() == ([0, 2, 1] if steps else [None] * 3)


def test_links_to_folders_are_named_as_such(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "1/cat/a.jpg", "2/cat/b.jpg", "2/cat/Makefile")
    fill(tmp_path / "elsewhere", "x.jpg")
    for link in (root / "3", root / "1" / "dog", root / "1" / "v1.5"):
        link.symlink_to(tmp_path / "elsewhere")
    (root / "2" / "lost").symlink_to(tmp_path / "nowhere")
    rows, _ = read(root, tmp_path / "out", test_share=0.0)
    assert rows == {"1/cat/a.jpg": ("cat", 0, "train"), "2/cat/b.jpg": ("cat", 1, "train")}
    assert quarantined(tmp_path / "out") == {
        "1/dog": LINK_NOT_FOLLOWED,
        "1/v1.5": LINK_NOT_FOLLOWED,
        "2/cat/Makefile": "not an image by its name",
        "2/lost": "not an image by its name",
        "3": LINK_NOT_FOLLOWED,
    }


def test_links_to_folders_inside_the_root_are_followed(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "store/cats/a.jpg", "train/dog/b.jpg")
    (root / "train" / "cat").symlink_to("../store/cats")
    (root / "test").symlink_to("train")
    rows, _ = read(root, tmp_path / "out")
    assert rows == {
        "test/cat/a.jpg": ("cat", None, "test"),
        "test/dog/b.jpg": ("dog", None, "test"),
        "train/cat/a.jpg": ("cat", None, "train"),
        "train/dog/b.jpg": ("dog", None, "train"),
    }


def test_time_steps_in_a_given_order(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "mar/c/1.jpg", "jan/c/1.jpg", "feb/c/1.jpg")
    rows, _ = read(root, tmp_path / "out", test_share=0.0, order="jan, feb,mar")
    assert {file[:3]: time for file, (_, time, _) in rows.items()} == {"jan": 0, "feb": 1, "mar": 2}


@pytest.mark.parametrize("order", ["jan,feb", "jan,feb,mar,mar", "jan,feb,may", "mar"])
def test_an_order_names_every_time_step_once(tmp_path: Path, order: str) -> None:
    root = fill(tmp_path / "in", "mar/c/1.jpg", "jan/c/1.jpg", "feb/c/1.jpg")
    with pytest.raises(UserError, match=rf"^--order {order}: name each time-step folder .*; found feb,jan,mar$"):
        read(root, tmp_path / "out", order=order)


def test_an_order_without_time_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found none: images are directly in class folders"):
        read(fill(tmp_path / "in", "cat/1.jpg"), tmp_path / "out", order="cat")


def test_images_at_the_root_have_no_label(tmp_path: Path) -> None:
    rows, _ = read(fill(tmp_path / "in", "a.jpg", "b.png", "cat/c.jpg"), tmp_path / "out", test_share=0.0)
    assert {file: label for file, (label, _, _) in rows.items()} == {"a.jpg": None, "b.png": None, "cat/c.jpg": "cat"}


def test_hidden_files_are_passed_over_and_others_are_named(tmp_path: Path) -> None:
    hidden = ["cat/.hidden.jpg", ".trash/x.jpg", "cat/.thumbs/1.jpg", ".DS_Store"]
    root = fill(tmp_path / "in", "cat/1.jpg", "cat/notes.txt", "cat/Makefile", "list.csv", *hidden)
    rows, prepared = read(root, tmp_path / "out")
    assert list(rows) == ["cat/1.jpg"]
    assert prepared.problems == {"not an image by its name": 3}
    assert set(quarantined(tmp_path / "out")) == {"cat/notes.txt", "cat/Makefile", "list.csv"}


@pytest.mark.parametrize("hidden", [".thumbs/x.jpg", ".cache/deep/x.jpg"])
def test_hidden_folders_do_not_hide_the_layout(tmp_path: Path, hidden: str) -> None:
    by_time = fill(tmp_path / "steps", "1/cat/a.jpg", "2/cat/b.jpg", hidden)
    rows, _ = read(by_time, tmp_path / "out1", test_share=0.0)
    assert rows == {"1/cat/a.jpg": ("cat", 0, "train"), "2/cat/b.jpg": ("cat", 1, "train")}
    by_class = fill(tmp_path / "classes", "cat/a.jpg", "dog/b.jpg", hidden)
    rows, _ = read(by_class, tmp_path / "out2", test_share=0.0)
    assert rows == {"cat/a.jpg": ("cat", None, "train"), "dog/b.jpg": ("dog", None, "train")}


def test_a_manifest_may_lie_among_its_images(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "1/cat/a.jpg", "2/cat/b.jpg")
    rows, prepared = read(root, root, test_share=0.0)
    assert rows == {"1/cat/a.jpg": ("cat", 0, "train"), "2/cat/b.jpg": ("cat", 1, "train")}
    assert read_facts(prepared.manifest).root == "."
    assert prepared.problems == {}


def test_a_name_that_is_not_utf8_is_named_and_left_out(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "cat/1.jpg")
    try:
        (root / "cat" / "caf\udce9.jpg").write_bytes((root / "cat/1.jpg").read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    rows, prepared = read(root, tmp_path / "out", test_share=0.0)
    assert list(rows) == ["cat/1.jpg"]
    assert sum(prepared.problems.values()) == 1


def test_nothing_to_find(tmp_path: Path) -> None:
    (tmp_path / "in" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="no images were found"):
        read(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    fill(tmp_path / "in", "cat/notes.txt")
    with pytest.raises(UserError, match="no images were found"):
        read(tmp_path / "in", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "in" / "cat" / "a.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="every image has a problem"):
        read(tmp_path / "in", tmp_path / "out")
    assert quarantined(tmp_path / "out").keys() == {"cat/notes.txt", "cat/a.jpg"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["quarantine.csv"]
    with pytest.raises(UserError, match="no such file or folder"):
        read(tmp_path / "nowhere", tmp_path / "out")


def test_test_images_are_drawn_from_labeled_images_by_class(tmp_path: Path) -> None:
    names = [f"{label}/{i}.jpg" for label in "ab" for i in range(20)] + [f"{i}.jpg" for i in range(100)]
    rows, _ = read(fill(tmp_path / "in", *names), tmp_path / "out1", test_share=0.3)
    assert Counter(label for label, _, split in rows.values() if split == "test") == {"a": 6, "b": 6}
    again, _ = read(tmp_path / "in", tmp_path / "out2", test_share=0.3)
    assert again == rows


def test_a_train_folder_without_a_test_folder_gets_test_images(tmp_path: Path) -> None:
    names = [f"train/{label}/{i}.jpg" for label in "ab" for i in range(10)]
    rows, _ = read(fill(tmp_path / "in", *names), tmp_path / "out", test_share=0.1)
    assert Counter(label for label, _, split in rows.values() if split == "test") == {"a": 1, "b": 1}


def test_shares_out_of_range_are_refused() -> None:
    for share in (-0.1, 1.0, 2.0):
        with pytest.raises(UserError, match="--test-share"):
            Folder(test_share=share)


def test_an_earlier_manifest_is_not_overwritten(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "cat/1.jpg")
    read(root, tmp_path / "out", test_share=0.0)
    with pytest.raises(UserError, match="holds a manifest already"):
        read(root, tmp_path / "out")


def test_any_folder_is_recognized_and_a_lost_file_is_not(tmp_path: Path) -> None:
    root = fill(tmp_path / "in", "cat/1.jpg", "cat/unknown.xyz")
    assert recognize(*locate(str(root))) is Folder
    assert Folder.fits(FileRoot.of(root), "")
    assert not Folder.fits(FileRoot.of(root / "cat"), "1.jpg")
    with pytest.raises(UserError, match="--kind"):
        recognize(*locate(str(root / "cat/unknown.xyz")))
