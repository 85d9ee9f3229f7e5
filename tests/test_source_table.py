"""Tables of images: CSV, TSV and Parquet, good and hostile."""

import csv
import datetime
import io
import tempfile
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
from dietcl.streams import manifest
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts, write_manifest
from dietcl.streams.sources.parsing import table_rows
from dietcl.streams.sources.parsing.table_rows import csv_batches
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.registry import prepare, prepare_in_cache
from dietcl.streams.verify import find_problems
from helpers.prepared import quarantine, rows

UNMATCHED = "the row has quotes that do not match, or a line break inside them"


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
    assert (facts.recipe, facts.time_steps, facts.source) == ("time", 1, "table")
    index = open_manifest(prepared.manifest)
    assert index.classes == ("007", "cat")
    assert not quarantine(tmp_path / "out")


def test_paths_alone_are_enough(tmp_path: Path) -> None:
    prepared = prepare(
        Table(test_share=0.5), write(tmp_path, "path\n" + "".join(f"{i}.jpg\n" for i in range(6))), tmp_path / "out"
    )
    found = rows(prepared)
    assert found["label"] == [None] * 6
    assert found["split"] == ["train"] * 6  # a test image without a label would count for nothing
    assert read_facts(prepared.manifest).recipe != "time"


def test_a_time_column_without_a_value_suggests_no_cut_by_time(tmp_path: Path) -> None:
    prepared = prepare(Table(), write(tmp_path, "path,time\n0.jpg,\n1.jpg,\n"), tmp_path / "out")
    assert read_facts(prepared.manifest).recipe != "time"


def test_the_first_time_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_BLOCK", 64)
    text = "path,time\n" + "".join(f"{i}.jpg,{7 if i >= 250 else ''}\n" for i in range(500))
    prepared = prepare(Table(), write(tmp_path, text), tmp_path / "out", verify="none")
    assert prepared.kept == 500
    assert read_facts(prepared.manifest).recipe == "time"


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
        "file": "0.png",
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
        (
            b"1.jpg,a,noon,train,i8",
            "the time is neither a number nor a date ('noon'): 1.jpg",
        ),
        (
            b"1.jpg,a,inf,train,i9",
            "the time is neither a number nor a date ('inf'): 1.jpg",
        ),
        (b"1.jpg,a,1,holiday,i10", "the split is neither train nor test ('holiday')"),
        (b",a,1,train,i11", "the row has no path"),
        (b"", "the row has no path"),
        (b"1.jpg,\xe9t\xe9,1,train,i12", "the row is not UTF-8 text"),
        (b'1.jpg,"a', UNMATCHED),
        (b'b",1,train,i13', UNMATCHED),
        (b"x\0.jpg,a,1,train,i14", "cannot be read (embedded null byte)"),
        (b"1.jpg,a,1,train,i15,more", "the row has another number of fields than the header (6)"),
        (b"2.jpg,b,2,train,i0", "the id occurs twice: i0"),
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
    assert sum(prepared.problems.values()) == 19


def test_row_numbers_hold_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_BLOCK", 64)
    lines = [
        "0.jpg,a,b" if number % 7 == 0 else "" if number % 11 == 0 else f"no{number}.jpg,a" for number in range(3, 200)
    ]
    write(tmp_path, "path,label\n" + "\n".join(["1.jpg,a", *lines]) + "\n")
    prepare(Table(), str(tmp_path / "table.csv"), tmp_path / "out")
    found = {int(row): problem for _, row, problem in quarantine(tmp_path / "out")}
    assert sorted(found) == list(range(3, 200))
    for number, problem in found.items():
        if number % 7 == 0:
            assert "another number of fields" in problem
        elif number % 11 == 0:
            assert problem == "the row has no path"
        else:
            assert problem.endswith(f": no{number}.jpg")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "stray", ['"c0/x.jpg,a', 'c0/x.jpg,"a', 'c0/x.jpg,"a""', '"c0/x.jpg"x,a', '"c0/x.jpg","a', '"']
)
@pytest.mark.parametrize("block", [1, 64, None])
def test_a_stray_quote_costs_its_own_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stray: str, end: str, block: int | None
) -> None:
    if block:
        monkeypatch.setattr(table_rows, "_BLOCK", block)
    lines = ["path,label", *(f"c{i % 7}/{i}.jpg,{i % 7}" for i in range(120))]
    lines[0], lines[11], lines[60], lines[120] = lines[0], stray, 'c/60.jpg,"a, ""b"""', 'c/5"nail.jpg,6"'
    (tmp_path / "t.csv").write_bytes(end.join(lines).encode())
    prepared = prepare(Table(), str(tmp_path / "t.csv"), tmp_path / "out", verify="none")
    assert quarantine(tmp_path / "out")[0] == ["t.csv", "12", UNMATCHED]
    found = dict(zip(rows(prepared)["file"], rows(prepared)["label"], strict=True))
    assert found["c/60.jpg"] == 'a, "b"'
    assert found['c/5"nail.jpg'] == '6"'
    assert prepared.kept == 119


def test_a_stray_quote_in_a_large_table(tmp_path: Path) -> None:
    lines = [f"c{i % 100}/{i:09}.jpg,{i % 100}" for i in range(300_000)]
    assert sum(map(len, lines)) > 1.3 * table_rows._BLOCK
    strays = {10: '"', 150_000: '","', 299_999: 'x,"'}
    for i, quote in strays.items():
        lines[i] = quote + lines[i]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *lines, ""]))
    prepared = prepare(Table(), str(tmp_path / "t.csv"), tmp_path / "out", verify="none")
    assert prepared.kept == 300_000 - len(strays)
    assert [int(row) - 2 for _, row, _ in quarantine(tmp_path / "out")] == list(strays)


def test_the_rest_of_a_row_with_a_line_break_is_no_row(tmp_path: Path) -> None:
    text = 'path,label,words\n0.jpg,a,"first\n1.jpg,b,end"\n2.jpg,c,5"\n3.jpg,"d",",x"\n'
    prepared = prepare(Table(), write(tmp_path, text), tmp_path / "out")
    assert rows(prepared)["file"] == ["2.jpg", "3.jpg"]
    assert quarantine(tmp_path / "out") == [["table.csv", row, UNMATCHED] for row in ("2", "3")]


def test_lines_that_a_parser_gets_wrong_take_no_others_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = table_rows.pa_csv.read_csv

    def read_csv(data: Any, *options: Any) -> Any:
        text = data.read()
        if b"/7.jpg" in text:
            raise pa.ArrowInvalid("no")
        return whole(io.BytesIO(text.replace(b"c/9.jpg,x\n", b"")), *options)

    monkeypatch.setattr(table_rows.pa_csv, "read_csv", read_csv)
    text = "path,label\n" + "".join(f"c/{i}.jpg,x\n" for i in range(20))
    prepared = prepare(Table(), write(tmp_path, text), tmp_path / "out", verify="none")
    assert prepared.kept == 18
    assert quarantine(tmp_path / "out") == [["table.csv", row, "the row cannot be parsed"] for row in ("9", "11")]


@pytest.mark.parametrize("header", ['path,"label', '"path"x,label', 'path,"label""'])
def test_a_stray_quote_in_the_header(tmp_path: Path, header: str) -> None:
    with pytest.raises(UserError, match=r"table.csv: (has no readable header|column 'path' is missing)"):
        prepare(Table(), write(tmp_path, f"{header}\n0.jpg,a\n"), tmp_path / "out")


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_BLOCK", 64)
    monkeypatch.setattr(table_rows, "_LONGEST", 200)
    text = "path,label\n0.jpg,a\n" + "x" * 100_000
    with pytest.raises(UserError, match=r"table.csv: not a readable table after row 2 \(a line of more than 200 bytes"):
        prepare(Table(), write(tmp_path, text), tmp_path / "out")


LINES = st.lists(
    st.text('"",ab\r\té ', max_size=14).map(lambda text: f"{text},x" if len(text) % 2 else text), max_size=25
)


@settings(max_examples=200, deadline=None)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.integers(1, 40), st.booleans(), st.sampled_from(["path", "path,b"]))
def test_every_line_is_a_row_or_a_problem(lines: list[str], end: str, block: int, ended: bool, header: str) -> None:
    lines = [line for text in lines for line in text.split("\r")]
    data = end.join([header, *lines]) + end * ended
    count = len(lines) - (not ended and bool(lines) and not lines[-1])  # an empty line at the end needs an end
    problems: dict[int, str] = {}
    found: dict[int, str] = {}

    def problem(row: int, sentence: str) -> None:
        assert row not in problems
        problems[row] = sentence

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(table_rows, "_BLOCK", block)
        (Path(folder) / "t.csv").write_bytes(data.encode())
        for number, batch in csv_batches(FileRoot.of(folder), "t.csv", ["path"], problem):
            found |= dict(zip(number.tolist(), batch[0].to_pylist(), strict=True))
    assert sorted([*found, *problems]) == list(range(2, 2 + count))
    for row, line in enumerate(lines[:count], start=2):
        fields = line.split(",") if line else [""] * len(header.split(","))
        if '"' not in line:
            assert (row in found) == (len(fields) == len(header.split(",")))
            assert found.get(row, fields[0]) == fields[0]
        elif row in found:
            assert found[row] == next(csv.reader([line], strict=True))[0]


def parquet(folder: Path, columns: dict[str, Any], name: str = "table.parquet") -> str:
    write(folder, b"", name)
    pq.write_table(pa.table(columns), folder / name, row_group_size=2)
    return str(folder / name)


PATHS = [f"{number}.jpg" for number in range(4)]


@pytest.mark.parametrize(
    "bad",
    [
        pa.array([1.5, None, 2e300, float("nan")]),
        pa.array([0.5, None, float("inf"), None], pa.float32()),
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


def test_whole_numbers_that_became_doubles_are_class_names(tmp_path: Path) -> None:
    labels = pa.array([0.0, None, -0.0, 12.0])
    prepared = prepare(Table(), parquet(tmp_path, {"path": PATHS, "label": labels}), tmp_path / "out")
    assert rows(prepared)["label"] == ["0", None, "0", "12"]
    assert not prepared.problems
    # And so they are in a manifest.
    columns = {"id": PATHS, "file": PATHS, "offset": [-1] * 4, "label": labels, "time": [None] * 4}
    by_hand = write_manifest(tmp_path / "m.parquet", columns | {"split": ["train"] * 4})
    assert pq.read_table(by_hand)["label"].to_pylist() == ["0", None, "0", "12"]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (pa.array([1.0, None, 2.5, 3.5]), r"m.parquet: row 2 has label 2.5; give a name or a whole number"),
        (pa.array([1.0, None, 1.0, float("inf")], pa.float32()), r"m.parquet: row 3 has label inf"),
        (pa.array([True, None, False, True]), r"m.parquet: column 'label' must hold string and holds bool"),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_labels_of_a_manifest_by_hand_are_of_the_same_kinds(tmp_path: Path, labels: pa.Array, sentence: str) -> None:
    columns: dict[str, Any] = {"id": PATHS, "file": PATHS, "offset": [-1] * 4, "label": labels, "time": [None] * 4}
    columns["split"] = ["train"] * 4
    with pytest.raises(UserError, match=sentence):
        write_manifest(tmp_path / "m.parquet", columns)
    pq.write_table(pa.table(columns), tmp_path / "m.parquet")
    with pytest.raises(UserError, match=sentence):
        open_manifest(tmp_path / "m.parquet")


def test_a_label_far_down_a_manifest_is_named_by_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "BATCH", 4)
    names = [str(i) for i in range(10)]
    columns = {"id": names, "file": names, "offset": [-1] * 10, "label": [*range(9), 0.5], "time": [None] * 10}
    pq.write_table(pa.table(columns | {"split": ["train"] * 10}), tmp_path / "m.parquet")
    with pytest.raises(UserError, match=r"row 9 has label 0.5"), pq.ParquetFile(tmp_path / "m.parquet") as file:
        list(manifest.batches(file, tmp_path / "m.parquet"))


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
        ("t.csv", "path,path\n0.jpg,a\n", {}, r"column 'path' occurs twice"),
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


def test_the_images_may_lie_outside_the_tables_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("lists", "photos", "lists/below"):
        (tmp_path / folder).mkdir()
    table = write(tmp_path / "lists", "path\n0.jpg\nlost.jpg\n")
    for root, expected in {
        str(tmp_path / "photos"): "photos",
        "../photos": "photos",  # relative to the table
        "photos": "photos",  # relative to the current folder, where the table's has none
        "below": "lists/below",
    }.items():
        monkeypatch.chdir(tmp_path)
        (tmp_path / expected / "0.jpg").write_bytes(image())
        out = tmp_path / f"out-{len(root)}"
        prepared = prepare(Table(root=root), table, out)
        assert rows(prepared)["file"] == ["0.jpg"]
        assert read_facts(prepared.manifest).root == str(tmp_path / expected)
        assert not list(find_problems(open_manifest(prepared.manifest), np.arange(1), jobs=1))
        assert quarantine(out) == [["table.csv", "3", "cannot be read (No such file or directory): lost.jpg"]]


def test_a_link_may_not_lead_out_of_the_given_root(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    table = write(tmp_path, "path\nin.jpg\nout.jpg\n")
    (tmp_path / "photos" / "0.jpg").write_bytes(image())
    (tmp_path / "photos" / "in.jpg").symlink_to("0.jpg")
    (tmp_path / "photos" / "out.jpg").symlink_to("../0.jpg")
    assert rows(prepare(Table(root="photos"), table, tmp_path / "out"))["file"] == ["in.jpg"]
    assert quarantine(tmp_path / "out") == [["table.csv", "3", "a link leads outside the folder: out.jpg"]]


def test_absolute_paths_anywhere_need_an_option(tmp_path: Path) -> None:
    for folder in ("a", "b", "lists"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(image())
    (tmp_path / "b" / "y.jpg").write_bytes(image())
    text = f"path\n{tmp_path}/a/x.jpg\n../b/y.jpg\n0.jpg\n"
    table = write(tmp_path / "lists", text)
    prepared = prepare(Table(allow_absolute=True), table, tmp_path / "out")
    assert rows(prepared)["file"] == [str(tmp_path / name)[1:] for name in ("a/x.jpg", "b/y.jpg", "lists/0.jpg")]
    assert read_facts(prepared.manifest).root == "/"
    assert not list(find_problems(open_manifest(prepared.manifest), np.arange(3), jobs=1))
    assert rows(prepare(Table(), table, tmp_path / "strict"))["file"] == ["0.jpg"]
    outside_alone = write(tmp_path / "lists", f"path\n{tmp_path}/a/x.jpg\n")
    with pytest.raises(UserError, match=r"a/x.jpg: leads outside .*/lists; give .* --root, or .* --allow-absolute$"):
        prepare(Table(), outside_alone, tmp_path / "none")


def test_the_first_error_says_where_paths_start(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    table = write(tmp_path, "path\nlost/1.jpg\nlost/2.jpg\n")
    with pytest.raises(
        UserError, match=r"lost/1.jpg: no such image.*; paths are relative to the table's folder; .*--root"
    ):
        prepare(Table(), table, tmp_path / "out")
    with pytest.raises(UserError, match=r"photos/lost/1.jpg: no such image.*; paths are relative to --root photos$"):
        prepare(Table(root="photos"), table, tmp_path / "out")
    with pytest.raises(UserError, match=r"--root nowhere: no such folder in .*, nor in the current folder"):
        prepare(Table(root="nowhere"), table, tmp_path / "out")


def test_times_in_a_format_of_ones_own(tmp_path: Path) -> None:
    text = "path,time\n0.jpg,31.12.1969 23:59\n1.jpg,02.01.1970 00:00\n2.jpg,\n3.jpg,1970-01-02\n"
    prepared = prepare(Table(time_format="%d.%m.%Y %H:%M"), write(tmp_path, text), tmp_path / "out")
    assert rows(prepared)["time"] == [-60.0, 86400.0, None]
    problem = "the time is not in the given format ('1970-01-02')"
    assert quarantine(tmp_path / "out") == [["table.csv", "5", problem]]
    zoned = prepare(
        Table(time_format="%Y%m%d%z"), write(tmp_path, "path,time\n0.jpg,19700101+0100\n"), tmp_path / "zoned"
    )
    assert rows(zoned)["time"] == [-3600.0]


def test_times_that_none_can_read_name_the_option(tmp_path: Path) -> None:
    table = write(tmp_path, "path,time\n0.jpg,31.12.1999\n1.jpg,01.01.2000\n")
    with pytest.raises(UserError, match=r"table.csv: the time is neither .* nor a date in any row; .* --time-format$"):
        prepare(Table(), table, tmp_path / "out")


def test_options_are_named_as_python_takes_them(tmp_path: Path, cache: Path) -> None:
    table = Path(write(tmp_path, "path,time\n0.jpg,31.12.1999\n1.jpg,01.01.2000\n", "many--root.csv"))
    advice = r"\(in Python: dietcl.prepare\(path, dietcl.reader\('table', time_format=...\)\)\)$"
    with pytest.raises(UserError, match=rf"as --time-format {advice}"):
        prepare_in_cache(table)
    assert prepare_in_cache(table, Table(time_format="%d.%m.%Y")).is_relative_to(cache)
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(UserError, match=r"choose with --kind .* \(in Python: .*dietcl.reader\(KIND\)\)\)$"):
        prepare_in_cache(tmp_path / "notes.txt")
    with pytest.raises(UserError, match=r"check the path$"):
        prepare_in_cache(tmp_path / "nothing.txt")


def test_numbers_may_be_dates_in_a_format(tmp_path: Path) -> None:
    table = parquet(tmp_path, {"path": PATHS[:2], "time": [19700102, None]})
    assert rows(prepare(Table(time_format="%Y%m%d"), table, tmp_path / "out"))["time"] == [86400.0, None]


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--time-format %Q: not a format"):
        Table(time_format="%Q")
    with pytest.raises(UserError, match="--test-share"):
        Table(test_share=1)
    with pytest.raises(UserError, match="give the path of the table"):
        prepare(Table(), str(tmp_path), tmp_path / "out")


def test_recognition(tmp_path: Path) -> None:
    parquet(tmp_path, {"path": PATHS})
    parquet(tmp_path, {"file": PATHS, "offset": [0, 1, 2, 3]}, "manifest.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"x")
    place = FileRoot.of(tmp_path)
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
