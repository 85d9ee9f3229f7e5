"""Storage: real image files and packs of every kind, at one size, and clear words when one cannot be read."""

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import write_manifest
from dietcl.streams.storage import GRAY, Storage

SIZE = 16
RED, GREEN, BLUE = (200, 30, 20), (10, 180, 40), (20, 40, 220)


def quarters(size: int = SIZE) -> np.ndarray:
    """A picture with a color of its own in each quarter."""
    pixels = np.zeros((size, size, 3), np.uint8)
    half = size // 2
    pixels[:half, :half], pixels[:half, half:] = RED, GREEN
    pixels[half:, :half], pixels[half:, half:] = BLUE, 255
    return pixels


def gather(folder: Path, entries: list[tuple[str, int]]) -> Index:
    """A manifest of (file, offset) pairs."""
    count = len(entries)
    columns: dict[str, Any] = {
        "id": [str(i) for i in range(count)],
        "file": [file for file, _ in entries],
        "offset": [offset for _, offset in entries],
        "label": ["x"] * count,
        "time": np.zeros(count),
        "split": ["train"] * count,
    }
    return open_manifest(write_manifest(folder / "manifest.parquet", columns))


def read(index: Index, *rows: int, size: int = SIZE) -> np.ndarray:
    """Images as [B, H, W, 3]."""
    images = Storage(index, size).read(np.array(rows or range(len(index)), np.int64))
    assert images.dtype == torch.uint8
    assert images.shape == (len(rows) or len(index), 3, size, size)
    return images.permute(0, 2, 3, 1).numpy()


def test_lossless_files_and_packs_mixed_in_one_manifest(tmp_path: Path) -> None:
    picture = quarters()
    gray = np.asarray(Image.fromarray(picture).convert("L"))
    np.save(tmp_path / "color.npy", np.stack([picture // 2, picture, picture[::-1]]))
    np.save(tmp_path / "gray.npy", np.stack([gray, gray[::-1]]))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(picture[None]))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    Image.fromarray(picture).save(tmp_path / "deep" / "er" / "color.png")
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(picture).quantize(4).save(tmp_path / "palette.png")
    alpha = Image.fromarray(picture).convert("RGBA")
    alpha.putalpha(Image.fromarray(gray))
    alpha.save(tmp_path / "alpha.png")
    Image.fromarray(gray > 100).save(tmp_path / "bits.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "gray16.png")
    gray3 = np.repeat(gray[..., None], 3, 2)
    expected = {
        ("color.npy", 1): picture,
        ("deep/er/color.png", -1): picture,
        ("gray.npy", 0): gray3,
        ("gray.png", -1): gray3,
        ("color.npy", 2): picture[::-1],
        ("palette.png", -1): picture,
        ("alpha.png", -1): picture,
        ("color.npy", 0): picture // 2,
        ("bits.png", -1): np.where(gray3 > 100, 255, 0),
        ("gray16.png", -1): gray3,
        ("gray.npy", 1): gray3[::-1],
        ("fortran.npy", 0): picture,
    }
    index = gather(tmp_path, list(expected))
    np.testing.assert_array_equal(read(index), np.stack([*expected.values()]))
    # Any order, repeats included.
    np.testing.assert_array_equal(read(index, 4, 3, 4, 0), np.stack([[*expected.values()][i] for i in (4, 3, 4, 0)]))
    assert Storage(index, SIZE).read(np.zeros(0, np.int64)).shape == (0, 3, SIZE, SIZE)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs(tmp_path: Path, mode: str) -> None:
    picture = Image.fromarray(quarters(64)).convert(mode)
    picture.save(tmp_path / "a.jpg", quality=95, subsampling=0 if mode == "RGB" else -1)
    wanted = np.asarray(picture.convert("RGB")).astype(int)[8::16, 8::16]
    found = read(gather(tmp_path, [("a.jpg", -1)]), size=64)[0].astype(int)[8::16, 8::16]
    assert np.abs(found - wanted).max() < 12
    small = read(gather(tmp_path, [("a.jpg", -1)]), size=4)[0].astype(int)  # through JPEG's own draft scaling
    assert np.abs(small[[0, 0, 3, 3], [0, 3, 0, 3]] - wanted[[0, 0, 3, 3], [0, 3, 0, 3]]).max() < 12


@pytest.mark.parametrize(("width", "height"), [(48, 16), (16, 48), (47, 16), (160, 90), (1, 3000), (5, 5)])
def test_files_give_the_square_in_the_middle(tmp_path: Path, width: int, height: int) -> None:
    side = min(width, height)
    pixels = np.zeros((height, width, 3), np.uint8)
    left, top = (width - side) // 2, (height - side) // 2
    pixels[top : top + side, left : left + side] = 200
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = read(gather(tmp_path, [("a.png", -1)]))[0]
    inside = slice(1, -1) if side > 2 * SIZE else slice(None)  # a large one is reduced before it is cut
    assert (found[inside, inside] == 200).all()


@pytest.mark.parametrize("side", [8, 12, 32, 64])
def test_files_and_packs_are_resized_alike(tmp_path: Path, side: int) -> None:
    picture = quarters(side)
    np.save(tmp_path / "pack.npy", picture[None])
    Image.fromarray(picture).save(tmp_path / "a.png")
    pack, file = read(gather(tmp_path, [("pack.npy", 0), ("a.png", -1)])).astype(int)
    assert np.abs(pack - file).max() <= 2
    assert (pack[0, 0] == RED).all()
    assert (pack[-1, 0] == BLUE).all()
    mean = pack.reshape(-1, 3).mean(0)
    assert np.abs(mean - picture.reshape(-1, 3).mean(0)).max() < 2  # nothing is dropped on the way down


def test_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    picture = Image.fromarray(quarters()).quantize(4)
    picture.save(tmp_path / "a.png", transparency=bytes([0, 128, 255, 255]))
    index = gather(tmp_path, [("a.png", -1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(read(index)[0], quarters())


def broken_png(path: Path) -> None:
    Image.fromarray(quarters(64)).save(path)
    data = bytearray(path.read_bytes())
    data[40:60] = bytes(20)
    path.write_bytes(data)


def truncated_jpeg(path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:600])


def bomb(path: Path) -> None:
    """A PNG whose header promises 40,000 x 40,000 pixels."""
    Image.new("L", (1, 1)).save(path, "PNG")
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", 40_000, 40_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path.write_bytes(data)


MAKERS = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not an image"),
    "folder": lambda path: path.mkdir(),
    "broken": broken_png,
    "truncated": truncated_jpeg,
    "bomb": bomb,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_one_file_that_cannot_be_read_turns_gray_and_is_named(tmp_path: Path, maker: str) -> None:
    Image.fromarray(quarters()).save(tmp_path / "good.png")
    MAKERS[maker](tmp_path / "bad.png")
    index = gather(tmp_path, [("good.png", -1), ("bad.png", -1), ("good.png", -1)])
    storage = Storage(index, SIZE)
    images = storage.read(np.array([0, 1, 2])).permute(0, 2, 3, 1).numpy()
    np.testing.assert_array_equal(images, np.stack([quarters(), np.full_like(quarters(), GRAY), quarters()]))
    assert list(storage.bad) == [1]
    assert storage.describe(1) == f"{tmp_path}/bad.png: {storage.bad[1]}"
    assert "\n" not in storage.bad[1]
    storage.read(np.array([1, 1, 1]))  # the same one again is no further problem
    assert list(storage.bad) == [1]


@pytest.mark.parametrize(("share", "most"), [(0.01, 2), (0.1, 20), (0.001, 1), (0.0, 0)])
def test_too_many_files_that_cannot_be_read_stop_the_run(tmp_path: Path, share: float, most: int) -> None:
    Image.fromarray(quarters()).save(tmp_path / "good.png")
    index = gather(tmp_path, [(f"missing{i}.png" if i < 50 else "good.png", -1) for i in range(200)])
    storage = Storage(index, SIZE, bad_share=share)
    storage.read(np.arange(60, 200))
    storage.read(np.arange(most))
    with pytest.raises(UserError, match=rf"{most + 1} images? cannot be read.*missing{most}\.png: cannot be read"):
        storage.read(np.array([most]))


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"text",
        np.zeros((2, 8, 8, 3)),
        np.zeros((2, 8, 9, 3), np.uint8),
        np.zeros((2, 8, 8, 4), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((), np.uint8),
        np.array([{"a": 1}], object),
        "truncated",
        "npz",
    ],
    ids=range(11),
)
def test_a_bad_pack_is_named(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "bad.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    elif content == "truncated":
        np.save(path, np.zeros((9, 8, 8), np.uint8))
        path.write_bytes(path.read_bytes()[:300])
    elif content == "npz":
        np.savez(tmp_path / "x.npz", np.zeros((2, 8, 8), np.uint8))
        (tmp_path / "x.npz").rename(path)
    index = gather(tmp_path, [("bad.npy", 0)])
    with pytest.raises(UserError, match=r"bad\.npy: "):
        Storage(index, SIZE).read(np.array([0]))


def test_a_place_past_the_end_of_a_pack_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "pack.npy", np.zeros((3, 8, 8), np.uint8))
    index = gather(tmp_path, [("pack.npy", 0), ("pack.npy", 3)])
    storage = Storage(index, 8)
    assert storage.read(np.array([0])).shape == (1, 3, 8, 8)
    with pytest.raises(UserError, match=r"pack\.npy: the manifest asks for image 3 and the pack holds 3"):
        storage.read(np.array([0, 1]))


def test_images_are_found_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "pack.npy", np.full((1, 8, 8), 7, np.uint8))
    gather(tmp_path, [("pack.npy", 0)])
    monkeypatch.chdir(tmp_path)
    index = open_manifest(Path("manifest.parquet"))
    monkeypatch.chdir("/")
    assert (read(index, size=8) == 7).all()
