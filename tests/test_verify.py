"""Bad data, in real files: what must be readable is read, and the rest is named in the quarantine and left out."""

import csv
import io
import os
import pickle
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pillow_heif
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dietcl.streams import decode as decoding
from dietcl.streams.decode import Unreadable, decode
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.image_reader import ImageReader
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import write_manifest
from dietcl.streams.manifest_builder import ManifestBuilder
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.registry import Prepared, Reader, prepare
from dietcl.streams.verify import find_problems, remarks

RED, GREEN, BLUE, WHITE = (200, 30, 20), (10, 180, 40), (20, 40, 220), (255, 255, 255)
COLORS = (RED, GREEN, BLUE, WHITE)  # top left, top right, bottom left, bottom right


def quarters(width: int = 48, height: int = 32) -> Image.Image:
    """A picture with a color of its own in each quarter."""
    pixels = np.zeros((height, width, 3), np.uint8)
    w, h = width // 2, height // 2
    pixels[:h, :w], pixels[:h, w:], pixels[h:, :w], pixels[h:, w:] = COLORS
    return Image.fromarray(pixels)


def encoded(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    """The bytes of a picture."""
    data = io.BytesIO()
    (image or quarters()).save(data, kind, **options)
    return data.getvalue()


def heic() -> bytes:
    """The bytes of a picture as phones write it; Pillow itself has no such format."""
    data = io.BytesIO()
    pillow_heif.from_pillow(quarters()).save(data, quality=95)
    return data.getvalue()


def corners(pixels: np.ndarray) -> list[tuple[int, ...]]:
    """The colors in the middle of the quarters, in reading order."""
    height, width = pixels.shape[:2]
    spots = [(height // 4, width // 4), (height // 4, -width // 4), (-height // 4, width // 4)]
    return [tuple(pixels[spot].tolist()) for spot in (*spots, (-height // 4, -width // 4))]


def assert_close(found: Sequence[tuple[int, ...]], expected: Sequence[tuple[int, ...]], by: int = 12) -> None:
    """Compare colors but for what lossy formats do to them."""
    assert np.abs(np.array(found) - np.array(expected)).max() <= by, found


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises many pixels and has none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def jpeg_header(width: int, height: int) -> bytes:
    """A real JPEG that lies about its size."""
    data = bytearray(encoded("JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


BROKEN: Mapping[str, tuple[bytes, str]] = {
    "cut.jpg": (encoded("JPEG")[:-200], "not a readable image"),
    "cut-in-header.jpg": (encoded("JPEG")[:30], "not a readable image"),
    "cut-progressive.jpg": (encoded("JPEG", progressive=True)[:-200], "not a readable image"),
    "cut.png": (encoded("PNG")[:60], "not a readable image"),
    "cut.webp": (encoded("WEBP")[:40], "not a readable image"),
    "cut.gif": (encoded("GIF")[:40], "not a readable image"),
    "cut.tif": (encoded("TIFF")[:200], "not a readable image"),
    "empty.jpg": (b"", "the file is empty"),
    "text.jpg": (b"These are words.\n" * 20, "not a readable image (unknown format)"),
    "page.png": (b"<html><body>404 Not Found</body></html>", "not a readable image (unknown format)"),
    "zeros.jpg": (bytes(5000), "not a readable image (unknown format)"),
    "script.jpg": (encoded("EPS"), "not a readable image (unknown format)"),
    "bomb.png": (png_header(40_000, 40_000), "too large to be decoded ("),
    "bomb.jpg": (jpeg_header(40_000, 40_000), "too large to be decoded (40000 x 40000 pixels"),
}


def readable() -> dict[str, tuple[bytes, int]]:
    """Unusual images that must be read, and how far their colors may be off."""
    picture = quarters()
    gray16 = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    cmyk = Image.merge(
        "CMYK", [*(band.point(lambda value: 255 - value) for band in picture.split()), Image.new("L", picture.size)]
    )
    alpha = picture.convert("RGBA")
    palette = picture.quantize(8)
    see_through = palette.copy()
    see_through.info["transparency"] = 7
    frames: Any = {"save_all": True, "append_images": [Image.new("RGB", picture.size, (1, 2, 3))] * 3, "duration": 50}
    return {
        "plain.jpg": (encoded("JPEG", quality=95), 12),
        "progressive.jpg": (encoded("JPEG", quality=95, progressive=True), 12),
        "really-png.jpg": (encoded("PNG"), 0),
        "really-jpeg.png": (encoded("JPEG", quality=95), 12),
        "cmyk.jpg": (encoded("JPEG", cmyk, quality=95), 14),
        "gray16.png": (encoded("PNG", Image.fromarray(gray16)), 1),
        "gray16.tif": (encoded("TIFF", Image.fromarray(gray16)), 1),
        "palette.png": (encoded("PNG", palette), 0),
        "palette-see-through.png": (encoded("PNG", see_through), 0),
        "alpha.png": (encoded("PNG", alpha), 0),
        "gray-alpha.png": (encoded("PNG", picture.convert("LA")), 1),
        "bits.png": (encoded("PNG", picture.convert("L").point(lambda value: 255 * (value > 200), "1")), 0),
        "animated.gif": (encoded("GIF", **frames), 8),
        "animated.webp": (encoded("WEBP", lossless=True, **frames), 0),
        "color.tif": (encoded("TIFF", compression="tiff_lzw"), 0),
        "float.tif": (encoded("TIFF", picture.convert("L").convert("F")), 1),
        "plain.bmp": (encoded("BMP"), 0),
        "plain.avif": (encoded("AVIF", quality=95), 16),
        "plain.heic": (heic(), 16),
        "plain.ppm": (encoded("PPM"), 0),
        "trailing.jpg": (encoded("JPEG", quality=95) + b"more bytes" * 100, 12),
    }


def test_a_heic_image_without_the_plugin_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "register_heif_opener", None)
    monkeypatch.setattr(decoding, "formats", decoding.formats.__wrapped__)  # without its cache
    with pytest.raises(Unreadable, match=r"HEIC image needs a plugin, which pip install 'dietcl\[heic\]' installs"):
        decode(heic(), 8)


def expected_colors(name: str) -> list[tuple[int, ...]]:
    """The corners of one of the readable images, before any loss."""
    if name.startswith("bits"):
        return [(0, 0, 0)] * 3 + [WHITE]
    if name.startswith(("gray", "float")):
        gray = [Image.new("RGB", (1, 1), color).convert("L").getpixel((0, 0)) for color in COLORS]
        return [(int(value),) * 3 for value in gray]  # type: ignore[arg-type]
    return list(COLORS)


def quarantine(out: Path) -> dict[tuple[str, str], str]:
    """Sentences by file and row."""
    with (out / "quarantine.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert all(set(line) == {"file", "row", "problem"} for line in lines)
    return {(line["file"], line["row"]): line["problem"] for line in lines}


def kept(prepared: Prepared) -> list[str]:
    """The files of a manifest."""
    files: list[str] = pq.read_table(prepared.manifest)["file"].to_pylist()
    assert prepared.kept == len(files)
    return files


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A list of files with whatever a careless table may say about them."""

    name: ClassVar[str] = "listed"
    recipe: ClassVar[Literal["class", "time", "data"]] = "class"
    time_steps: ClassVar[int] = 2
    label_rate: ClassVar[float] = 0.5
    mirror: ClassVar[bool] = True

    columns: Mapping[str, Any]

    @staticmethod
    def fits(place: FileRoot, name: str) -> bool:
        """Never by itself."""
        return False

    def read(self, name: str, rows: ManifestBuilder) -> None:
        """Hand over the columns as they are."""
        file = self.columns["file"]
        rows.refer(**{"row": range(1, 1 + len(file)), "listed_in": "list.csv", **self.columns})


def listed(root: Path, out: Path, **columns: Any) -> Prepared:
    """Prepare images of a folder by a list."""
    reader: Reader = Listed(columns=columns)
    return prepare(reader, str(root), out)


def pictures(root: Path, *names: str) -> Path:
    """Write plain pictures."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded("JPEG" if name.endswith("jpg") else "PNG"))
    return root


@pytest.mark.parametrize("name", BROKEN)
def test_broken_bytes_are_refused_in_a_sentence(name: str) -> None:
    data, sentence = BROKEN[name]
    for side in (1, 16, 1000):
        with pytest.raises(Unreadable) as caught:
            decode(data, side)
        said = str(caught.value)
        assert said.startswith(sentence)
        assert "\n" not in said
        assert " at 0x" not in said  # the same file gets the same sentence


@pytest.mark.parametrize("name", readable())
def test_unusual_images_are_read(name: str) -> None:
    data, by = readable()[name]
    pixels = decode(data, 1000)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (32, 48, 3)
    assert_close(corners(pixels), expected_colors(name), by)
    smaller = decode(data, 8)
    assert smaller.ndim == 3
    assert min(smaller.shape[:2]) >= 8


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_stand_upright_whichever_way_the_camera_was_held(kind: str, orientation: int) -> None:
    upright = quarters()
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,  # the viewer turns it by 270 degrees against the clock
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(turn[orientation]) if orientation > 1 else upright
    # By hand, what EXIF says of two of them: row 0 is the right side (6), and the left side (8).
    if orientation == 6:
        assert corners(np.asarray(stored)) == [GREEN, WHITE, RED, BLUE]
    if orientation == 8:
        assert corners(np.asarray(stored)) == [BLUE, RED, WHITE, GREEN]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: Any = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    for side in (1000, 16, 8):
        pixels = decode(encoded(kind, stored, exif=exif, **options), side)
        assert pixels.shape[1] > pixels.shape[0]
        if side == 1000:
            assert pixels.shape == (32, 48, 3)
            assert_close(corners(pixels), COLORS, 14)


def test_broken_files_in_a_folder_are_listed_and_the_others_kept(tmp_path: Path) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    (root / "c").mkdir(parents=True)
    for name, (data, _) in {**BROKEN, **readable()}.items():
        (root / "c" / name).write_bytes(data)
    prepared = prepare(Folder(), str(root), out)
    assert kept(prepared) == sorted(f"c/{name}" for name in readable())
    found = quarantine(out)
    assert set(found) == {(f"c/{name}", "") for name in BROKEN}
    assert all(found[f"c/{name}", ""].startswith(sentence) for name, (_, sentence) in BROKEN.items())
    assert sum(prepared.problems.values()) == len(BROKEN)
    assert prepared.problems["the file is empty"] == 1
    assert prepared.problems["too large to be decoded"] == 2


def test_without_verification_files_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "in/c").mkdir(parents=True)
    (tmp_path / "in/c/text.jpg").write_bytes(b"words")
    assert kept(prepare(Folder(), str(tmp_path / "in"), tmp_path / "out", verify="none")) == ["c/text.jpg"]


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", "a.jpg", "b.jpg")
    (root / "folder.jpg").mkdir()
    prepared = listed(root, tmp_path / "out", file=["a.jpg", "gone.jpg", "folder.jpg", "b.jpg/inside.jpg", "b.jpg"])
    assert kept(prepared) == ["a.jpg", "b.jpg"]
    assert quarantine(tmp_path / "out") == {
        ("list.csv", "2"): "cannot be read (No such file or directory): gone.jpg",
        ("list.csv", "3"): "cannot be read (Is a directory): folder.jpg",
        ("list.csv", "4"): "cannot be read (Not a directory): b.jpg/inside.jpg",
    }
    assert prepared.problems == {"cannot be read": 3}


def test_paths_that_lead_outside(tmp_path: Path) -> None:
    pictures(tmp_path / "outside", "secret.jpg", "deep/secret.jpg")
    root = pictures(tmp_path / "in", "a.jpg", "c/b.jpg")
    (root / "link.jpg").symlink_to(tmp_path / "outside/secret.jpg")
    (root / "inner.jpg").symlink_to(root / "c/b.jpg")
    (root / "folder").symlink_to(tmp_path / "outside", target_is_directory=True)
    (root / "dead.jpg").symlink_to(root / "nowhere.jpg")
    outside = ["../outside/secret.jpg", "c/../../outside/secret.jpg", str(tmp_path / "outside/secret.jpg")]
    outside += ["C:\\secret.jpg", "..\\secret.jpg"]
    links = ["link.jpg", "folder/secret.jpg", "folder/deep/secret.jpg"]
    files = ["a.jpg", *outside, *links, "inner.jpg", "dead.jpg", "c/b.jpg"]
    prepared = listed(root, tmp_path / "out", file=files)
    assert kept(prepared) == ["a.jpg", "inner.jpg", "c/b.jpg"]
    found = quarantine(tmp_path / "out")
    for row, name in enumerate(files, start=1):
        if name in outside:
            assert found["list.csv", str(row)] == f"the path leads outside the folder: {name}"
        if name in links:
            assert found["list.csv", str(row)] == f"a link leads outside the folder: {name}"
    assert len(found) == len(files) - 3
    # The folder itself is searched without following links to folders.
    (root / "a.jpg").rename(root / "c/a.jpg")
    prepared = prepare(Folder(), str(root), tmp_path / "out2")
    assert kept(prepared) == ["c/a.jpg", "c/b.jpg", "inner.jpg"]
    assert set(quarantine(tmp_path / "out2")) == {("dead.jpg", ""), ("folder", ""), ("link.jpg", "")}


def test_labels_and_times_that_are_none(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(8)]
    root = pictures(tmp_path / "in", *names)
    label = ["cat", 7, None, 1.5, b"cat", True, ["cat"], ""]
    prepared = listed(root, tmp_path / "labels", file=names, label=label)
    assert kept(prepared) == ["0.png", "1.png", "2.png", "7.png"]
    assert pq.read_table(prepared.manifest)["label"].to_pylist() == ["cat", "7", None, None]
    said = "the label is neither a string nor a whole number (it is {}): {}"
    assert quarantine(tmp_path / "labels") == {
        ("list.csv", "4"): said.format("float", "3.png"),
        ("list.csv", "5"): said.format("bytes", "4.png"),
        ("list.csv", "6"): said.format("bool", "5.png"),
        ("list.csv", "7"): said.format("list", "6.png"),
    }
    time = [0, "2.5", "1970-01-02", None, "yesterday", float("inf"), "", [1]]
    prepared = listed(root, tmp_path / "times", file=names, time=time)
    assert pq.read_table(prepared.manifest)["time"].to_pylist() == [0, 2.5, 86400, None, None]
    found = quarantine(tmp_path / "times")
    assert set(found) == {("list.csv", row) for row in ("5", "6", "8")}
    assert found["list.csv", "5"] == "the time is neither a number nor a date ('yesterday'): 4.png"
    assert prepared.problems == {"the time is neither a number nor a date": 3}


def test_of_rows_with_the_same_id_the_first_is_kept(tmp_path: Path) -> None:
    root = pictures(tmp_path / "in", "a.png", "b.png", "c.png", "d.png")
    files = ["a.png", "b.png", "c.png", "d.png"]
    prepared = listed(root, tmp_path / "out", file=files, id=["x", "y", "x", "x"])
    assert kept(prepared) == ["a.png", "b.png"]
    assert prepared.problems == {"the id occurs twice": 2}
    assert sorted(quarantine(tmp_path / "out").values()) == ["the id occurs twice: x"] * 2
    # Without ids of their own, images go by their paths.
    again = listed(root, tmp_path / "out2", file=["a.png", "b.png", "a.png"])
    assert kept(again) == ["a.png", "b.png"]


def test_byte_ranges_that_are_not_there(tmp_path: Path) -> None:
    first, second = encoded("PNG"), encoded("JPEG")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/pack.bin").write_bytes(b"head" + first + second)
    offset = [4, 4 + len(first), 0, 4, 10**9]
    length = [len(first), len(second), 4, 20, 100]
    prepared = listed(tmp_path / "in", tmp_path / "out", file=["pack.bin"] * 5, offset=offset, length=length)
    assert pq.read_table(prepared.manifest)["offset"].to_pylist() == offset[:2]
    found = quarantine(tmp_path / "out")
    assert set(found) == {("list.csv", row) for row in ("3", "4", "5")}
    assert found["list.csv", "5"] == "the file is empty: pack.bin"


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    evil = pickle.dumps(Evil(mark))
    array = io.BytesIO()
    np.save(array, np.array([Evil(mark), None], dtype=object), allow_pickle=True)
    root = pictures(tmp_path / "in", "c/good.jpg")
    for name, data in {"a.jpg": evil, "b.png": array.getvalue(), "pack.npy": array.getvalue(), "d.npy": evil}.items():
        (root / "c" / name).write_bytes(data)
    assert kept(prepare(Folder(), str(root), tmp_path / "out")) == ["c/good.jpg"]
    assert not mark.exists()
    # Also when a manifest calls them packs.
    columns: Any = {"id": ["a", "b", "c"], "file": ["c/pack.npy", "c/d.npy", "c/good.jpg"], "offset": [0, 1, -1]}
    columns |= {"label": ["x"] * 3, "time": [0.0] * 3, "split": ["train"] * 3}
    index = open_manifest(write_manifest(root / "manifest.parquet", columns))
    problems = list(find_problems(index, np.arange(3), 2))
    assert [(problem.file, problem.row) for problem in problems] == [("c/pack.npy", 0), ("c/d.npy", 1)]
    assert {problem.kind for problem in problems} == {"not a readable .npy pack"}
    assert not mark.exists()
    pickle.loads(evil)
    assert mark.exists()  # it would have


@pytest.mark.parametrize(
    ("train", "test", "sentences"),
    [
        ("a", "a", ["1 class; training images of each: 1"]),
        ("ab", "ab", ["2 classes; training images of each: 1"]),
        ("abbc", "ab", ["3 classes; training images of each: 1 (a) to 2 (b)", "classes without a test image: 1 of 3"]),
        ("aabb", "b", ["2 classes; training images of each: 2", "classes without a test image: 1 of 2"]),
    ],
)
def test_counts_are_right_for_one_and_for_many(tmp_path: Path, train: str, test: str, sentences: list[str]) -> None:
    labels = [*train, *test]
    columns: Any = {"id": [str(i) for i in range(len(labels))], "file": ["x.npy"] * len(labels), "label": labels}
    columns |= {"offset": [0] * len(labels), "time": [0.0] * len(labels)}
    columns["split"] = ["train"] * len(train) + ["test"] * len(test)
    index = open_manifest(write_manifest(tmp_path / "manifest.parquet", columns))
    assert [sentence for sentence in remarks(index) if "class" in sentence] == sentences


def test_rows_of_packs_are_checked_too(tmp_path: Path) -> None:
    np.save(tmp_path / "color.npy", np.stack([np.asarray(quarters(32, 32))] * 2))
    np.save(tmp_path / "gray.npy", np.full((1, 8, 8), 7, np.uint8))
    np.save(tmp_path / "floats.npy", np.zeros((1, 8, 8)))
    np.save(tmp_path / "oblong.npy", np.zeros((1, 8, 9), np.uint8))
    cut = (tmp_path / "color.npy").read_bytes()[:-10]
    (tmp_path / "cut.npy").write_bytes(cut)
    rows = [("color.npy", 1), ("color.npy", 2), ("gray.npy", 0), ("floats.npy", 0), ("oblong.npy", 0), ("cut.npy", 0)]
    rows.append(("gone.npy", 0))
    count = len(rows)
    columns: Any = {"id": [str(i) for i in range(count)], "file": [file for file, _ in rows]}
    columns |= {"offset": [offset for _, offset in rows], "label": ["x"] * count, "time": [0.0] * count}
    index = open_manifest(write_manifest(tmp_path / "manifest.parquet", {**columns, "split": ["train"] * count}))
    found = {problem.row: problem.sentence for problem in find_problems(index, np.arange(count), 2)}
    assert set(found) == {1, 3, 4, 5, 6}
    assert found[1] == "the pack holds fewer images (2)"
    assert found[3].startswith("the pack does not hold uint8 squares, ")
    assert "float64 (1, 8, 8)" in found[3]
    images = ImageReader(index)
    assert corners(images.pixels(0, 8)) == list(COLORS)
    assert images.pixels(2, 8).shape == (8, 8, 3)
