"""The manifest: what its hash depends on, what it refuses, and when its index is built."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dietcl.errors import UserError
from dietcl.streams import index as index_module
from dietcl.streams import manifest
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import SCHEMA, write_manifest

COLUMNS: dict[str, list[Any]] = {
    "id": ["a", "b", "c", "d", "e"],
    "file": ["pack.npy", "pack.npy", "x/one.png", "x/two.jpg", "pack.npy"],
    "offset": [0, 7, -1, -1, 2],
    "label": ["dog", None, "cat", "dog", "ant"],
    "time": [1.5, None, 0.0, -2.0, 1e300],
    "split": ["train", "train", "test", "train", "test"],
}


def store(folder: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    """Write a Parquet file without any check."""
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, folder / "manifest.parquet", **options)
    return folder / "manifest.parquet"


def changed(column: str, row: int, value: Any) -> dict[str, list[Any]]:
    values = list(COLUMNS[column])
    values[row] = value
    return COLUMNS | {column: values}


@pytest.fixture
def reference(tmp_path: Path) -> str:
    """The hash of COLUMNS."""
    return open_manifest(store(tmp_path / "reference", COLUMNS)).hash


def test_the_index_holds_the_columns(tmp_path: Path) -> None:
    index = open_manifest(write_manifest(tmp_path / "new" / "manifest.parquet", COLUMNS))
    assert len(index) == 5
    assert [index.files[code] for code in index.file] == COLUMNS["file"]
    assert index.classes == ("ant", "cat", "dog")
    assert [None if code < 0 else index.classes[code] for code in index.label] == COLUMNS["label"]
    assert index.offset.tolist() == COLUMNS["offset"]
    np.testing.assert_array_equal(index.time, [1.5, np.nan, 0, -2, 1e300])
    assert index.split.tolist() == [0, 0, 1, 0, 1]
    assert index.root == tmp_path / "new"
    assert not list((tmp_path / "new").glob(".manifest*"))


@pytest.mark.parametrize(
    "options",
    [{"compression": "none"}, {"compression": "zstd"}, {"row_group_size": 1}, {"row_group_size": 2, "version": "1.0"}],
)
def test_the_hash_does_not_depend_on_the_file(tmp_path: Path, reference: str, options: dict[str, Any]) -> None:
    assert open_manifest(store(tmp_path, COLUMNS, **options)).hash == reference


def under_nulls() -> pa.Table:
    """COLUMNS with garbage where there is no value."""
    label = pa.array(["dog", "GARBAGE", "cat", "dog", "ant"])
    _, bounds, text = label.buffers()
    bitmap = pa.py_buffer(bytes([0b11111101]))  # bits past the end are garbage too
    hidden = pa.StringArray.from_buffers(5, bounds, text, bitmap)
    time = pa.DoubleArray.from_buffers(pa.float64(), 5, [bitmap, pa.py_buffer(np.array([1.5, 9, 0, -2, 1e300]))])
    return pa.table(COLUMNS | {"label": hidden, "time": time})


def sliced() -> pa.Table:
    """COLUMNS as the middle of a longer table."""
    return pa.table({name: [*values, *values, *values] for name, values in COLUMNS.items()}).slice(5, 5)


def chunked() -> pa.Table:
    table = pa.table(COLUMNS)
    return pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1, 3), table.slice(4)])


VARIANTS = {
    "column order": lambda: pa.table(dict(reversed(COLUMNS.items()))),
    "further columns": lambda: pa.table(COLUMNS | {"embedding": [[1.0]] * 5, "note": ["x"] * 5}),
    "large strings": lambda: pa.table(COLUMNS | {"id": pa.array(COLUMNS["id"], pa.large_string())}),
    "dictionaries": lambda: pa.table(COLUMNS | {"label": pa.array(COLUMNS["label"]).dictionary_encode()}),
    "small integers": lambda: pa.table(COLUMNS | {"offset": pa.array(COLUMNS["offset"], pa.int8())}),
    "not-a-number for no time": lambda: pa.table(changed("time", 1, float("nan"))),
    "minus zero": lambda: pa.table(changed("time", 2, -0.0)),
    "under nulls": under_nulls,
    "slice": sliced,
    "chunks": chunked,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_hash_depends_on_nothing_but_values(tmp_path: Path, reference: str, variant: str) -> None:
    table = VARIANTS[variant]()
    assert open_manifest(store(tmp_path, table)).hash == reference
    digest = manifest.ContentHash()
    digest.update(manifest.conform(table, tmp_path))  # without a round trip through a file, which tidies up
    assert digest.hexdigest() == reference


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("id", 0, "aa"),
        ("file", 4, "other.npy"),
        ("offset", 1, 8),
        ("label", 0, "cat"),
        ("label", 1, "ant"),
        ("label", 4, None),
        ("time", 0, np.nextafter(1.5, 2)),
        ("time", 2, None),
        ("split", 0, "test"),
    ],
)
def test_the_hash_depends_on_every_value(tmp_path: Path, reference: str, column: str, row: int, value: Any) -> None:
    assert open_manifest(store(tmp_path, changed(column, row, value))).hash != reference


def test_the_hash_tells_where_a_string_ends_and_which_row_is_first(tmp_path: Path, reference: str) -> None:
    hashes = {reference}
    hashes.add(open_manifest(store(tmp_path / "1", COLUMNS | {"id": ["a", "bc", "", "d", "e"]})).hash)
    hashes.add(open_manifest(store(tmp_path / "2", COLUMNS | {"id": ["a", "b", "cd", "", "e"]})).hash)
    hashes.add(open_manifest(store(tmp_path / "3", pa.table(COLUMNS).take([1, 0, 2, 3, 4]))).hash)
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({name: values for name, values in COLUMNS.items() if name != "split"}, ["'split'", "missing"]),
        (COLUMNS | {"offset": ["a", "b", "c", "d", "e"]}, ["'offset'", "int64", "string"]),
        (COLUMNS | {"offset": [0.5] * 5}, ["'offset'", "int64", "double"]),
        (COLUMNS | {"time": np.zeros(5, "M8[s]")}, ["'time'", "double", "timestamp"]),
        (COLUMNS | {"label": [["x"]] * 5}, ["'label'", "string", "list"]),
        (changed("id", 3, None), ["row 3", "'id'"]),
        (changed("file", 4, None), ["row 4", "'file'"]),
        (changed("id", 4, "b"), ["row 4", "'b'", "row 1"]),
        (COLUMNS | {"id": ["b", "a", "a", "b", "a"]}, ["row 3", "'b'", "row 0"]),
        (changed("split", 2, "validation"), ["row 2", "'validation'"]),
        (changed("split", 2, None), ["row 2", "'split'"]),
        (changed("time", 1, float("-inf")), ["row 1", "time", "-inf"]),
        (changed("label", 1, ""), ["row 1", "label", "null if unknown"]),
        (changed("offset", 2, -2), ["row 2", "offset", "-2"]),
        (changed("file", 3, "../secret.png"), ["row 3", "../secret.png", "inside"]),
        (changed("file", 3, "x/../../secret.png"), ["row 3", "inside"]),
        (changed("file", 3, ".."), ["row 3", "inside"]),
        (changed("file", 3, "/etc/secret.png"), ["row 3", "inside"]),
        (changed("file", 3, r"C:\secret.png"), ["row 3", "inside"]),
        (pa.table(COLUMNS).slice(0, 0), ["no rows"]),
        (SCHEMA.empty_table(), ["no rows"]),
    ],
)
def test_a_bad_manifest_is_refused_in_one_sentence(tmp_path: Path, columns: Any, words: list[str]) -> None:
    path = store(tmp_path, columns)
    with pytest.raises(UserError) as caught:
        open_manifest(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in [str(path), *words]), message
    if isinstance(columns, dict):
        with pytest.raises(UserError, match="written"):
            write_manifest(tmp_path / "written.parquet", columns)
        assert not (tmp_path / "written.parquet").exists()


def test_file_names_with_dots_are_legal(tmp_path: Path) -> None:
    index = open_manifest(write_manifest(tmp_path / "m.parquet", changed("file", 3, "..x/a..b/...")))
    assert index.files[index.file[3]] == "..x/a..b/..."


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.parquet: no such manifest"):
        open_manifest(tmp_path / "missing.parquet")
    with pytest.raises(UserError, match="no such manifest"):
        open_manifest(tmp_path)
    for content in (b"", b"id,file\na,b\n", b"PAR1 but nothing else PAR1"):
        (tmp_path / "text.parquet").write_bytes(content)
        with pytest.raises(UserError, match=r"text\.parquet: not a readable Parquet file"):
            open_manifest(tmp_path / "text.parquet")
    twice = pa.table([pa.array(["a"])] * 8, names=["id", *SCHEMA.names])
    with pytest.raises(UserError, match="'id' occurs twice"):
        open_manifest(store(tmp_path, twice))
    with pytest.raises(UserError, match="do not make a table"):
        write_manifest(tmp_path / "uneven.parquet", COLUMNS | {"id": ["a"]})


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    builds: list[Path] = []
    build = index_module._build

    def counted(source: Any, path: Path, folder: Path) -> None:
        builds.append(path)
        build(source, path, folder)

    monkeypatch.setattr(index_module, "_build", counted)
    return builds


def test_the_index_is_built_once_and_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = count_builds(monkeypatch)
    path = store(tmp_path, COLUMNS)
    first = open_manifest(path)
    assert open_manifest(path).hash == first.hash
    assert len(builds) == 1
    store(tmp_path, changed("label", 0, "cow"))
    os.utime(path, ns=(1, 1))
    second = open_manifest(path)
    assert len(builds) == 2
    assert second.classes == ("ant", "cat", "cow", "dog")
    assert second.hash != first.hash
    # Who still holds the old index reads the old values, and only the new one is kept.
    assert first.classes == ("ant", "cat", "dog")
    assert first.label.tolist() == [2, -1, 1, 2, 0]
    assert [first.files[i] for i in first.file] == COLUMNS["file"]
    assert len(list((tmp_path / "manifest.index").iterdir())) == 1


@pytest.mark.parametrize("name", ["label.npy", "files.arrow", "index.json"])
def test_a_broken_index_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = store(tmp_path, COLUMNS)
    expected = open_manifest(path).hash
    (broken,) = (tmp_path / "manifest.index").glob(f"*/{name}")
    broken.write_bytes(broken.read_bytes()[:20])
    builds = count_builds(monkeypatch)
    for _ in range(2):
        assert open_manifest(path).hash == expected
    assert len(builds) == 1


def test_builders_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path, COLUMNS)
    build = index_module._build
    inner = []

    def build_while_another_builds(source: Any, path: Path, folder: Path) -> None:
        if not inner:
            inner.append(None)
            inner.append(open_manifest(path))
        build(source, path, folder)

    monkeypatch.setattr(index_module, "_build", build_while_another_builds)
    outer = open_manifest(path)
    assert outer.hash == inner[1].hash
    assert outer.label.tolist() == inner[1].label.tolist()
    assert len(list((tmp_path / "manifest.index").iterdir())) == 1


def test_two_processes_build_at_the_same_time(tmp_path: Path) -> None:
    path = store(tmp_path, COLUMNS)
    code = (
        "import sys, shutil; from pathlib import Path; from dietcl.streams.index import open_manifest\n"
        "path = Path(sys.argv[1])\n"
        "for i in range(60):\n"
        "    index = open_manifest(path)\n"
        "    assert index.label.tolist() == [2, -1, 1, 2, 0] and index.files[index.file[2]] == 'x/one.png'\n"
        "    if i % 3 == int(sys.argv[2]): shutil.rmtree(path.with_name('manifest.index'), ignore_errors=True)\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), str(number)]) for number in range(2)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]


def block(place: Path) -> None:
    """Make a folder that cannot be made, for root too."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("in the way")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index_module.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = store(tmp_path / "data", COLUMNS)
    block(tmp_path / "data" / "manifest.index")
    builds = count_builds(monkeypatch)
    hashes = {open_manifest(path).hash, open_manifest(path).hash}
    assert len(builds) == 1
    assert len(list((tmp_path / "cache" / "indexes").glob("*/*/index.json"))) == 1

    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "blocked"))
    block(tmp_path / "blocked")
    index = open_manifest(path)
    assert {index.hash} == hashes
    assert index.label.tolist() == [2, -1, 1, 2, 0]
    assert index.files[index.file[3]] == "x/two.jpg"
    assert not list((tmp_path / "temporary").iterdir())


def test_manifests_of_one_name_do_not_share_a_cached_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "cache"))
    found = []
    for folder, label in (("one", "cow"), ("two", "pig")):
        path = store(tmp_path / folder, changed("label", 0, label))
        os.utime(path, ns=(1, 1))
        block(tmp_path / folder / "manifest.index")
        found.append(open_manifest(path))
    assert "cow" in found[0].classes
    assert "pig" in found[1].classes
    assert found[0].root != found[1].root


@pytest.mark.parametrize(
    ("facts", "root"), [("[]", "."), ('"x"', "."), ('{"nonsense": 1}', "."), ("{", "."), ('{"root": "sub"}', "sub")]
)
def test_what_a_manifest_says_about_itself_may_be_nonsense(tmp_path: Path, facts: str, root: str) -> None:
    table = pa.table(COLUMNS)
    with pq.ParquetWriter(tmp_path / "m.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"dietcl": facts})
    assert open_manifest(tmp_path / "m.parquet").root == tmp_path / root


@pytest.mark.parametrize("root", ["5", "null", '["s3://x"]'])
def test_a_root_that_is_no_text_is_refused_in_one_sentence(tmp_path: Path, root: str) -> None:
    table = pa.table(COLUMNS)
    with pq.ParquetWriter(tmp_path / "m.parquet", table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"dietcl": f'{{"root": {root}}}'})
    with pytest.raises(UserError, match=r"m\.parquet: names .* as its root, .*; prepare the data again"):
        open_manifest(tmp_path / "m.parquet")
