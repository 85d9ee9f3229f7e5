"""Parquet files as the `datasets` library writes them, good and hostile."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.readers.huggingface import HuggingFace
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage
from helpers.prepared import quarantine, rows

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def image(color: int = 0, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (color, 90, 200)).save(stream, kind)
    return stream.getvalue()


def write(path: Path, images: Any, names: Any = None, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(images, list):
        images = pa.array([data and {"bytes": data, "path": "../x.png"} for data in images], IMAGE)
    table = pa.table({"image": images, **columns})
    if names is not None:
        label = {"names": names, "_type": "ClassLabel"}
        info = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path, row_group_size=3)
    return str(path)


def test_a_dataset_of_the_hub(tmp_path: Path) -> None:
    data = tmp_path / "set" / "data"
    write(
        data / "train-00000-of-00002.parquet", [image(10), image(20, "JPEG")], ["cat", "dog"], label=[1, 0], time=[5, 6]
    )
    write(data / "train-00001-of-00002.parquet", [image(30)], ["cat", "dog"], label=[1], time=[7])
    write(
        data / "validation-00000-of-00001.parquet",
        [image(40), image(50)],
        ["cat", "dog"],
        label=[-1, None],
        time=[8, None],
    )
    (tmp_path / "set" / "README.md").write_text("about")
    seen: list[tuple[int, int | None]] = []
    prepared = prepare(HuggingFace(), str(tmp_path / "set"), tmp_path / "out", progress=lambda *now: seen.append(now))
    found = rows(prepared)
    assert found["id"] == [
        "data/train-00000-of-00002.parquet#0",
        "data/train-00000-of-00002.parquet#1",
        "data/train-00001-of-00002.parquet#0",
        "data/validation-00000-of-00001.parquet#0",
        "data/validation-00000-of-00001.parquet#1",
    ]
    assert found["label"] == ["dog", "cat", "dog", None, None]
    assert found["time"] == [5, 6, 7, 8, None]
    assert found["split"] == ["train"] * 3 + ["test"] * 2
    assert not quarantine(tmp_path / "out")
    assert seen[-1] == (5, 5)
    facts = read_facts(prepared.manifest)
    assert (facts.root, facts.recipe, facts.time_steps, facts.source) == (".", "time", 3, "huggingface")
    index = open_manifest(prepared.manifest)
    assert index.classes == ("cat", "dog")
    pixels = Storage(index, 8).read(np.arange(5))
    assert pixels[[0, 2, 3, 4], 0, 0, 0].tolist() == [10, 30, 40, 50]


def test_many_small_batches_keep_row_numbers(tmp_path: Path) -> None:
    images = [None if number % 50 == 7 else image(number % 200) for number in range(200)]
    path = write(tmp_path / "all.parquet", images, label=[number // 2 for number in range(200)])
    found = rows(prepare(HuggingFace(test_share=0.5), path, tmp_path / "out"))
    kept = [number for number in range(200) if number % 50 != 7]
    assert found["label"] == [str(number // 2) for number in kept]
    assert found["id"] == [f"all.parquet#{number}" for number in kept]
    # One of each pair; the four classes with a single image keep it for training.
    assert found["split"].count("test") == 96
    assert quarantine(tmp_path / "out") == [["all.parquet", str(row), "there is no image"] for row in (7, 57, 107, 157)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_plain_bytes_other_columns_and_no_labels(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"img": pa.array([image(), b""], kind), "fine": ["owl", "owl"]}), path)
    found = rows(prepare(HuggingFace(image="img", label="fine"), str(path), tmp_path / "out", verify="none"))
    assert (found["label"], found["time"]) == (["owl"], [None])
    assert quarantine(tmp_path / "out") == [["x.parquet", "1", "there is no image"]]
    assert rows(prepare(HuggingFace(image="img"), str(path), tmp_path / "out2"))["label"] == [None]


def test_bad_rows(tmp_path: Path) -> None:
    images = [image(), None, b"", image()[:40], b"text", image(), image(), image()]
    structs = [data if data is None else {"bytes": data, "path": None} for data in images]
    structs[7] = {"bytes": None, "path": "/etc/passwd"}  # never followed
    times = ["1", "2", "3", "4", "5", "noon", "7", "8"]
    path = write(tmp_path / "a.parquet", pa.array(structs, IMAGE), ["cat"], label=[0, 0, 0, 0, 0, 0, 1, 0], time=times)
    prepared = prepare(HuggingFace(), path, tmp_path / "out")
    assert rows(prepared)["id"] == ["a.parquet#0"]
    found = quarantine(tmp_path / "out")
    assert {file for file, _, _ in found} == {"a.parquet"}
    said = {int(row): problem for _, row, problem in found}
    assert sorted(said) == [1, 2, 3, 4, 5, 6, 7]
    assert said[1] == said[2] == said[7] == "there is no image"
    assert said[3].startswith("not a readable image")
    assert said[4].startswith("not a readable image")
    assert said[5] == "the time is neither a number nor a date ('noon')"
    assert said[6] == "the label has no name in the metadata (1)"


def test_whole_numbers_that_became_doubles_have_names(tmp_path: Path) -> None:
    labels = pa.array([1.0, None, 0.0, 1.5, 2.0, float("nan"), -1.0])
    path = write(tmp_path / "a.parquet", [image(i) for i in range(7)], ["cat", "dog"], label=labels)
    prepared = prepare(HuggingFace(), path, tmp_path / "out")
    assert rows(prepared)["label"] == ["dog", None, "cat", None, None]
    assert quarantine(tmp_path / "out") == [
        ["a.parquet", "3", "the label has no name in the metadata (1.5)"],
        ["a.parquet", "4", "the label has no name in the metadata (2.0)"],
    ]
    path = write(tmp_path / "b.parquet", [image(i) for i in range(7)], label=labels)
    assert rows(prepare(HuggingFace(), path, tmp_path / "out2"))["label"] == ["1", None, "0", "2", None, "-1"]
    assert [row for _, row, _ in quarantine(tmp_path / "out2")] == ["3"]


@pytest.mark.parametrize(
    "bad",
    [pa.array([True, None]), pa.array([[1], None]), pa.array([b"a", None])],
    ids=lambda a: str(a.type),
)
def test_labels_must_be_strings_or_whole_numbers(tmp_path: Path, bad: pa.Array) -> None:
    prepared = prepare(
        HuggingFace(), write(tmp_path / "a.parquet", [image(), image()], ["x"], label=bad), tmp_path / "out"
    )
    assert rows(prepared)["id"] == ["a.parquet#1"]
    assert prepared.problems == {"the label is neither a string nor a whole number": 1}
    assert [row[:2] for row in quarantine(tmp_path / "out")] == [["a.parquet", "0"]]


@pytest.mark.parametrize(
    "metadata", [b"{", b"[]", b'{"info": {"features": {"label": {"names": [1]}}}}', b"[" * 100_000]
)
def test_metadata_of_no_use_leaves_numbers(tmp_path: Path, metadata: bytes) -> None:
    table = pa.table({"image": [image()], "label": [4]}).replace_schema_metadata({"huggingface": metadata})
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(prepare(HuggingFace(), str(tmp_path / "a.parquet"), tmp_path / "out"))["label"] == ["4"]


def test_broken_files_do_not_stop_the_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    whole = Path(write(data / "train-0.parquet", [image(color) for color in range(6)])).read_bytes()
    (data / "train-1.parquet").write_bytes(whole[: len(whole) // 2])
    (data / "train-2.parquet").write_bytes(b"")
    at = pq.ParquetFile(data / "train-0.parquet").metadata.row_group(1).column(0)
    start = at.dictionary_page_offset or at.data_page_offset
    (data / "train-3.parquet").write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    write(data / "extra-0.parquet", [image()])
    (data / "link.parquet").symlink_to(data / "train-0.parquet")
    prepared = prepare(HuggingFace(), str(data), tmp_path / "out")
    found = {file: problem for file, _, problem in quarantine(tmp_path / "out")}
    assert prepared.kept in (9, 6)  # a batch may hold several row groups
    assert found["train-1.parquet"].startswith("the file cannot be read (")
    assert found["train-2.parquet"].startswith("the file cannot be read (")
    assert found["train-3.parquet"].startswith("the file cannot be read to its end (")
    assert found["extra-0.parquet"] == found["link.parquet"] == "neither train nor test by its name"


@pytest.mark.parametrize(
    ("columns", "reader", "sentence"),
    [
        ({"img": [b""]}, {}, r"a.parquet: column 'image' is missing; its columns are 'img': choose one with --image"),
        ({"image": ["x.png"]}, {}, r"a.parquet: column 'image' holds string; --image needs encoded images"),
        ({"image": [b""]}, {"label": "class"}, r"column 'class' is missing.*--label"),
    ],
)
def test_unusable_columns(tmp_path: Path, columns: dict[str, Any], reader: dict[str, str], sentence: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=sentence):
        prepare(HuggingFace(**reader), str(tmp_path / "a.parquet"), tmp_path / "out")


def test_only_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"quarantine.csv: every image has a problem"):
        prepare(HuggingFace(), str(tmp_path / "a.parquet"), tmp_path / "out")


def test_splits_by_folders(tmp_path: Path) -> None:
    for name in ("default/train/0000.parquet", "default/test/0000.parquet"):
        write(tmp_path / "set" / name, [image()])
    found = rows(prepare(HuggingFace(), str(tmp_path / "set"), tmp_path / "out"))
    assert found["split"] == ["test", "train"]
    with pytest.raises(UserError, match="--test-share"):
        HuggingFace(test_share=1.5)


def test_recognition(tmp_path: Path) -> None:
    place = FileRoot.of(tmp_path)
    assert not HuggingFace.fits(place, "")
    pq.write_table(pa.table({"file": ["a"], "offset": [0]}), tmp_path / "manifest.parquet")
    assert not HuggingFace.fits(place, "")
    write(tmp_path / "data" / "train-0.parquet", [image()])
    pq.write_table(pa.table({"path": ["a"], "image": ["a"]}), tmp_path / "table.parquet")
    pq.write_table(pa.table({"img": [b"a"]}).replace_schema_metadata({"huggingface": "{}"}), tmp_path / "cifar.parquet")
    names = ("", "table.parquet", "cifar.parquet", "data/train-0.parquet", "a.csv")
    assert [HuggingFace.fits(place, name) for name in names] == [True, False, True, True, False]
