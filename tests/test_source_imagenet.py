"""ImageNet10k and ImageNet2k: miniature copies in the layouts of ImageNet-21K-P and of the released order files."""

import io
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.datasets.imagenet import PROBLEMATIC, ImageNet2k, ImageNet10k, imagenet1k
from dietcl.streams.sources.registry import Reader, prepare
from helpers.prepared import quarantine

IN_1K = ["n01440764", "n15075141"]  # the first and the last class of ImageNet-1k
BEYOND = ["n00005787", "n00006484", "n02075927"]

_buffer = io.BytesIO()
Image.new("RGB", (8, 8), (200, 30, 10)).save(_buffer, "JPEG")
JPEG = _buffer.getvalue()


def fill(folder: Path, first: int, count: int) -> None:
    """Write so many images nXXXXXXXX_i.JPEG into a class folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        (folder / f"{folder.name}_{number}.JPEG").write_bytes(JPEG)


def entries(reader: Reader, path: Path, out: Path, verify: str = "decode") -> list[tuple[str, str, str]]:
    """Return file, class and split of everything that was kept."""
    result = prepare(reader, str(path), out, verify)  # type: ignore[arg-type]
    index = open_manifest(result.manifest)
    splits = ("train", "test")
    return [
        (index.files[file], index.classes[label], splits[split])
        for file, label, split in zip(index.file, index.label, index.split, strict=True)
    ]


@pytest.fixture(params=[("imagenet21k_train", "imagenet21k_val"), ("train", "val")])
def processed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two classes of ImageNet-1k and three beyond, with 4 training and 2 validation images each."""
    for name in (*IN_1K, *BEYOND):
        fill(tmp_path / "in21k" / request.param[0] / name, 2, 4)
        fill(tmp_path / "in21k" / request.param[1] / name, 0, 2)
    fill(tmp_path / "in21k" / "imagenet21k_small_classes" / "n00002222", 0, 1)
    return tmp_path / "in21k"


def test_the_classes_that_remain_are_as_many_as_the_paper_has() -> None:
    package = find_spec("timm")
    assert package is not None
    assert package.origin is not None
    winter = Path(package.origin).parent / "data" / "_info" / "imagenet21k_miil_w21_synsets.txt"
    classes = set(winter.read_text().split())
    assert (len(imagenet1k()), len(classes), len(classes - imagenet1k())) == (1_000, 10_450, 9_459)
    assert set(IN_1K) <= imagenet1k()
    assert not imagenet1k() & {*BEYOND, *PROBLEMATIC}


def test_imagenet10k_is_imagenet21k_without_imagenet1k(processed: Path, tmp_path: Path) -> None:
    assert ImageNet10k.fits(FileRoot.of(processed), "")
    found = entries(ImageNet10k(), processed, tmp_path / "out")
    assert Counter((label, split) for _, label, split in found) == {
        (name, split): count for name in BEYOND for split, count in (("train", 4), ("test", 2))
    }
    assert all(
        f"/{label}/{label}_" in file and ("_val" in file or "val/" in file) == (split == "test")
        for file, label, split in found
    )
    assert quarantine(tmp_path / "out") == []
    facts = read_facts(tmp_path / "out" / "manifest.parquet")
    assert (facts.source, facts.recipe, facts.time_steps, facts.label_rate) == ("imagenet10k", "class", 20, 0.01)


def test_folders_of_imagenet1k_and_of_anything_are_not_imagenet10k(tmp_path: Path) -> None:
    for name in (*IN_1K, BEYOND[0]):
        fill(tmp_path / "in1k" / "train" / name, 0, 1)
        fill(tmp_path / "in1k" / "val" / name, 0, 1)
    assert not ImageNet10k.fits(FileRoot.of(tmp_path / "in1k"), "")
    fill(tmp_path / "pets" / "train" / "cat", 0, 1)
    fill(tmp_path / "pets" / "val" / "cat", 0, 1)
    assert not ImageNet10k.fits(FileRoot.of(tmp_path / "pets"), "")
    fill(tmp_path / "half" / "imagenet21k_train" / BEYOND[0], 0, 1)
    assert not ImageNet10k.fits(FileRoot.of(tmp_path / "half"), "")
    with pytest.raises(UserError, match="imagenet21k_train/ and imagenet21k_val/"):
        prepare(ImageNet10k(), str(tmp_path / "half"), tmp_path / "out")


def test_what_is_no_image_and_no_class_is_named(processed: Path, tmp_path: Path) -> None:
    top = next(path for path in processed.iterdir() if path.name in ("train", "imagenet21k_train"))
    (top / "misc").mkdir()
    (top / BEYOND[0] / "notes.txt").write_text("x")
    (top / BEYOND[0] / ".hidden").write_text("x")
    (top / BEYOND[1] / f"{BEYOND[1]}_9.JPEG").write_bytes(JPEG[:100])
    assert len(entries(ImageNet10k(), processed, tmp_path / "out")) == 18
    problems = {file: problem for file, _, problem in quarantine(tmp_path / "out")}
    assert problems.pop(f"{top.name}/misc") == "not a class folder such as n01440764"
    assert problems.pop(f"{top.name}/{BEYOND[0]}/notes.txt") == "not an image by its name"
    assert list(problems) == [f"{top.name}/{BEYOND[1]}/{BEYOND[1]}_9.JPEG"]


@pytest.mark.parametrize("verify", ["decode", "none"])
def test_links_may_stay_inside_but_not_lead_outside(tmp_path: Path, verify: str) -> None:
    for top, count in (("train", 3), ("val", 2)):
        fill(tmp_path / "elsewhere" / top / BEYOND[0], 0, count)
        fill(tmp_path / "in10k" / top / BEYOND[1], 0, count)
        fill(tmp_path / "in10k" / "kept" / top / BEYOND[2], 0, count)
        os.symlink(tmp_path / "elsewhere" / top / BEYOND[0], tmp_path / "in10k" / top / BEYOND[0])
        os.symlink(tmp_path / "in10k" / "kept" / top / BEYOND[2], tmp_path / "in10k" / top / BEYOND[2])
    found = entries(ImageNet10k(), tmp_path / "in10k", tmp_path / "out", verify)
    assert Counter(label for _, label, _ in found) == {BEYOND[1]: 5, BEYOND[2]: 5}
    outside = "a link leads outside the folder"
    assert quarantine(tmp_path / "out") == [[f"{top}/{BEYOND[0]}", "", outside] for top in ("train", "val")]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """ImageNet-21K as it is: two classes with 63 images, one with 61, one of ImageNet-1k and a problematic one."""
    for name, count in zip((*BEYOND, IN_1K[0], min(PROBLEMATIC)), (63, 63, 61, 63, 63), strict=True):
        fill(tmp_path / "raw" / name, 0, count)
    return tmp_path / "raw"


def split_of(found: list[tuple[str, str, str]]) -> dict[str, str]:
    return {file.rpartition("/")[2]: split for file, _, split in found}


def test_imagenet2k_takes_large_classes_and_sets_sixty_images_aside(raw: Path, tmp_path: Path) -> None:
    found = entries(ImageNet2k(classes=2, at_least=62), raw, tmp_path / "out")
    # 63 images: 50 for tests, 10 for validation left out, 3 to learn from.
    assert Counter((label, split) for _, label, split in found) == {
        (name, split): count for name in BEYOND[:2] for split, count in (("test", 50), ("train", 3))
    }
    again = entries(ImageNet2k(classes=2, at_least=62), raw, tmp_path / "again")
    assert again == found
    other = entries(ImageNet2k(classes=2, at_least=62, seed=1), raw, tmp_path / "other")
    assert split_of(other) != split_of(found)


def test_imagenet2k_chooses_the_same_if_a_validation_folder_was_split_off(raw: Path, tmp_path: Path) -> None:
    expected = split_of(entries(ImageNet2k(classes=2, at_least=61), raw, tmp_path / "out"))
    for folder in list(raw.iterdir()):
        (raw / "imagenet21k_val" / folder.name).mkdir(parents=True)
        for image in sorted(folder.iterdir())[:50]:
            image.rename(raw / "imagenet21k_val" / folder.name / image.name)
        (raw / "imagenet21k_train").mkdir(exist_ok=True)
        folder.rename(raw / "imagenet21k_train" / folder.name)
    assert split_of(entries(ImageNet2k(classes=2, at_least=61), raw, tmp_path / "other")) == expected


def test_the_seed_chooses_the_classes(raw: Path, tmp_path: Path) -> None:
    chosen = {
        entries(ImageNet2k(classes=1, at_least=61, seed=seed), raw, tmp_path / f"{seed}", "none")[0][1]
        for seed in range(12)
    }
    assert chosen == set(BEYOND)


def test_too_few_large_classes_are_an_error(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="classes beyond ImageNet-1k with at least 62 images: 2 of 3;"):
        prepare(ImageNet2k(classes=3, at_least=62), str(raw), tmp_path / "out", "none")
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    with pytest.raises(UserError, match="--at-least 60"):
        ImageNet2k(at_least=60)
    with pytest.raises(UserError, match="--classes 0"):
        ImageNet2k(classes=0)


@pytest.mark.parametrize("below", ["", "order_files"])
@pytest.mark.parametrize("name", ["class_incremental_ordering.txt", "ordering_class_incremental.txt"])
def test_released_order_files_decide(tmp_path: Path, name: str, below: str) -> None:
    root = tmp_path / "in2k"
    for top, count in (("train", 3), ("val", 1), ("test", 2)):
        fill(root / top / BEYOND[0], 0, count)
        fill(root / top / IN_1K[0], 0, count)  # the classes of the first 1,000 are in no order file of the stream
    (root / below).mkdir(exist_ok=True)
    for file, top, numbers in ((name, "train", (2, 0)), ("test.txt", "test", (1, 0)), ("val.txt", "val", (0,))):
        lines = [f"/{top}/{BEYOND[0]}/{BEYOND[0]}_{number}.JPEG\n" for number in numbers]
        (root / below / file).write_text("".join(lines))
    with (root / below / name).open("a") as file_:
        file_.write(f"\n/train/dog/x.JPEG\nx.JPEG\n/train/{BEYOND[0]}/{BEYOND[0]}_7.JPEG\n")
    assert ImageNet2k.fits(FileRoot.of(root), "")
    found = entries(ImageNet2k(), root, tmp_path / "out")
    places = [("train", 2), ("train", 0), ("test", 1), ("test", 0)]  # the order is that of the files
    assert found == [(f"{top}/{BEYOND[0]}/{BEYOND[0]}_{number}.JPEG", BEYOND[0], top) for top, number in places]
    listed = f"{below}/{name}".lstrip("/")
    problems = quarantine(tmp_path / "out")
    assert [line[:2] for line in problems] == [[listed, "4"], [listed, "5"], [listed, "6"]]
    assert problems[0][2] == problems[1][2] == "the line is not a path such as /train/n01440764/n01440764_10026.JPEG"
    (root / below / "test.txt").unlink()
    with pytest.raises(UserError, match=r"test\.txt"):
        prepare(ImageNet2k(), str(root), tmp_path / "untested")


def test_order_files_without_their_images_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "in2k").mkdir()
    (tmp_path / "in2k" / "class_incremental_ordering.txt").write_text(f"/train/{BEYOND[0]}/x.JPEG\n")
    with pytest.raises(UserError, match="no such image"):
        prepare(ImageNet2k(), str(tmp_path / "in2k"), tmp_path / "out", "none")
    with pytest.raises(UserError, match="give the folder"):
        prepare(ImageNet2k(), str(tmp_path / "in2k" / "class_incremental_ordering.txt"), tmp_path / "out")
