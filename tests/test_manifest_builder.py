"""Preparation: how the stream is suggested to be cut, and what lies around it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import MOST_BYTES, Place
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import Facts, read_facts
from dietcl.streams.manifest_builder import Preparation
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.registry import prepare
from helpers.prepared import quarantine, rows


def facts_of(folder: Path, labels: list[str | None], recipe: str = "class", **facts: object) -> Facts:
    """What a manifest of these labels says about itself."""
    work = Preparation(Place.of(folder), folder / "out", Facts(recipe=recipe, **facts), verify="none")  # type: ignore[arg-type]
    work.refer([f"{i}.jpg" for i in range(len(labels))], label=labels, time=np.arange(len(labels)))
    return read_facts(work.close())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["a", "b", "c"] * 200, ("class", 3, 0.01)),  # 2 of 200
        (["a", "b", "c"] * 40, ("class", 3, 0.05)),  # 1 of 40 would need 0.025
        (["a", "b", "c"] * 2, ("class", 3, 0.5)),
        (["a", "b"], ("class", 2, 1.0)),
        (["a"] * 300, ("data", 20, 0.1)),  # 15 a time step
        ([f"{i:02d}" for i in range(30)] * 100, ("class", 20, 0.01)),
        (["a", "b", None] * 200, ("class", 2, 1.0)),  # sparse by itself
        ([None] * 9, ("data", 20, 0.01)),
    ],
)
def test_the_suggested_cut_reveals_labels(
    tmp_path: Path, labels: list[str | None], expected: tuple[str, int, float]
) -> None:
    facts = facts_of(tmp_path, labels)
    assert (facts.recipe, facts.time_steps, facts.label_rate) == expected


def test_a_published_rate_that_reveals_anything_stays(tmp_path: Path) -> None:
    labels = ["often"] * 400 + [f"rare {i}" for i in range(300)]
    facts = facts_of(tmp_path, labels, recipe="time", time_steps=20, label_rate=0.05)
    assert (facts.recipe, facts.time_steps, facts.label_rate) == ("time", 20, 0.05)


def test_a_cut_by_time_counts_a_class_in_a_time_step(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, ["a", "b"] * 200, recipe="time", time_steps=10)  # 20 of each
    assert (facts.recipe, facts.time_steps, facts.label_rate) == ("time", 10, 0.05)


def test_absolute_paths_into_the_folder_are_taken_and_others_are_not(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "sub/c.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "in" / name)
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    lines = [f"{tmp_path}/in/a.png", "b.png", f"{tmp_path}/in/sub/c.png", f"{tmp_path}/secret.png"]
    lines += [f"{tmp_path}/in/../secret.png", f"{tmp_path}/in"]
    (tmp_path / "in" / "list.csv").write_text("path\n" + "\n".join(lines) + "\n")
    prepared = prepare(Table(), str(tmp_path / "in" / "list.csv"), tmp_path / "out")
    assert rows(prepared)["file"] == ["a.png", "b.png", "sub/c.png"]
    assert [line[1] for line in quarantine(tmp_path / "out")] == ["5", "6", "7"]


def test_two_preparations_into_one_folder_do_not_mix(tmp_path: Path) -> None:
    one, two = (Preparation(Place.of(tmp_path), tmp_path / "out", Facts(), verify="none") for _ in range(2))
    one.refer(["a.jpg"], label=["a"])
    two.refer(["b.jpg"], label=["b"])
    one.close()
    with pytest.raises(UserError, match=r"manifest\.parquet: is there already"):
        two.close()
    two.abandon()
    assert open_manifest(tmp_path / "out" / "manifest.parquet").classes == ("a",)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("manifest.parquet", "manifest.index", "quarantine.csv")
    }


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(OSError, match="more than any image has"):
        Place.of(tmp_path).read("huge.jpg")
