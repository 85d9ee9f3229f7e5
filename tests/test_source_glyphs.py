"""The drawn characters: which are classes, that their bytes are reproducible, and that drift costs accuracy."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from dietcl.errors import UserError
from dietcl.files import default_cache
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import SCHEMA
from dietcl.streams.sources import SOURCES, Glyphs, GlyphsDrift, GlyphsUpstream
from dietcl.streams.sources.builtin.glyphs.characters import AKIN, CLASS_FACES, Characters, characters, choose
from dietcl.streams.sources.builtin.glyphs.fonts import coverage, draw, faces

SMALL = {"classes": 6, "per_class": 5, "test_per_class": 2, "size": 16}


@pytest.fixture(scope="module")
def pools(cache: Path) -> Characters:
    return characters(cache)


def images_by_id(manifest: Path) -> dict[str, bytes]:
    table = pq.read_table(manifest)
    images = np.load(manifest.with_name("images.npy"), mmap_mode="r")
    return {row["id"]: images[row["offset"]].tobytes() for row in table.select(["id", "offset"]).to_pylist()}


def test_placeholder_faces_are_left_out() -> None:
    assert len(faces()) >= CLASS_FACES
    assert not any(face.startswith("LastResort") for face in faces())


def test_two_thousand_classes_remain(pools: Characters) -> None:
    assert len(pools.glyphs) >= 2000
    assert all(len(coverage()[character]) >= CLASS_FACES for character in pools.glyphs)
    assert not any(character.isspace() or not character.isprintable() for character in pools.glyphs)


@pytest.mark.parametrize(
    "alike", ["AΑА", "BΒВ", "EΕЕ", "HΗН", "MΜМ", "OΟО", "PΡР", "TΤТ", "XΧХ", "oοо", "cϲс", "eе", "pр"]
)
def test_look_alikes_across_scripts_are_one_class(pools: Characters, alike: str) -> None:
    assert [character for character in alike if character in pools.glyphs] == [alike[0]]
    assert [pools.merged[character] for character in alike[1:]] == [alike[0]] * (len(alike) - 1)


def test_different_characters_stay_different(pools: Characters) -> None:
    distinct = "ABCDEFGHIJKLMNOPQRTUVWXYZabdefghijkmnqrty23456789&?ЖЯДфψξδღԶ∑∞"
    assert set(distinct) <= set(pools.glyphs)
    assert len({pools.glyphs[character] for character in "ABEGKMRabegk2345Жψ∑"}) == 19


def test_no_two_classes_have_the_same_drawing(pools: Characters) -> None:
    upright = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif")
    seen: dict[tuple[bytes, ...], str] = {}
    for character in pools.glyphs:
        drawings = (draw(character, face, 24, one_size=True) for face in upright if face in coverage()[character])
        signature = tuple(drawing.tobytes() for drawing in drawings if drawing is not None)
        assert seen.setdefault(signature, character) == character


def test_upstream_shares_no_shape_with_the_classes(pools: Characters) -> None:
    assert len(pools.upstream) >= 500
    assert not set(pools.upstream) & {*pools.glyphs, *pools.merged}

    def shapes(characters: list[str], face: str) -> npt.NDArray[np.float32]:
        shown = [draw(character, face, 24, one_size=True) for character in characters if face in coverage()[character]]
        return np.array([drawing for drawing in shown if drawing is not None], dtype=np.float32).reshape(-1, 24 * 24)

    known = shapes([*pools.glyphs, *pools.merged], "DejaVuSans")
    for drawing in shapes(list(pools.upstream), "DejaVuSans")[::10]:
        difference = ((known - drawing) ** 2).sum(axis=1) / np.maximum((known**2).sum(axis=1), (drawing**2).sum())
        assert difference.min() > AKIN


def test_choice_is_seeded_prefix_stable_and_takes_near_look_alikes_last(pools: Characters) -> None:
    families = len(set(pools.glyphs.values()))
    everything = choose(pools.glyphs, len(pools.glyphs), seed=0)
    assert sorted(everything) == sorted(pools.glyphs)
    assert choose(pools.glyphs, 50, seed=0) == everything[:50]
    assert choose(pools.glyphs, 50, seed=1) != everything[:50]
    assert len({pools.glyphs[character] for character in everything[:families]}) == families


@pytest.mark.parametrize("name", ["glyphs", "glyphs-drift", "glyphs-upstream"])
def test_manifest_and_images(cache: Path, name: str) -> None:
    reports: list[tuple[int, int]] = []
    manifest = SOURCES[name](**SMALL).prepare(cache, progress=lambda done, total: reports.append((done, total)))
    assert manifest.parent.parent == cache
    assert manifest.parent.name.startswith(f"{name}-")
    assert reports == [(7 * done, 42) for done in range(1, 7)]
    table = pq.read_table(manifest)
    assert table.schema.names == SCHEMA.names
    index = open_manifest(manifest)
    assert (len(index), len(index.classes)) == (42, 6)
    assert [int((index.split == split).sum()) for split in (0, 1)] == [30, 12]
    for label in index.classes:
        code, character = label.split(" ")
        assert code == f"U+{ord(character):04X}"
    images = np.load(manifest.with_name("images.npy"), mmap_mode="r")
    assert (images.shape, images.dtype) == ((42, 16, 16), np.uint8)
    assert np.array_equal(index.offset, np.arange(42))
    assert images.std(axis=(1, 2)).min() > 1
    if name == "glyphs-drift":
        assert ((index.time >= 0) & (index.time < 1)).all()
    else:
        assert np.isnan(index.time).all()


def test_same_options_same_bytes_and_other_seeds_other_bytes(cache: Path, tmp_path: Path, pools: Characters) -> None:
    for file in cache.glob("characters-*.json"):
        shutil.copy(file, tmp_path)
    first, again = (Glyphs(**SMALL).prepare(folder) for folder in (cache, tmp_path))
    assert first.read_bytes() == again.read_bytes()
    assert first.with_name("images.npy").read_bytes() == again.with_name("images.npy").read_bytes()
    other = Glyphs(**SMALL, seed=1).prepare(cache)
    assert other.parent != first.parent
    assert not set(images_by_id(first).values()) & set(images_by_id(other).values())


@pytest.mark.parametrize("source", [Glyphs, GlyphsDrift, GlyphsUpstream])
def test_an_image_does_not_depend_on_how_many_others_there_are(cache: Path, source: type[Glyphs]) -> None:
    few = images_by_id(source(**SMALL).prepare(cache))
    many = images_by_id(source(classes=9, per_class=270, test_per_class=3, size=16).prepare(cache))
    assert len(few) == 42
    assert {name: many[name] for name in few} == few
    assert len(set(many.values())) == len(many)


def test_a_second_call_draws_nothing(cache: Path) -> None:
    manifest = Glyphs(**SMALL).prepare(cache)
    stamp = manifest.stat().st_mtime_ns

    def never(done: int, total: int) -> None:
        raise AssertionError("drawn again")

    assert Glyphs(**SMALL).prepare(cache, never) == manifest
    assert manifest.stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 10**6}, r"--source.classes 1000000: glyphs has 2\d\d\d characters"),
        ({"classes": 0}, "--source.classes 0"),
        ({"per_class": 0}, "--source.per-class 0"),
        ({"test_per_class": -1}, "--source.test-per-class -1"),
        ({"size": 4}, "--source.size 4"),
        ({"size": 10**4}, "--source.size 10000"),
    ],
)
def test_impossible_options_are_refused(cache: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Glyphs(**options).prepare(cache)
    assert not list(cache.glob(".glyphs*"))


def test_two_processes_prepare_at_once(cache: Path, tmp_path: Path, pools: Characters) -> None:
    for file in cache.glob("characters-*.json"):
        shutil.copy(file, tmp_path)
    code = (
        "import sys; from pathlib import Path; from dietcl.streams.sources import Glyphs;"
        "print(Glyphs(classes=20, per_class=20, test_per_class=2).prepare(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    assert ended[0][0] == ended[1][0]
    assert len(open_manifest(Path(ended[0][0].strip()))) == 440
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_drift_costs_accuracy(cache: Path) -> None:
    manifest = GlyphsDrift(classes=8, per_class=160, test_per_class=60, size=16).prepare(cache)
    index = open_manifest(manifest)
    pixels = np.load(manifest.with_name("images.npy")).reshape(len(index), -1).astype(np.float32)
    train, test = index.split == 0, index.split == 1
    early, late = index.time < 0.25, index.time >= 0.75
    means = np.stack([pixels[train & early & (index.label == k)].mean(axis=0) for k in range(8)])

    def accuracy(rows: npt.NDArray[np.bool_]) -> float:
        nearest = ((pixels[rows][:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        return float((nearest == index.label[rows]).mean())

    assert accuracy(test & early) > 0.3
    assert accuracy(test & late) < accuracy(test & early) - 0.1


def test_configs_need_no_heavy_library() -> None:
    heavy = {"torch", "matplotlib", "PIL", "pyarrow"}
    code = f"import sys, dietcl.streams.sources; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_cache_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("DIETCL_CACHE")
    assert default_cache() == Path.home() / ".cache" / "dietcl"


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set DIETCL_CACHE"):
        Glyphs(**SMALL).prepare(tmp_path / "file" / "cache")
