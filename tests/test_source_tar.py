"""Tar shards in the layout of WebDataset, good and hostile."""

import contextlib
import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.readers import tar
from dietcl.streams.sources.readers.tar import Tar, samples
from dietcl.streams.sources.registry import prepare
from dietcl.streams.storage import Storage
from helpers.prepared import quarantine, rows


def image(color: int = 0, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (color, 90, 200)).save(stream, kind)
    return stream.getvalue()


Entry = tuple[str | tarfile.TarInfo, bytes]


def write(path: Path, entries: list[Entry], format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in entries:
            member = tarfile.TarInfo(name) if isinstance(name, str) else name
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_samples_are_read_where_they_lie(tmp_path: Path) -> None:
    facts = json.dumps({"label": "dog", "time": 7, "id": "mine"}).encode()
    first = [
        ("01.jpg", image(10, "JPEG")),
        ("01.cls", b"3\n"),
        ("01.txt", b"a caption"),
        ("d/02.PNG", image(200)),
        ("d/02.json", facts),
    ]
    write(tmp_path / "data" / "train-0.tar", first)
    write(
        tmp_path / "data" / "val-0.tar",
        [("01.cls", b"cat"), ("01.jpg", image(30, "JPEG")), ("02.webp", image(99, "WEBP"))],
    )
    prepared = prepare(Tar(), str(tmp_path / "data"), tmp_path / "out")
    found = rows(prepared)
    assert found["id"] == ["train-0.tar/01", "mine", "val-0.tar/01", "val-0.tar/02"]
    assert found["file"] == ["train-0.tar"] * 2 + ["val-0.tar"] * 2
    assert found["label"] == ["3", "dog", "cat", None]
    assert found["time"] == [None, 7.0, None, None]
    assert found["split"] == ["train", "train", "test", "test"]
    assert found["offset"][0] == 512  # the first header is one block
    assert found["length"][:2] == [len(first[0][1]), len(first[3][1])]
    for name, offset, length, data in zip(
        found["file"], found["offset"], found["length"], [first[0][1], first[3][1]], strict=False
    ):
        assert (tmp_path / "data" / name).read_bytes()[offset : offset + length] == data
    assert not quarantine(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.parquet", "quarantine.csv"]
    index = open_manifest(prepared.manifest)
    assert index.classes == ("3", "cat", "dog")
    assert (read_facts(prepared.manifest).recipe, read_facts(prepared.manifest).time_steps) == ("time", 1)
    pixels = Storage(index, 8).read(np.arange(4))
    assert pixels[1, :, 0, 0].tolist() == [200, 90, 200]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format(tmp_path: Path, format: int) -> None:
    folder = "/".join(["f" * 60] * 2)
    write(tmp_path / "a.tar", [(f"{folder}/1.png", image()), (f"{folder}/1.cls", b"x")], format)
    found = rows(prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out"))
    assert (found["id"], found["label"]) == ([f"a.tar/{folder}/1"], ["x"])
    assert not quarantine(tmp_path / "out")


def test_test_images_without_a_test_shard(tmp_path: Path) -> None:
    members = [(f"{i}.png", image(i)) for i in range(40)] + [(f"{i}.cls", str(i % 2).encode()) for i in range(20)]
    write(tmp_path / "carnival.tar", sorted(members))
    found = rows(prepare(Tar(test_share=0.5), str(tmp_path / "carnival.tar"), tmp_path / "out"))
    tests = [label for label, split in zip(found["label"], found["split"], strict=True) if split == "test"]
    assert sorted(tests) == ["0"] * 5 + ["1"] * 5


def test_test_shards_by_a_glob(tmp_path: Path) -> None:
    for name in ("a0.tar", "a1.tar", "deep/b.tar"):
        write(tmp_path / "data" / name, [("1.png", image())])
    found = rows(prepare(Tar(test_shards="a1*"), str(tmp_path / "data"), tmp_path / "out"))
    assert dict(zip(found["file"], found["split"], strict=True)) == {
        "a0.tar": "train",
        "a1.tar": "test",
        "deep/b.tar": "train",
    }
    with pytest.raises(UserError, match=r"--test-shards c\*: no shard has such a name; there are a0.tar"):
        prepare(Tar(test_shards="c*"), str(tmp_path / "data"), tmp_path / "out2")


def test_class_names(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("0.png", image()),
        ("0.cls", b"1"),
        ("1.png", image()),
        ("1.json", b'{"label": 0}'),
        ("2.png", image()),
        ("2.cls", b"2"),
        ("3.png", image()),
        ("3.cls", b"-1"),
        ("4.png", image()),
        ("4.cls", b"fish"),
        ("5.png", image()),
        ("5.json", b'{"label": 1.0}'),
    ]
    write(tmp_path / "a.tar", entries)
    (tmp_path / "names.txt").write_text("\ufeffcat\r\ndog \n\n")
    found = rows(prepare(Tar(classes="names.txt"), str(tmp_path / "a.tar"), tmp_path / "out"))
    assert (found["id"], found["label"]) == (
        [f"a.tar/{number}" for number in (0, 1, 4, 5)],
        ["dog", "cat", "fish", "dog"],
    )
    assert quarantine(tmp_path / "out") == [
        ["a.tar", "5", "the label has no line in --classes (2 of 2)"],
        ["a.tar", "7", "the label has no line in --classes (-1 of 2)"],
    ]
    (tmp_path / "gap.txt").write_text("cat\n\ndog\n")
    for classes, sentence in (("gap.txt", "line 2 is empty"), ("none.txt", "none.txt: cannot be opened")):
        with pytest.raises(UserError, match=sentence):
            prepare(Tar(classes=classes), str(tmp_path / "a.tar"), tmp_path / "out2")


class Bomb:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_hostile_members_are_quarantined_and_never_followed(tmp_path: Path) -> None:
    sparse = special("s.png", tarfile.GNUTYPE_SPARSE)
    cases: list[tuple[str | tarfile.TarInfo, bytes, str | None]] = [
        ("good.png", image(), None),
        ("/etc/abs.png", image(), "the name leads outside the folder: /etc/abs.png"),
        ("../up.png", image(), "the name leads outside the folder: ../up.png"),
        ("a/../../up.png", image(), "the name leads outside the folder: a/../../up.png"),
        ("C:/drive.png", image(), "the name leads outside the folder: C:/drive.png"),
        ("..\\back.png", image(), "the name leads outside the folder: ..\\back.png"),
        (special("sym.png", tarfile.SYMTYPE, "/etc/passwd"), b"", "the member is a link: sym.png"),
        (special("hard.png", tarfile.LNKTYPE, "good.png"), b"", "the member is a link: hard.png"),
        (special("dev.png", tarfile.CHRTYPE), b"", "the member is not a file: dev.png"),
        (special("pipe.png", tarfile.FIFOTYPE), b"", "the member is not a file: pipe.png"),
        (sparse, b"", "the member is sparse: s.png"),
        (special("folder", tarfile.DIRTYPE), b"", None),
        ("._good.png", b"a Mac's own", None),
        ("p.png", image(), None),
        ("p.pyd", pickle.dumps(Bomb(tmp_path / "boom")), "a pickle may run code and is not opened: p.pyd"),
        ("p.pkl", pickle.dumps(Bomb(tmp_path / "boom")), "a pickle may run code and is not opened: p.pkl"),
        ("zero.png", b"", "the file is empty: zero.png"),
        ("text.png", b"no image", "not a readable image"),
        ("cut.png", image()[:40], "not a readable image"),
        ("alone.cls", b"1", "no image has this name before its first dot: alone.cls"),
        ("two.png", image(), None),
        ("two.b.png", image(), "another image has the same name before its first dot: two.b.png"),
        ("good.png", image(), "the id occurs twice: a.tar/good"),
        ("u1.png", image(), None),
        ("u1.cls", b"\xff\xfe", "the file is not UTF-8 text: u1.cls"),
        ("u2.png", image(), None),
        ("u2.cls", b"1" * (2**20 + 1), "the label has more than 1,048,576 bytes: u2.cls"),
    ]
    write(tmp_path / "a.tar", [(name, data) for name, data, _ in cases])
    prepared = prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out")
    assert rows(prepared)["id"] == ["a.tar/good", "a.tar/p", "a.tar/two"]
    found = {int(row): (file, problem) for file, row, problem in quarantine(tmp_path / "out") if row}
    expected = {number: problem for number, (_, _, problem) in enumerate(cases) if problem}
    assert sorted(found) == sorted(expected)
    for number, problem in expected.items():
        assert found[number][0] == "a.tar"
        assert found[number][1].startswith(problem)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (b'{"label": 1.5}', "the label is neither a string nor a whole number (it is float)"),
        (b'{"label": true}', "the label is neither a string nor a whole number (it is bool)"),
        (b'{"label": ["a"]}', "the label is neither a string nor a whole number (it is list)"),
        (b'{"time": "noon"}', "the time is neither a number nor a date ('noon')"),
        (b'{"time": [1]}', "the time is neither a number nor a date ('[1]')"),
        (b'{"time": 1e999}', "the time is neither a number nor a date ('inf')"),
        (b'{"time": 1' + b"0" * 400 + b"}", "the time is neither a number nor a date"),
        (b'{"id": {}}', "the id is neither a string nor a whole number: 1.json"),
        (b'{"label": "\\ud800"}', "the file is not readable JSON"),
        (b"[1, 2]", "the file is not a JSON object: 1.json"),
        (b"{", "the file is not readable JSON"),
        (b"", "the file is not readable JSON"),
        (b"[" * 100_000, "the file is not readable JSON"),
    ],
    ids=lambda value: value[:24].decode() if isinstance(value, bytes) else "",
)
def test_bad_json(tmp_path: Path, facts: bytes, sentence: str) -> None:
    write(tmp_path / "a.tar", [("0.png", image()), ("1.png", image()), ("1.json", facts), ("2.png", image())])
    prepared = prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out")
    assert rows(prepared)["id"] == ["a.tar/0", "a.tar/2"]
    [(file, row, problem)] = quarantine(tmp_path / "out")
    assert (file, row) == ("a.tar", "2" if "id" in sentence or "file" in sentence else "1")
    assert problem.startswith(sentence)


def test_good_json(tmp_path: Path) -> None:
    facts = b'{"label": null, "time": "1970-01-01T00:00:05Z", "id": 0, "more": {"x": [1]}}'
    write(tmp_path / "a.tar", [("1.json", facts), ("1.png", image())])
    found = rows(prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out"))
    assert (found["id"], found["label"], found["time"]) == (["0"], [None], [5.0])


def test_what_lies_before_a_cut_is_kept_wherever_it_is(tmp_path: Path) -> None:
    data = image()
    assert 0 < len(data) <= 512  # so that every member is two blocks
    whole = write(
        tmp_path / "whole.tar", [(f"{number}.png", data) for number in range(3)], tarfile.USTAR_FORMAT
    ).read_bytes()
    for cut, kept, row in [
        (2 * 1024, 2, "2"),  # before a header
        (2 * 1024 + 100, 2, "2"),  # inside a header
        (2 * 1024 + 512, 2, "2"),  # after it
        (2 * 1024 + 512 + 20, 2, "2"),  # inside the image
        (1024 + 512 + len(data) - 1, 1, "1"),
        (3 * 1024, 3, "3"),  # before the end mark
    ]:
        path = tmp_path / f"{cut}.tar"
        path.write_bytes(whole[:cut])
        prepared = prepare(Tar(), str(path), tmp_path / f"out{cut}")
        assert prepared.kept == kept
        [(file, number, problem)] = quarantine(tmp_path / f"out{cut}")
        assert (file, number) == (path.name, row)
        assert "the archive is truncated" in problem


def test_broken_headers_end_a_shard_but_not_the_others(tmp_path: Path) -> None:
    good = write(tmp_path / "data" / "a.tar", [("1.png", image()), ("2.png", image())]).read_bytes()
    (tmp_path / "data" / "b.tar").write_bytes(b"")
    (tmp_path / "data" / "c.tar").write_bytes(b"this is no tar file" * 100)
    (tmp_path / "data" / "d.tar").write_bytes(good[:1024] + b"\x55" * 512 + good[1536:])
    backwards = bytearray(good)
    backwards[1024 + 124 : 1024 + 136] = b"\xff" * 10 + b"\xf0\x00"  # a size of -4096 bytes
    header = bytes(backwards[1024:1536])
    backwards[1024 + 148 : 1024 + 156] = b"%06o\0 " % (sum(header[:148] + b" " * 8 + header[156:]))
    (tmp_path / "data" / "e.tar").write_bytes(backwards)
    outside = write(tmp_path / "outside.tar", [("1.png", image())])
    (tmp_path / "data" / "f.tar").symlink_to(outside)
    prepared = prepare(Tar(), str(tmp_path / "data"), tmp_path / "out")
    assert rows(prepared)["id"] == ["a.tar/1", "a.tar/2", "d.tar/1", "e.tar/1"]
    found = {file: (row, problem) for file, row, problem in quarantine(tmp_path / "out")}
    assert found["b.tar"] == ("0", "the archive is unreadable (at member 0: empty file)")
    assert found["c.tar"][1].startswith("the archive is unreadable")
    assert found["d.tar"] == ("1", "the archive is truncated or broken (at member 1: neither a header nor the end)")
    assert found["e.tar"][0] == "1"
    assert found["f.tar"] == ("", "a link leads outside the folder")
    assert len(found) == len(quarantine(tmp_path / "out")) == 5


def header(kind: bytes, size: int, name: str = "long") -> bytes:
    member = special(name, kind)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


KINDS = [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_headers_that_claim_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes, first: bool, is_there: bool
) -> None:
    before = b"" if first else write(tmp_path / "b.tar", [("1.png", image())]).read_bytes()[:1024]
    huge = 3 * 2**30
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(before + header(kind, huge))
        file.truncate(file.tell() + (huge if is_there else 512))  # takes no room on the disk
    asked: list[int] = []
    whole = FileRoot.open

    def watched(place: FileRoot, name: str) -> Any:
        stream = whole(place, name)
        read = stream.read
        proxy = SimpleNamespace(seek=stream.seek, tell=stream.tell, read=lambda n: asked.append(n) or read(n))
        return contextlib.nullcontext(proxy)

    monkeypatch.setattr(FileRoot, "open", watched)
    problems: list[list[Any]] = []
    rows: Any = SimpleNamespace(file_root=FileRoot.of(tmp_path), problem=lambda *problem: problems.append([*problem]))
    assert len(list(samples("a.tar", [], rows))) == (0 if first else 1)
    number = 0 if first else 1
    sentence = f"the archive is unreadable (at member {number}: headers of more than 1,048,576 bytes)"
    assert problems == [["a.tar", number, sentence]]
    assert max(asked) <= 2**20


def test_many_headers_before_one_member(tmp_path: Path) -> None:
    piece = header(tarfile.GNUTYPE_LONGNAME, 2**18) + b"n" * 2**18
    data = write(tmp_path / "b.tar", [("1.png", image())]).read_bytes()
    (tmp_path / "a.tar").write_bytes(data[:1024] + piece * 40 + data)
    assert prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out").kept == 1
    [(_, row, problem)] = quarantine(tmp_path / "out")
    assert (row, "headers of more than" in problem) == ("1", True)


def test_headers_of_a_usual_size_add_up_without_harm(tmp_path: Path) -> None:
    names = [f"{'long' * 100}/{i}" for i in range(3000)]
    data = image()
    write(tmp_path / "a.tar", [(f"{name}.png", data) for name in names])
    assert prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out", verify="none").kept == 3000


def test_a_sparse_map_that_is_cut_off(tmp_path: Path) -> None:
    sparse = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    sparse[482] = 1  # the map goes on in the next block
    sparse[148:156] = b"%06o\0 " % sum(sparse[:148] + b" " * 8 + sparse[156:512])
    data = write(tmp_path / "b.tar", [("1.png", image())]).read_bytes()
    (tmp_path / "a.tar").write_bytes(data[:1024] + sparse)
    assert prepare(Tar(), str(tmp_path / "a.tar"), tmp_path / "out").kept == 1
    [(_, row, problem)] = quarantine(tmp_path / "out")
    assert (row, "the archive is unreadable" in problem) == ("1", True)


def test_the_first_time_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "_AT_ONCE", 4)
    write(tmp_path / "a.tar", [(f"{i}.png", image()) for i in range(8)])
    timed = [((f"{i}.png", image()), (f"{i}.json", b'{"time": 3}')) for i in range(8)]
    write(tmp_path / "b.tar", [entry for pair in timed for entry in pair])
    prepared = prepare(Tar(), str(tmp_path), tmp_path / "out")
    assert read_facts(prepared.manifest).recipe == "time"


def test_compressed_shards_are_refused_in_a_sentence(tmp_path: Path) -> None:
    data = gzip.compress(write(tmp_path / "a.tar", [("1.png", image())]).read_bytes())
    for name in ("b.tar.gz", "b.tgz", "b.tar"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=rf"{name}: compressed, so that .*; decompress it first"):
            prepare(Tar(), str(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.parquet").exists()


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("xx.png", image())], tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    data[0:2] = b"\xff\xfe"
    data[148:156] = b"%06o\0 " % sum(data[:148] + b" " * 8 + data[156:512])
    path.write_bytes(data)
    found = rows(prepare(Tar(), str(path), tmp_path / "out"))
    assert found["id"] == ["a.tar/\ufffd\ufffd"]


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match=r"--classes \.\./x"):
        Tar(classes="../x")
    with pytest.raises(UserError, match="--test-share"):
        Tar(test_share=-0.1)


def test_recognition(tmp_path: Path) -> None:
    place = FileRoot.of(tmp_path)
    assert [Tar.fits(place, name) for name in ("a.tar", "A.TAR", "a.tar.gz", "a.csv")] == [True, True, True, False]
    assert not Tar.fits(place, "")
    write(tmp_path / "deep" / "a.tar", [])
    assert Tar.fits(place, "")
    (tmp_path / "deep" / "1.jpg").write_bytes(b"")
    assert not Tar.fits(place, "")
