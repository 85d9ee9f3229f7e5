"""ManifestBuilder: how the stream is suggested to be cut, and what lies around it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import MOST_BYTES, FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import Facts, read_facts
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.options import Recipe
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.registry import prepare
from dietcl.streams.stream import build_stream
from helpers.prepared import quarantine, rows


def facts_of(folder: Path, labels: list[str | None], label_rate: float = 0.01, time: Any = None) -> Facts:
    """What a manifest of these labels says about itself."""
    work = ManifestBuilder(FileRoot.of(folder), folder / "out", Facts(label_rate=label_rate), verify="none")
    work.refer([f"{i}.jpg" for i in range(len(labels))], label=labels, time=time)
    return read_facts(work.close())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["a", "b", "c"] * 200, ("class", 3, 0.01)),  # 2 of 200
        (["a", "b", "c"] * 40, ("class", 3, 0.05)),  # 1 of 40 would need 0.025
        (["a", "b", "c"] * 2, ("class", 3, 0.5)),
        (["a", "b"], ("class", 2, 1.0)),
        (["a"] * 300, ("data", 15, 0.05)),  # 20 a time step
        (["a"] * 399, ("data", 19, 0.05)),
        (["a"] * 900, ("data", 20, 0.05)),
        (["a"] * 9, ("data", 1, 0.2)),
        ([f"{i:02d}" for i in range(30)] * 100, ("class", 20, 0.01)),
        (["a", "b", None] * 200, ("data", 20, 1.0)),  # sparse by itself; nothing tells when the others come
        ([None] * 9, ("data", 1, 0.01)),
        ([None] * 90, ("data", 4, 0.01)),
    ],
)
def test_the_suggested_cut_reveals_labels(
    tmp_path: Path, labels: list[str | None], expected: tuple[str, int, float]
) -> None:
    facts = facts_of(tmp_path, labels)
    assert (facts.recipe, facts.time_steps, facts.label_rate) == expected


def test_a_published_rate_that_reveals_anything_stays(tmp_path: Path) -> None:
    labels = ["often"] * 400 + [f"rare {i}" for i in range(300)]
    facts = facts_of(tmp_path, labels, label_rate=0.05, time=np.arange(700))
    assert (facts.recipe, facts.time_steps, facts.label_rate) == ("time", 20, 0.05)


def test_a_cut_by_time_counts_a_class_in_a_time_step(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, ["a", "b"] * 200, time=np.arange(400) // 40)  # 20 of each in each of ten
    assert (facts.recipe, facts.time_steps, facts.cut, facts.label_rate) == ("time", 10, "value", 0.05)


def test_times_of_fewer_than_half_of_the_images_do_not_cut_the_stream(tmp_path: Path) -> None:
    times = np.where(np.arange(100) < 49, np.arange(100.0), np.nan)
    assert facts_of(tmp_path, ["a", "b"] * 50, time=times).recipe == "class"


def test_one_time_step_per_day_of_the_training_images(tmp_path: Path) -> None:
    days = ["2026-03-01T10:00", "2026-03-01T18:00", "2026-03-04T09:00", "2026-05-09T12:00"]
    lines = [f"{i}.jpg,{label},{day}" for i, (day, label) in enumerate((d, c) for d in days for c in "ab" * 5)]
    lines.append("alone.jpg,a,2026-07-01")  # a day of its own may not be drawn and leave an empty time step
    (tmp_path / "list.csv").write_text("path,label,time\n" + "\n".join(lines) + "\n")
    prepared = prepare(Table(test_share=0.3), str(tmp_path / "list.csv"), tmp_path / "out", verify="none")
    facts, index = read_facts(prepared.manifest), open_manifest(prepared.manifest)
    recipe = Recipe(recipe="time", time_steps=facts.time_steps, cut="day", label_rate=facts.label_rate)
    stream = build_stream("x", index, recipe, 0)
    assert (facts.recipe, facts.cut, facts.label_rate) == ("time", "day", 1.0)
    assert all(len(step.labeled) for step in stream.steps)
    assert sum(len(step.labeled) for step in stream.steps) == (index.split == 0).sum() == 41 - 13


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
    one, two = (ManifestBuilder(FileRoot.of(tmp_path), tmp_path / "out", Facts(), verify="none") for _ in range(2))
    one.refer(["a.jpg"], label=["a"])
    two.refer(["b.jpg"], label=["b"])
    one.close()
    with pytest.raises(UserError, match=r"manifest\.parquet: exists already"):
        two.close()
    two.abandon()
    assert open_manifest(tmp_path / "out" / "manifest.parquet").classes == ("a",)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("manifest.parquet", "manifest.index", "quarantine.csv")
    }


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(OSError, match="too many for one image"):
        FileRoot.of(tmp_path).read("huge.jpg")
