"""NumPy's files: what is in them, what is refused, and that nothing is ever unpickled."""

import io
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.readers import npz
from dietcl.streams.sources.readers.npz import Arrays
from dietcl.streams.sources.registry import prepare
from helpers.prepared import quarantine

GRAY = np.arange(5 * 4 * 4, dtype=np.uint8).reshape(5, 4, 4)
COLOR = np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3)
LABELS = np.array([3, -1, 0, 3, 12])


def made(folder: Path, reader: Arrays, **held: Any) -> tuple[Index, np.ndarray]:
    """Save arrays, prepare them, and return the index and the images."""
    np.savez_compressed(folder / "pack.npz", **held)
    manifest = prepare(reader, str(folder / "pack.npz"), folder / "out").manifest
    return open_manifest(manifest), np.load(folder / "out" / "images.npy")


def names(index: Index) -> list[str | None]:
    return [None if code < 0 else index.classes[code] for code in index.label]


def test_arrays_are_found_by_their_names(tmp_path):
    reader = Arrays(images="faces", label="gender", time="year", split="part", unknown="-1")
    years = np.array([1905, 1920, -1, 2013, 1999], np.int16)
    index, images = made(tmp_path, reader, faces=GRAY, gender=LABELS, year=years, part=np.array([0, 1, 2, 0, 0]))
    assert (images == GRAY).all()
    assert names(index) == ["3", None, "0", "3", "12"]
    assert np.array_equal(index.time, [1905, 1920, np.nan, 2013, 1999], equal_nan=True)
    assert index.split.tolist() == [0, 1, 1, 0, 0]
    assert read_facts(tmp_path / "out" / "manifest.parquet").recipe == "time"


def test_without_splits_some_labeled_rows_become_test_images(tmp_path):
    index, _ = made(tmp_path, Arrays(test_share=0.5), x=GRAY, y=LABELS)
    assert sum(index.split) == 1  # of the class with two images, one; the others have one each
    assert names(index)[int(np.flatnonzero(index.split)[0])] == "3"
    assert names(index)[1] == "-1"  # a class as any other, unless told
    assert read_facts(tmp_path / "out" / "manifest.parquet").recipe == "class"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (COLOR, COLOR),
        (np.ascontiguousarray(COLOR.transpose(0, 3, 1, 2)), COLOR),
        (GRAY[..., None], GRAY),
        (GRAY[:, None], GRAY),
    ],
)
def test_channels_may_come_first_or_alone(tmp_path, stored, expected):
    _, images = made(tmp_path, Arrays(), x=stored, y=LABELS)
    assert images.shape == expected.shape
    assert (images == expected).all()


@pytest.mark.parametrize(
    ("split", "test", "expected"),
    [
        (np.array(["train", "val", "test", "train", "train"]), "", [0, 1, 1, 0, 0]),
        (np.array([b"train", b"test", b"train", b"train", b"train"]), "", [0, 1, 0, 0, 0]),
        (np.array([False, True, False, False, True]), "", [0, 1, 0, 0, 1]),
        (np.array([0, 1, 2, 0, 0], np.uint8), "1", [0, 1, 0, 0, 0]),
        (np.array(["a", "b", "a", "a", "a"]), "b", [0, 1, 0, 0, 0]),
        (np.array([[0], [1], [2], [0], [0]], ">i4"), "", [0, 1, 1, 0, 0]),
    ],
)
def test_splits_are_words_numbers_or_booleans(tmp_path, split, test, expected):
    index, _ = made(tmp_path, Arrays(split="s", test=test), x=GRAY, y=LABELS, s=split)
    assert index.split.tolist() == expected


def test_labels_may_be_text_and_times_dates(tmp_path):
    labels = np.array(["kot", "собака", "", "kot", "unknown"])
    dates = np.array(["1970-01-02", "NaT", "1969-12-31", "2000-01-01", "1970-01-01"], "datetime64[D]")
    index, _ = made(tmp_path, Arrays(time="when", unknown="unknown"), x=GRAY, y=labels.astype(">U9"), when=dates)
    assert names(index) == ["kot", "собака", None, "kot", None]
    assert np.array_equal(index.time, [86400, np.nan, -86400, 946684800, 0], equal_nan=True)


def test_bad_values_go_to_the_quarantine_with_their_rows(tmp_path):
    times = np.array([1.5, np.inf, np.nan, 2.5, 3.5], np.float32)
    index, _ = made(tmp_path, Arrays(time="t"), x=GRAY, y=LABELS, t=times)
    assert quarantine(tmp_path / "out") == [["pack.npz", "1", "the time is not finite"]]
    assert np.array_equal(index.time, [1.5, np.nan, 2.5, 3.5], equal_nan=True)


def test_many_blocks_make_the_same_manifest_as_one(tmp_path, monkeypatch):
    for folder in ("one", "many"):
        (tmp_path / folder).mkdir()
    one, images = made(tmp_path / "one", Arrays(), x=COLOR, y=LABELS)
    monkeypatch.setattr(npz, "at_once", lambda size: 2)
    many, same = made(tmp_path / "many", Arrays(), x=COLOR, y=LABELS)
    assert one.hash == many.hash
    assert (images == same).all()


def test_a_bare_array_of_images_has_no_labels(tmp_path):
    np.save(tmp_path / "faces.npy", COLOR)
    manifest = prepare(Arrays(), str(tmp_path / "faces.npy"), tmp_path / "out").manifest
    assert names(open_manifest(manifest)) == [None] * 5
    assert (np.load(tmp_path / "out" / "images.npy") == COLOR).all()
    with pytest.raises(UserError, match=r"faces\.npy.*\.npz"):
        prepare(Arrays(time="year"), str(tmp_path / "faces.npy"), tmp_path / "other")


class Trap:
    """Writes a file if it is ever unpickled."""

    def __reduce__(self):
        return (open, ("sprung", "w"))


@pytest.mark.parametrize("name", ["x", "y"])
def test_objects_are_refused_and_never_unpickled(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    held = {"x": GRAY, "y": LABELS} | {name: np.array([Trap()] * 5, object)}
    with pytest.raises(UserError, match=rf"pack\.npz: array '{name}' holds Python objects, which are never unpickled"):
        made(tmp_path, Arrays(), **held)
    (tmp_path / "pack.npy").write_bytes(b"\x80\x04N." * 40)
    with pytest.raises(UserError, match=r"pack\.npy: array 'x' is not in NumPy's format"):
        prepare(Arrays(), "pack.npy", tmp_path / "other")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("held", "options", "words"),
    [
        ({"x": GRAY / 255}, {}, r"'x' holds float64; .*save \(255 \* images\)\.round\(\).* as uint8"),
        ({"x": GRAY.astype(int)}, {}, r"'x' holds int64; .*save them as uint8"),
        ({"x": GRAY.reshape(5, 16)}, {}, r"'x' holds \(16,\); images are squares"),
        ({"x": GRAY.reshape(5, 2, 8)}, {}, r"'x' holds \(2, 8\)"),
        ({"x": np.zeros((5, 4, 4, 4), np.uint8)}, {}, r"'x' holds \(4, 4, 4\)"),
        ({"x": np.zeros((0, 4, 4), np.uint8)}, {}, r"'x' is uint8 \(0, 4, 4\), which is empty"),
        ({"x": np.asfortranarray(GRAY)}, {}, r"'x' is stored by columns"),
        ({"y": LABELS[:4]}, {}, r"'x' and 'y' differ in their rows .5 and 4.; give"),
        ({"y": np.zeros((5, 10))}, {}, r"'y' holds float64 \(10,\)"),
        ({"y": np.zeros(5, [("a", int)])}, {}, r"'y' holds"),
        (
            {},
            {"time": "year"},
            r"--time year: no such array in .*pack\.npz; .*--images, .*x \(uint8 5 x 4 x 4\), y \(int64 5\)",
        ),
        ({"s": np.array(["train", "exam"] * 2 + ["train"])}, {"split": "s"}, r"'s' has 'exam' in row 1"),
        ({"s": np.array([0, 1, 2, 3, 4])}, {"split": "s", "test": "exam"}, r"--test exam: .*'s' holds int64"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_do(tmp_path, held, options, words):
    with pytest.raises(UserError, match=words):
        made(tmp_path, Arrays(**options), **({"x": GRAY, "y": LABELS} | held))


def test_a_share_outside_0_to_1_is_refused():
    with pytest.raises(UserError, match=r"--test-share 1"):
        Arrays(test_share=1)


def member(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def write_zip(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as pack:
        for name, data in members.items():
            pack.writestr(f"{name}.npy", data)


def test_what_is_whole_of_an_array_that_is_cut_off_is_kept(tmp_path):
    write_zip(tmp_path / "pack.npz", x=member(GRAY)[:-20], y=member(LABELS))
    kept = prepare(Arrays(), str(tmp_path / "pack.npz"), tmp_path / "out").kept
    assert kept == 3
    fault = "array 'x' is truncated (rows: 3 of 5); ends inside a record (12 of 16 bytes)"
    assert quarantine(tmp_path / "out") == [["pack.npz", "3", fault]]
    np.save(tmp_path / "bare.npy", GRAY)
    (tmp_path / "bare.npy").write_bytes((tmp_path / "bare.npy").read_bytes()[:-16])
    assert prepare(Arrays(), str(tmp_path / "bare.npy"), tmp_path / "bare").kept == 4


def test_a_broken_zip_and_a_header_that_lies_make_no_traceback(tmp_path):
    path = tmp_path / "pack.npz"
    path.write_bytes(b"PK\x03\x04 nothing else")
    with pytest.raises(UserError, match=r"pack\.npz: not a readable \.npz"):
        prepare(Arrays(), str(path), tmp_path / "out")
    huge = member(GRAY).replace(b"(5, 4, 4)", b"(9**9,1)")
    write_zip(path, x=huge, y=member(LABELS))
    with pytest.raises(UserError, match=r"array 'x' is not in NumPy's format"):
        prepare(Arrays(), str(path), tmp_path / "out")
    many = member(GRAY).replace(b"(5, 4, 4), }       ", b"(9999999, 4, 4), } ")
    write_zip(path, x=many, y=member(LABELS).replace(b"(5,), }      ", b"(9999999,), }"))
    assert prepare(Arrays(), str(path), tmp_path / "out").kept == 5
    text = member(np.array(["ab"] * 5)).replace(b"a\0\0\0", b"\0\xd8\0\0")
    write_zip(path, x=member(GRAY), y=text)
    with pytest.raises(UserError, match=r"'y' holds text that is not Unicode"):
        prepare(Arrays(), str(path), tmp_path / "other")


def test_a_wrong_checksum_is_noticed(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (200, 32, 32), dtype=np.uint8)
    write_zip(tmp_path / "pack.npz", x=member(images), y=member(np.arange(200)))
    data = bytearray((tmp_path / "pack.npz").read_bytes())
    data[data.index(images[0].tobytes())] ^= 1
    (tmp_path / "pack.npz").write_bytes(data)
    kept = prepare(Arrays(), str(tmp_path / "pack.npz"), tmp_path / "out").kept
    assert 0 < kept < 200  # known only at the end, with the last piece
    assert [row[:2] for row in quarantine(tmp_path / "out")] == [["pack.npz", str(kept)]]
    assert "Bad CRC-32" in quarantine(tmp_path / "out")[0][2]


def test_it_is_recognized_here_and_far_away(tmp_path):
    np.savez(tmp_path / "pack.npz", x=COLOR, y=LABELS)
    fsspec.filesystem("memory").put(str(tmp_path / "pack.npz"), "/packs/pack.npz")
    assert Arrays.fits(FileRoot.of(tmp_path), "pack.npz")
    assert not Arrays.fits(FileRoot.of(tmp_path), "")
    assert prepare(Arrays(), "memory://packs/pack.npz", tmp_path / "out").kept == 5
    assert (np.load(tmp_path / "out" / "images.npy") == COLOR).all()
