"""The cache of features: what is found is what was written, bit for bit, whatever happened to the files meanwhile."""

import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dietcl import feature_cache
from dietcl.feature_cache import FeatureCache, cache_usage

WIDTH = 5
AMPLE = 2**30
# Keys that are hard to tell apart: shared halves, and zero bytes at either end.
HARD_KEYS = [bytes(8 * [a] + 7 * [b] + [c]) for a in (0, 1, 255) for b in (0, 1) for c in (0, 1, 2)][1:]


def numbered(numbers: range) -> tuple[np.ndarray, np.ndarray]:
    """Keys and features that follow from numbers."""
    keys = np.stack([np.random.default_rng(number).integers(0, 256, 16, np.uint8) for number in numbers])
    bits = np.stack([np.random.default_rng(number).integers(0, 2**16, WIDTH, np.uint16) for number in numbers])
    return keys, bits.view(np.float16)


def as_keys(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)


def constant(value: int, count: int = 1) -> np.ndarray:
    """Rows with given bits, some of them no numbers."""
    return np.full((count, WIDTH), value, np.uint16).view(np.float16)


def make(root: Path, limit: int = AMPLE, encoder: str = "e1") -> FeatureCache:
    return FeatureCache(root, encoder, WIDTH, limit)


def save(cache: FeatureCache, numbers: range) -> None:
    """Write a segment."""
    cache.write(*numbered(numbers))
    cache.flush()


def count_found(cache: FeatureCache, numbers: range) -> int:
    """The number of rows that are found, each of which is exact."""
    keys, expected = numbered(numbers)
    values, found = cache.read(keys)
    np.testing.assert_array_equal(values[found].view(np.uint16), expected[found].view(np.uint16))
    assert not values[~found].any()
    return int(found.sum())


def segments(root: Path, encoder: str = "e1") -> list[Path]:
    return sorted((root / encoder).glob("*.rows"))


writes = st.lists(st.tuples(st.sampled_from(HARD_KEYS), st.integers(0, 2**16 - 1)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(writes, st.sampled_from(["keep", "flush", "reopen"])), max_size=14))
def test_reads_what_was_written_last_bit_for_bit(batches: list[tuple[list[tuple[bytes, int]], str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, expected = make(Path(folder)), dict[bytes, int]()
        for batch, then in batches:
            cache.write(
                as_keys([key for key, _ in batch]),
                np.concatenate([constant(0, 0), *(constant(value) for _, value in batch)]),
            )
            expected.update(batch)
            if then != "keep":
                cache.flush()
            if then == "reopen":
                cache = make(Path(folder))
            values, found = cache.read(as_keys(HARD_KEYS))
            assert found.tolist() == [key in expected for key in HARD_KEYS]
            wanted = [[expected.get(key, 0)] * WIDTH for key in HARD_KEYS]
            assert values.view(np.uint16).tolist() == wanted


def test_the_caller_may_reuse_its_memory_and_give_parts_of_larger_arrays(tmp_path: Path) -> None:
    cache = make(tmp_path)
    keys, values = numbered(range(20))
    expected = values[::2].copy()
    cache.write(keys[::2], values[::2])
    values[:] = 0
    found_values, found = cache.read(np.asfortranarray(keys)[::2])
    assert found.all()
    np.testing.assert_array_equal(found_values.view(np.uint16), expected.view(np.uint16))


def test_no_rows_are_written_and_read(tmp_path: Path) -> None:
    cache = make(tmp_path)
    cache.write(as_keys([]), constant(0, 0))
    cache.flush()
    values, found = cache.read(as_keys([]))
    assert values.shape == (0, WIDTH)
    assert found.shape == (0,)
    assert not segments(tmp_path)


def test_a_key_of_zeros_is_unknown(tmp_path: Path) -> None:
    cache = make(tmp_path)
    for _ in range(2):
        cache.write(as_keys([bytes(16), HARD_KEYS[0]]), constant(7, 2))
        assert cache.read(as_keys([bytes(16), HARD_KEYS[0]]))[1].tolist() == [False, True]
        cache.flush()


def test_rows_are_saved_when_they_are_many_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "_ROWS", 10)
    cache = make(tmp_path)
    cache.write(*numbered(range(9)))
    assert not segments(tmp_path)
    cache.write(*numbered(range(9, 10)))
    assert count_found(make(tmp_path), range(10)) == 10
    monkeypatch.setattr(feature_cache, "_SECONDS", 0.0)
    cache.write(*numbered(range(10, 11)))
    assert count_found(make(tmp_path), range(11)) == 11


def test_what_another_process_writes_is_found_by_an_open_cache(tmp_path: Path) -> None:
    reader, writer = make(tmp_path), make(tmp_path)
    for start in range(0, 40, 4):
        assert count_found(reader, range(start, start + 4)) == 0
        save(writer, range(start, start + 4))
        assert count_found(reader, range(start + 4)) == start + 4
    assert count_found(make(tmp_path, encoder="e2"), range(40)) == 0


# Merging.


def test_merging_keeps_the_newest_of_every_row_and_few_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "_CHUNK", 7)
    cache = make(tmp_path)
    keys, _ = numbered(range(300))
    expected = np.zeros(300, np.uint16)
    generator = np.random.default_rng(0)
    for value in range(1, 80):
        rows = generator.choice(300, generator.integers(1, 40), replace=False)
        cache.write(keys[rows], np.repeat(constant(value), len(rows), 0))
        cache.flush()
        expected[rows] = value
    assert len(segments(tmp_path)) <= 9
    values, found = make(tmp_path).read(keys)
    np.testing.assert_array_equal(values.view(np.uint16), expected[:, None].repeat(WIDTH, 1))
    np.testing.assert_array_equal(found, expected > 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=60, max_size=300), st.integers(0, 20_000), st.sampled_from((1, 7, 50)))
@example([1000] * 60, 12_000, 50)
def test_segments_stay_few_and_small_and_rows_are_copied_seldom(sizes: list[int], most: int, pause: int) -> None:
    kept: list[int] = []  # newest first
    copied = 0
    for number, size in enumerate(sizes, 1):
        kept.insert(0, size)
        if number % pause and number < len(sizes):
            continue  # another process holds the lock
        while merged := kept[chosen := feature_cache._neighbours(kept, most)]:
            assert len(merged) >= feature_cache._FAN
            assert sum(merged) <= most
            kept[chosen] = [sum(merged)]
            copied += sum(merged)
    tiers = max(1, most).bit_length() // 2
    full_grown = sum(size * feature_cache._FAN > most for size in kept)
    assert len(kept) - full_grown <= 3 * tiers * (full_grown + 1)
    assert copied <= tiers * sum(sizes)


def test_a_merged_segment_has_the_age_of_its_newest_part(tmp_path: Path) -> None:
    cache, ages = make(tmp_path), []
    for number in range(4):
        save(cache, range(number, number + 1))
        ages.append(segments(tmp_path)[-1].stat().st_mtime_ns)
    (merged,) = segments(tmp_path)
    assert merged.stat().st_mtime_ns == max(ages) == int(merged.name[:16], 16)


def test_merging_waits_for_nobody(tmp_path: Path) -> None:
    cache = make(tmp_path)
    with FileLock(tmp_path / ".lock", preserve_lock_file=True):
        for number in range(8):
            save(cache, range(number, number + 1))
        assert len(segments(tmp_path)) == 8
    save(cache, range(8, 9))
    assert len(segments(tmp_path)) == 1
    assert count_found(cache, range(9)) == 9


# The limit.


def test_the_oldest_are_removed_first_and_most_of_the_limit_stays_in_use(tmp_path: Path) -> None:
    limit = 300_000
    cache = make(tmp_path, limit)
    keys = np.random.default_rng(0).integers(0, 256, (60, 500, 16), np.uint8)
    for value, batch in enumerate(keys):
        cache.write(batch, constant(value, 500))
        cache.flush()
        assert cache_usage(tmp_path)[0] <= limit
        if value > 10:
            assert cache_usage(tmp_path)[0] > limit / 2
    found = [int(make(tmp_path).read(batch)[1].sum()) for batch in keys]
    kept = found.index(500)
    assert kept > 0
    assert set(found[:kept]) == {0}
    assert set(found[kept:]) == {500}


def test_the_limit_holds_for_all_encoders_together(tmp_path: Path) -> None:
    old, new = make(tmp_path, 20_000, "e1"), make(tmp_path, 20_000, "e2")
    save(old, range(300))
    save(new, range(300))
    assert count_found(new, range(300)) == 300
    assert cache_usage(tmp_path)[0] <= 20_000
    save(new, range(300, 600))
    assert count_found(old, range(300)) == 0
    assert count_found(new, range(300, 600)) == 300
    assert cache_usage(tmp_path)[0] <= 20_000


def test_without_room_there_is_no_cache(tmp_path: Path) -> None:
    save(make(tmp_path), range(3))
    cache = make(tmp_path, 0)
    save(cache, range(5))
    assert count_found(cache, range(5)) == 0
    assert count_found(make(tmp_path), range(5)) == 3


def test_what_killed_processes_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    cache = make(tmp_path)
    save(cache, range(1))
    old, young = (tmp_path / "e1" / f".{name}.rows.partial" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"unfinished")
    an_hour_ago = time.time() - 3700
    os.utime(old, (an_hour_ago, an_hour_ago))
    save(cache, range(1, 2))
    assert not old.exists()
    assert young.exists()
    assert count_found(cache, range(2)) == 2


def test_usage_counts_bytes_and_files(tmp_path: Path) -> None:
    assert cache_usage(tmp_path / "none") == (0, 0)
    save(make(tmp_path, encoder="e1"), range(100))
    save(make(tmp_path, encoder="e2"), range(100))
    bytes_, files = cache_usage(tmp_path)
    assert files == 2
    assert bytes_ >= 2 * 100 * (24 + 2 * WIDTH)


# Damage.


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """The name and bytes of a segment of 20 rows."""
    root = tmp_path_factory.mktemp("intact")
    save(make(root), range(20))
    (path,) = segments(root)
    return path.name, path.read_bytes()


def flip(data: bytes, at: int, bits: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


Damage = Callable[[bytes], bytes]
flips: st.SearchStrategy[Damage] = st.builds(
    lambda at, bits: lambda data: flip(data, at, bits), st.integers(0, 10**6), st.integers(1, 255)
)
damages: st.SearchStrategy[Damage] = st.one_of(
    flips,
    st.builds(lambda at: lambda data: data[: at % len(data)], st.integers(0, 10**6)),
    st.builds(
        lambda at, more: lambda data: data[: at % len(data)] + more, st.integers(0, 10**6), st.binary(max_size=99)
    ),
)


@settings(max_examples=150, deadline=None)
@given(damages)
def test_damage_never_changes_a_row_and_is_mended_by_writing_again(intact, damage: Damage) -> None:
    name, data = intact
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e1" / name
        path.parent.mkdir()
        path.write_bytes(damage(data))
        cache = make(Path(folder))
        count_found(cache, range(25))
        cache.write(*numbered(range(25)))
        assert count_found(cache, range(25)) == 25


@settings(max_examples=30, deadline=None)
@given(st.lists(flips, min_size=4, max_size=4))
def test_merging_leaves_damaged_rows_behind_and_keeps_older_intact_ones(intact, damage: list[Damage]) -> None:
    name, data = intact
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "e1").mkdir()
        for i, change in enumerate(damage):
            (Path(folder) / "e1" / f"{i}{name[1:]}").write_bytes(change(data))
        cache = make(Path(folder))
        before = count_found(cache, range(20))
        save(cache, range(20, 21))
        assert count_found(cache, range(20)) == before
        assert count_found(cache, range(20, 21)) == 1


def test_segments_without_an_intact_row_are_merged_to_nothing(intact, tmp_path: Path) -> None:
    name, data = intact
    (tmp_path / "e1").mkdir()
    for i in range(4):
        (tmp_path / "e1" / f"0{i}{name[2:]}").write_bytes(data[:24] + b"x" * (len(data) - 24))
    cache = make(tmp_path)
    save(cache, range(20, 320))  # too many to be merged with so few
    assert len(segments(tmp_path)) == 2
    assert count_found(cache, range(320)) == 300


def test_a_damaged_key_does_not_lend_its_row_to_another(intact, tmp_path: Path) -> None:
    name, data = intact
    (tmp_path / "e1").mkdir()
    for row in range(20):
        first, second = 24 + 8 * row, 24 + 8 * (20 + row)  # the halves of its key
        damaged = flip(data, second, 1)
        (tmp_path / "e1" / name).write_bytes(damaged)
        key = damaged[first : first + 8] + damaged[second : second + 8]
        assert not make(tmp_path).read(as_keys([key]))[1].any()


def test_a_file_of_zeros_does_not_make_the_unknown_known(intact, tmp_path: Path) -> None:
    name, data = intact
    (tmp_path / "e1").mkdir()
    (tmp_path / "e1" / name).write_bytes(data[:24] + bytes(len(data) - 24))
    assert not make(tmp_path).read(as_keys([bytes(16)]))[1].any()


@pytest.mark.parametrize("position", range(24))
def test_a_damaged_header_hides_its_segment(intact, tmp_path: Path, position: int) -> None:
    name, data = intact
    (tmp_path / "e1").mkdir()
    (tmp_path / "e1" / name).write_bytes(flip(data, position, 1))
    assert count_found(make(tmp_path), range(20)) == 0


def test_files_that_are_no_segments_are_passed_over(intact, tmp_path: Path) -> None:
    cache = make(tmp_path)
    for number in range(3):
        save(cache, range(number, number + 1))
    folder = tmp_path / "e1"
    (folder / "0000000000000000-empty.rows").touch()
    (folder / "0000000000000001-folder.rows").mkdir()
    (folder / "0000000000000002-words.rows").write_text("These are words. " * 9)
    (folder / "a copy.rows").write_bytes(intact[1])
    (folder / "note.txt").write_text("note")
    wide = FeatureCache(tmp_path, "e1", WIDTH + 1, AMPLE)
    wide.write(numbered(range(9))[0], np.ones((9, WIDTH + 1), np.float16))
    wide.flush()
    assert count_found(cache, range(9)) == 3
    for number in range(3, 9):
        save(cache, range(number, number + 1))
    assert count_found(make(tmp_path), range(9)) == 9
    assert wide.read(numbered(range(9))[0])[1].all()
    assert cache.is_writable


@pytest.mark.parametrize("removed", [".", "e1"])
def test_an_open_cache_survives_its_folder(tmp_path: Path, removed: str) -> None:
    root = tmp_path / "features"
    cache = make(root)
    save(cache, range(10))
    assert count_found(cache, range(10)) == 10
    shutil.rmtree(root / removed)
    assert count_found(cache, range(10)) == 0
    save(cache, range(5))
    assert count_found(make(root), range(10)) == 5


def test_an_open_cache_survives_the_removal_of_segments(tmp_path: Path) -> None:
    cache = make(tmp_path)
    save(cache, range(10))
    save(cache, range(10, 30))
    segments(tmp_path)[0].unlink()
    assert count_found(cache, range(30)) == 20


def test_a_folder_that_goes_while_it_is_written_to_costs_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: shutil.rmtree(tmp_path / "e1"))
        save(cache, range(5))
    assert count_found(cache, range(5)) == 0
    save(cache, range(5))
    assert count_found(cache, range(5)) == 5


def test_a_cache_that_cannot_be_written_turns_itself_off(tmp_path: Path) -> None:
    root = tmp_path / "features"
    root.write_text("not a folder")
    cache = make(root)
    cache.write(*numbered(range(3)))
    assert count_found(cache, range(3)) == 3
    cache.flush()
    assert not cache.is_writable
    save(cache, range(3))
    assert count_found(cache, range(3)) == 0
    assert cache_usage(root) == (0, 0)


def test_a_full_disk_ends_writing_but_not_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = make(tmp_path)
    save(cache, range(5))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        save(cache, range(5, 9))
    assert not cache.is_writable
    save(cache, range(5, 9))
    assert count_found(cache, range(9)) == 5
    assert len(list((tmp_path / "e1").iterdir())) == 1


# Several processes.


def _write_and_read(root: Path, first: int) -> None:
    """Write rows that others write too, and look at theirs: each is found exact or not at all."""
    cache = make(root)
    for start in range(first, first + 600, 20):
        save(cache, range(start, start + 20))
        count_found(cache, range(900))


@pytest.mark.long
def test_processes_write_and_read_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_and_read, args=(tmp_path, first)) for first in (0, 300)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert count_found(make(tmp_path), range(900)) == 900


def _write_forever(root: Path) -> None:
    cache = make(root)
    for start in range(0, 10**6, 20):
        save(cache, range(start, start + 20))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_process_leaves_a_usable_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for wait in (0.05, 0.11, 0.23):
        process = context.Process(target=_write_forever, args=(tmp_path / str(wait),))
        process.start()
        while not segments(tmp_path / str(wait)):
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        cache = make(tmp_path / str(wait))
        found = count_found(cache, range(2000))
        assert found >= 20
        assert count_found(cache, range(found)) == found  # all that was written, from the first row on
        save(cache, range(2000))
        assert count_found(make(tmp_path / str(wait)), range(2000)) == 2000
