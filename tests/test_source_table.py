"""Tables of images: CSV, TSV and Parquet, good and hostile."""

import csv
import datetime
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.place import Place
from dietcl.streams.sources import tabular
from dietcl.streams.sources.holdout import holdout
from dietcl.streams.sources.readers import prepare
from dietcl.streams.sources.table import Table
from prepared import quarantine, rows


def image(color: int = 0, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (color, 90, 200)).save(stream, kind)
    return stream.getvalue()


def write(folder: Path, text: str | bytes, name: str = "table.csv") -> str:
    for number in range(6):
        (folder / f"{number}.jpg").write_bytes(image(40 * number))
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return str(folder / name)


def test_every_column_of_a_csv_arrives(tmp_path: Path) -> None:
    text = (
        "path,label,time,split,id,caption\n0.jpg,007,2.5,train,a,x\n1.jpg,,1970-01-02,val,b,y\n./2.jpg,cat,,TEST,,z\n"
    )
    prepared = prepare(Table(), write(tmp_path, text), tmp_path / "out")
    found = rows(prepared)
    assert found["id"] == ["a", "b", "2.jpg"]
    assert found["file"] == ["0.jpg", "1.jpg", "2.jpg"]
    assert found["label"] == ["007", None, "cat"]  # never read as the number 7
    assert found["time"] == [2.5, 86400.0, None]
    assert found["split"] == ["train", "test", "test"]
    facts = read_facts(prepared.manifest)
    assert (facts.recipe, facts.time_steps, facts.source) == ("time", 20, "table")
    index = open_manifest(prepared.manifest)
    assert index.classes == ("007", "cat")
    assert not quarantine(tmp_path / "out")


def test_paths_alone_are_enough(tmp_path: Path) -> None:
    prepared = prepare(
        Table(test_share=0.5), write(tmp_path, "path\n" + "".join(f"{i}.jpg\n" for i in range(6))), tmp_path / "out"
    )
    found = rows(prepared)
    assert found["label"] == [None] * 6
    assert found["split"] == holdout(found["file"], 0.5)
    assert read_facts(prepared.manifest).recipe == "class"


def test_a_time_column_without_a_value_suggests_classes(tmp_path: Path) -> None:
    prepared = prepare(Table(), write(tmp_path, "path,time\n0.jpg,\n1.jpg,\n"), tmp_path / "out")
    assert read_facts(prepared.manifest).recipe == "class"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.tsv", 'path\tlabel\n0.jpg\t"a, b"\n'),
        ("t.txt", "path\tlabel\n0.jpg\ta, b\n"),
        ("t.csv", "path;label\r\n0.jpg;a, b\r\n"),
        ("t.CSV", '\ufeff"path","label"\n"0.jpg","a, b"'),
    ],
)
def test_delimiters_quotes_and_line_ends(tmp_path: Path, name: str, text: str) -> None:
    found = rows(prepare(Table(), write(tmp_path, text, name), tmp_path / "out"))
    assert (found["file"], found["label"]) == (["0.jpg"], ["a, b"])


def test_columns_and_folder_are_options(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").write_bytes(image(kind="PNG"))
    table = Table(path="file", label="class", time="day", split="set", id="key", root="photos/")
    text = "key,set,day,class,file\nk,test,3,dog,0.png\n"
    found = rows(prepare(table, write(tmp_path, text), tmp_path / "out"))
    assert {name: column[0] for name, column in found.items()} == {
        "id": "k",
        "file": "photos/0.png",
        "offset": -1,
        "label": "dog",
        "time": 3.0,
        "split": "test",
        "length": None,
    }


def test_one_column_may_play_two_roles(tmp_path: Path) -> None:
    found = rows(prepare(Table(id="path"), write(tmp_path, "path\n0.jpg\n1.jpg\n"), tmp_path / "out"))
    assert found["id"] == found["file"] == ["0.jpg", "1.jpg"]


def test_bad_rows_are_quarantined_by_their_spreadsheet_rows(tmp_path: Path) -> None:
    (tmp_path.parent / "secret.jpg").write_bytes(image())
    (tmp_path / "link.jpg").symlink_to(tmp_path.parent / "secret.jpg")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "cut.jpg").write_bytes(image()[:60])
    lines: list[tuple[bytes, str | None]] = [
        (b"0.jpg,a,1,train,i0", None),
        (b"1.jpg,a", "the row has another number of fields than the header (2)"),
        (b"../secret.jpg,a,1,train,i1", "the path leads outside the folder: ../secret.jpg"),
        (b"/etc/passwd,a,1,train,i2", "the path leads outside the folder: /etc/passwd"),
        (b"C:\\x.jpg,a,1,train,i3", "the path leads outside the folder: C:\\x.jpg"),
        (b"link.jpg,a,1,train,i4", "a link leads outside the folder: link.jpg"),
        (b"empty.jpg,a,1,train,i5", "the file is empty: empty.jpg"),
        (b"cut.jpg,a,1,train,i6", "not a readable image"),
        (b"none.jpg,a,1,train,i7", "cannot be read (No such file or directory): none.jpg"),
        (b"1.jpg,a,noon,train,i8", "the time is neither a number nor a date ('noon'): 1.jpg"),
        (b"1.jpg,a,inf,train,i9", "the time is neither a number nor a date ('inf'): 1.jpg"),
        (b"1.jpg,a,1,holiday,i10", "the split is neither train nor test ('holiday')"),
        (b",a,1,train,i11", "the row has no path"),
        (b"", "the row has no path"),
        (b"1.jpg,\xe9t\xe9,1,train,i12", "the row is not UTF-8 text"),
        (b'1.jpg,"a\nb",1,train,i13', "the row has a line break inside quotes"),
        (b"x\0.jpg,a,1,train,i14", "cannot be read (embedded null byte)"),
        (b"1.jpg,a,1,train,i15,more", "the row has another number of fields than the header (6)"),
        (b"2.jpg,b,2,train,i0", "the id is there twice: i0"),
        (b"3.jpg,b,2,train,i16", None),
    ]
    text = b"path,label,time,split,id\n" + b"\n".join(line for line, _ in lines) + b"\n"
    prepared = prepare(Table(), write(tmp_path, text), tmp_path / "out")
    assert rows(prepared)["id"] == ["i0", "i16"]
    found = {row: (file, problem) for file, row, problem in quarantine(tmp_path / "out") if row}
    for number, (_, problem) in enumerate(lines, 2):
        if problem:
            file, said = found.pop(str(number))
            assert file == "table.csv"
            assert said.startswith(problem)
    assert not found
    assert prepared.kept == 2
    assert sum(prepared.problems.values()) == 18


def test_row_numbers_hold_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "_BLOCK", 64)
    lines = [
        "0.jpg,a,b" if number % 7 == 0 else "" if number % 11 == 0 else f"no{number}.jpg,a" for number in range(2, 200)
    ]
    write(tmp_path, "path,label\n" + "\n".join([*lines, "1.jpg,a"]) + "\n")
    prepare(Table(), str(tmp_path / "table.csv"), tmp_path / "out")
    found = {int(row): problem for _, row, problem in quarantine(tmp_path / "out")}
    assert sorted(found) == list(range(2, 200))
    for number, problem in found.items():
        if number % 7 == 0:
            assert "another number of fields" in problem
        elif number % 11 == 0:
            assert problem == "the row has no path"
        else:
            assert problem.endswith(f": no{number}.jpg")


def test_a_quote_that_is_never_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular, "_BLOCK", 64)
    text = "path,label\n0.jpg,a\n" + '1.jpg,"b\n' + "2.jpg,c\n" * 40
    with pytest.raises(UserError, match=r"table.csv: not a readable table after row 2 \(") as error:
        prepare(Table(), write(tmp_path, text), tmp_path / "out")
    assert "\n" not in str(error.value)


def parquet(folder: Path, columns: dict[str, Any], name: str = "table.parquet") -> str:
    write(folder, b"", name)
    pq.write_table(pa.table(columns), folder / name, row_group_size=2)
    return str(folder / name)


PATHS = [f"{number}.jpg" for number in range(4)]


@pytest.mark.parametrize(
    "bad",
    [
        pa.array([1.0, None, 2.5, float("nan")]),
        pa.array([True, None, False, None]),
        pa.array([["a"], None, [], None]),
        pa.array([b"a", None, b"b", None]),
        pa.array([1, None, 3, None], pa.timestamp("ns")),
    ],
    ids=lambda array: str(array.type),
)
def test_labels_of_a_parquet_table_must_be_strings_or_whole_numbers(tmp_path: Path, bad: pa.Array) -> None:
    prepared = prepare(Table(), parquet(tmp_path, {"path": PATHS, "label": bad}), tmp_path / "out")
    assert rows(prepared)["file"] == ["1.jpg", "3.jpg"]  # no label is no fault
    found = quarantine(tmp_path / "out")
    assert [(file, row) for file, row, _ in found] == [("table.parquet", "0"), ("table.parquet", "2")]
    assert prepared.problems == {"the label is neither a string nor a whole number": 2}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (pa.array([datetime.datetime(1970, 1, 1, 0, 0, 2), None], pa.timestamp("ms")), [2.0, None]),
        (pa.array([1_500_000_001, None], pa.timestamp("ns", "UTC")), [1.5, None]),
        (pa.array([datetime.date(1970, 1, 3), None]), [172800.0, None]),
        (pa.array([2**60 + 1, None]), [float(2**60), None]),
        (pa.array(["1970-01-01T00:00:01+00:00", ""]), [1.0, None]),
        (pa.array(["7", None]).dictionary_encode(), [7.0, None]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_times_of_a_parquet_table(tmp_path: Path, times: pa.Array, expected: list[float | None]) -> None:
    prepared = prepare(Table(), parquet(tmp_path, {"path": PATHS[:2], "time": times}), tmp_path / "out")
    assert rows(prepared)["time"] == expected
    assert read_facts(prepared.manifest).recipe == "time"


@pytest.mark.parametrize(
    "bad",
    [pa.array([5, None], pa.duration("ns")), pa.array([True, None]), pa.array([[1], None])],
    ids=lambda a: str(a.type),
)
def test_what_is_no_time_is_quarantined(tmp_path: Path, bad: pa.Array) -> None:
    prepared = prepare(Table(), parquet(tmp_path, {"path": PATHS[:2], "time": bad}), tmp_path / "out")
    assert rows(prepared)["file"] == ["1.jpg"]
    [(file, row, problem)] = quarantine(tmp_path / "out")
    assert (file, row) == ("table.parquet", "0")
    assert problem.startswith("the time is neither a number nor a date")


def test_numbers_are_class_names_and_ids(tmp_path: Path) -> None:
    columns = {"path": pa.array(PATHS, pa.large_string()), "label": [3, 10, None, 3], "id": [9, 8, 7, 6]}
    found = rows(prepare(Table(), parquet(tmp_path, columns), tmp_path / "out"))
    assert (found["label"], found["id"]) == (["3", "10", None, "3"], ["9", "8", "7", "6"])


def test_missing_paths_of_a_parquet_table(tmp_path: Path) -> None:
    columns = {"path": ["0.jpg", None, ""], "split": pa.array(["train", "train", None]).dictionary_encode()}
    prepare(Table(), parquet(tmp_path, columns), tmp_path / "out")
    assert quarantine(tmp_path / "out") == [["table.parquet", row, "the row has no path"] for row in ("1", "2")]


@pytest.mark.parametrize(
    ("name", "text", "table", "sentence"),
    [
        (
            "t.csv",
            "file,label\n0.jpg,a\n",
            {},
            r"t.csv: column 'path' is missing; its columns are 'file', 'label'.*--path",
        ),
        ("t.csv", "path,klass\n0.jpg,a\n", {"label": "class"}, r"column 'class' is missing.*--label"),
        ("t.csv", "path,path\n0.jpg,a\n", {}, r"column 'path' is there twice"),
        ("t.csv", "", {}, r"t.csv: column 'path' is missing; its columns are none"),
        ("t.csv", b"\xff\xfep\0a\0t\0h\0\n\0", {}, r"t.csv: column 'path' is missing"),
        ("t.parquet", b"PAR1 and then nothing", {}, r"t.parquet: not a readable Parquet file"),
        ("t.parquet", b"", {}, r"t.parquet: not a readable Parquet file"),
    ],
)
def test_unusable_tables(tmp_path: Path, name: str, text: str | bytes, table: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        prepare(Table(**table), write(tmp_path, text, name), tmp_path / "out")
    assert "\n" not in str(error.value)


def test_columns_of_the_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="column 'path' holds double; a column for --path must hold strings"):
        prepare(Table(), parquet(tmp_path, {"path": [1.5]}), tmp_path / "out")


def test_options_are_checked(tmp_path: Path) -> None:
    for root in ("../x", "/x", "s3://b/x", "C:/x"):
        with pytest.raises(UserError, match="--root"):
            Table(root=root)
    with pytest.raises(UserError, match="--test-share"):
        Table(test_share=1)
    with pytest.raises(UserError, match="give the path of the table"):
        prepare(Table(), str(tmp_path), tmp_path / "out")


def test_recognition(tmp_path: Path) -> None:
    parquet(tmp_path, {"path": PATHS})
    parquet(tmp_path, {"file": PATHS, "offset": [0, 1, 2, 3]}, "manifest.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"x")
    place = Place.of(tmp_path)
    names = ("a.csv", "a.TSV", "table.parquet", "manifest.parquet", "broken.parquet", "a.tar", "")
    assert [Table.fits(place, name) for name in names] == [True, True, True, False, False, False, False]


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
TIMES = st.none() | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.tuples(NAMES, st.none() | NAMES, TIMES), min_size=1, max_size=30, unique_by=lambda row: row[0])


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_any_table_of_good_rows_survives(tmp_path_factory: pytest.TempPathFactory, good: list[tuple[Any, ...]]) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "0.jpg").write_bytes(image())
    ids, labels, times = map(list, zip(*good, strict=True))
    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([("path", "id", "label", "time"), *(("0.jpg", *row) for row in good)])
    pq.write_table(
        pa.table({"path": ["0.jpg"] * len(ids), "id": ids, "label": labels, "time": times}), folder / "t.parquet"
    )
    for name in ("t.csv", "t.parquet"):
        found = rows(prepare(Table(), str(folder / name), folder / f"{name}-out", verify="none"))
        assert (found["id"], found["label"]) == (ids, labels)
        np.testing.assert_array_equal(np.array(found["time"], float), np.array(times, float))
        assert not quarantine(folder / f"{name}-out")
