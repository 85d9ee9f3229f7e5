"""Lists in files of torch: what is streamed is what torch loads, wherever it is cut, and nothing in them ever runs."""

import io
import os
import pickle
import pickletools
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place
from dietcl.streams.sources import plain_list
from dietcl.streams.sources.parsing import torch_list
from dietcl.streams.sources.parsing.torch_list import open_list
from dietcl.streams.sources.plain_list import NotPlain, again, values

FORMATS = [(as_zip, protocol) for as_zip in (True, False) for protocol in (2, 3, 4, 5)]
TEXT = st.text(st.characters(), max_size=300)  # surrogates and nothing at all among them
VALUE = TEXT | st.integers(-(2**70), 2**70) | st.integers(-300, 70000) | st.floats() | st.none() | st.booleans()


@st.composite
def lists(draw: st.DrawFn) -> list[Any]:
    """Lists in which the very same objects come up again."""
    pool = draw(st.lists(VALUE | st.integers(-(2**2000), 2**2000), min_size=1, max_size=8))
    return draw(st.lists(st.sampled_from(pool) | VALUE, max_size=40))


@contextmanager
def chunks(size: int) -> Iterator[None]:
    """Read so many bytes at a time."""
    usual, plain_list.CHUNK = plain_list.CHUNK, size
    try:
        yield
    finally:
        plain_list.CHUNK = usual


def saved(path: Path, found: Any, as_zip: bool = True, protocol: int = 2) -> Path:
    torch.save(found, path, pickle_protocol=protocol, _use_new_zipfile_serialization=as_zip)
    return path


def packed(path: Path, pickled: bytes, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as pack:
        pack.writestr("archive/data.pkl", pickled)
        pack.writestr("archive/version", "3\n")
    return path


def opened(path: Path) -> torch_list.TorchList:
    return open_list(Place.of(path.parent), path.name)


def streamed(path: Path, size: int = 1000) -> list[Any]:
    """Return the values as they come in slices, none of which came from torch."""
    found = opened(path)
    assert isinstance(found, torch_list._Streamed)
    slices = list(found.slices(size))
    assert [len(part) for part in slices[:-1]] == [size] * (len(slices) - 1)
    joined = [value for part in slices for value in part]
    assert len(joined) == found.count
    return joined


def same(found: Any, expected: Any) -> bool:
    """Tell 1, 1.0 and True apart, and take nan for nan."""
    return [repr(value) for value in found] == [repr(value) for value in expected]


@pytest.mark.parametrize(("as_zip", "protocol"), FORMATS)
@settings(deadline=None, max_examples=60)
@given(expected=lists(), chunk=st.sampled_from([1, 3, 50, 600, 2**22]), size=st.integers(1, 50))
def test_the_streamed_values_are_those_that_torch_loads(
    tmp_path_factory: pytest.TempPathFactory, as_zip: bool, protocol: int, expected: list[Any], chunk: int, size: int
) -> None:
    path = saved(tmp_path_factory.getbasetemp() / "list.torchSave", expected, as_zip, protocol)
    with chunks(chunk):
        assert same(streamed(path, size), torch.load(path, weights_only=protocol == 2))


@pytest.mark.parametrize(("as_zip", "protocol"), FORMATS)
def test_long_lists_with_objects_that_come_again(tmp_path: Path, as_zip: bool, protocol: int) -> None:
    texts = [f"{number:05d}/é.jpg\n" for number in range(5001)]
    expected = [*texts, 7, *texts[::3], None, texts[300], *range(-300, 70000, 9), *map(float, range(9)), texts[1]]
    path = saved(tmp_path / "list.torchSave", expected, as_zip, protocol)
    for chunk in (1000, 4096, 2**22):
        with chunks(chunk):
            assert same(streamed(path, 700), expected)
    found = opened(path)
    assert len(found._memo) == len(set(texts[::3]) | {texts[300], texts[1]})  # type: ignore[attr-defined]


@pytest.mark.parametrize(("as_zip", "protocol"), FORMATS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 2500])
def test_tuples_are_as_good_as_lists(tmp_path: Path, as_zip: bool, protocol: int, count: int) -> None:
    expected = tuple(f"{number}" for number in range(count))
    assert same(streamed(saved(tmp_path / "list.torchSave", expected, as_zip, protocol)), expected)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_other_picklers_are_read(tmp_path: Path, protocol: int) -> None:
    expected = [*(str(number) for number in range(1001)), "again", "again"]
    for pickled in (
        pickle._dumps(expected, protocol),  # type: ignore[attr-defined]  # written in Python
        pickletools.optimize(pickle.dumps(expected, protocol)),  # puts nothing aside that is not fetched
    ):
        assert streamed(packed(tmp_path / "list.torchSave", pickled, compression=zipfile.ZIP_DEFLATED)) == expected


def test_a_list_far_away_is_read(tmp_path: Path) -> None:
    for as_zip in (True, False):
        path = saved(tmp_path / "list.torchSave", ["a", 1, "b"], as_zip)
        fsspec.filesystem("memory").pipe_file("/lists/list.torchSave", path.read_bytes())
        found = open_list(Place.of("memory://lists"), "list.torchSave")
        assert isinstance(found, torch_list._Streamed)
        assert list(found.slices(2)) == [["a", 1], ["b"]]


@pytest.mark.parametrize(
    ("found", "expected"),
    [(torch.arange(5), [0, 1, 2, 3, 4]), ([1, [2, "x"]], [1, [2, "x"]]), ((1, ()), (1, ())), (torch.zeros(0), [])],
)
def test_what_is_not_plain_is_loaded_by_torch(tmp_path: Path, found: Any, expected: Any) -> None:
    for as_zip in (True, False):
        loaded = opened(saved(tmp_path / "list.torchSave", found, as_zip))
        assert isinstance(loaded, torch_list._Whole)
        assert [value for part in loaded.slices(2) for value in part] == list(expected)
        assert list(loaded.sample) == list(expected)


def test_a_list_that_holds_itself_is_loaded_by_torch(tmp_path: Path) -> None:
    found: list[Any] = ["a"]
    found.append(found)
    loaded = opened(saved(tmp_path / "list.torchSave", found))
    assert isinstance(loaded, torch_list._Whole)
    assert loaded.count == 2


def test_the_sample_is_from_all_over_the_list(tmp_path: Path) -> None:
    path = saved(tmp_path / "list.torchSave", list(range(100_000)))
    with chunks(5000):
        sample = list(opened(path).sample)
    assert sample == list(range(0, 100_000, sample[1]))
    assert torch_list.SAMPLE <= len(sample) <= 2 * torch_list.SAMPLE


def test_the_list_is_never_held_as_a_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "list.torchSave", [f"{number:060d}" for number in range(100_000)])  # 12 MB in memory
    with chunks(2**16):
        tracemalloc.start()
        found = opened(path)
        assert sum(len(part) for part in found.slices(1000)) == 100_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2_000_000


class Malice:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(("as_zip", "protocol"), FORMATS)
@pytest.mark.parametrize("before", [0, 1, 3000])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_never_runs_however_late_it_comes(tmp_path: Path, as_zip: bool, protocol: int, before: int) -> None:
    trap = tmp_path / "trap"
    found = [*(f"{number}.jpg\n" for number in range(before)), Malice(trap)]
    path = saved(tmp_path / "list.torchSave", found, as_zip, protocol)
    with chunks(1000), pytest.raises(UserError, match=r"list\.torchSave: refused") as caught:
        opened(path)
    assert "\n" not in str(caught.value)
    assert not trap.exists()
    torch.load(path, weights_only=False)
    assert trap.exists()  # it would have run


def test_what_is_not_plain_after_very_many_values_is_not_even_given_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_list, "_MIXED", 1000)
    monkeypatch.setattr(torch_list, "_load", lambda place, file: pytest.fail("torch was asked"))
    path = saved(tmp_path / "list.torchSave", [*map(str, range(3000)), {}])
    with (
        chunks(1000),
        pytest.raises(UserError, match=r"refused; after 2[0-9]{3} numbers and texts something else comes"),
    ):
        opened(path)


@pytest.mark.parametrize(("as_zip", "protocol"), [(True, 2), (True, 4), (False, 2), (False, 4)])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_list_that_is_cut_off_anywhere_is_one_sentence(tmp_path: Path, as_zip: bool, protocol: int) -> None:
    path = tmp_path / "list.torchSave"
    expected = ["abc", 5, 500, 70000, 2**40, 1.5, None, "abc"]
    whole = pickle.dumps(expected, protocol) if as_zip else saved(path, expected, False, protocol).read_bytes()
    for length in range(len(whole)):
        if as_zip:
            packed(path, whole[:length])
        else:
            path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"list\.torchSave: ") as caught:
            opened(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pickled", "sentence"),
    [
        (b"\x80\x02]q\x00(X\xff\xff\xff\xffabce.", "more than 65535 bytes"),
        (b"\x80\x04](\x8d" + b"\xff" * 8 + b"abce.", "more than 65535 bytes"),
        (pickle.dumps(["a", "b" * 65536], 2), "more than 65535 bytes"),
        (b"\x80\x02]q\x00(X\xf0\x00\x00\x00abce.", "cut off"),
        (b"\x80\x02](X\x02\x00\x00\x00\xff\xfee.", "not UTF-8"),
    ],
)
def test_a_broken_list_is_one_sentence(tmp_path: Path, pickled: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=rf"list\.torchSave: .*{sentence}") as caught:
        opened(packed(tmp_path / "list.torchSave", pickled))
    assert "\n" not in str(caught.value)


def test_fetching_what_was_put_aside_nowhere_is_one_sentence(tmp_path: Path) -> None:
    found = opened(packed(tmp_path / "list.torchSave", b"\x80\x02]q\x00(h\x07X\x01\x00\x00\x00aq\x07e."))
    with pytest.raises(UserError, match=r"list\.torchSave: the list is broken"):
        list(found.slices(1))


def test_archives_that_swell_or_lie_about_sizes_are_refused(tmp_path: Path) -> None:
    bomb = packed(
        tmp_path / "list.torchSave", b"\x80\x02](" + b"N" * 3_000_000 + b"e.", compression=zipfile.ZIP_DEFLATED
    )
    with pytest.raises(UserError, match=r"list\.torchSave: refused; it has \d+ bytes, and the list .* 3000006;"):
        opened(bomb)
    content = packed(tmp_path / "list.torchSave", pickle.dumps(["a"] * 99, 2)).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as pack:
        size = pack.infolist()[0].file_size.to_bytes(4, "little")
    for lie in (1, 10_000, 2**31):
        bomb.write_bytes(content.replace(size, lie.to_bytes(4, "little")))
        with pytest.raises(UserError, match=r"list\.torchSave: "):
            opened(bomb)


@pytest.mark.parametrize("other", [["a", "b"], ["a"] * 9, {"a": 1}])
def test_a_list_that_changes_while_it_is_read_is_one_sentence(tmp_path: Path, other: Any) -> None:
    path = saved(tmp_path / "list.torchSave", ["a", "b", "c"])
    found = opened(path)
    saved(path, other)
    with pytest.raises(UserError, match=r"list\.torchSave: changes while"):
        list(found.slices(1))


class Harmless(pickle.Unpickler):
    """Python's own unpickler without anything that it could call."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(name)


def taken_out(pickled: bytes) -> list[Any] | None:
    """Return the values in two passes, or None if it is not plain or broken."""
    try:
        memo: plain_list.Memo = {}
        for _ in values(io.BytesIO(pickled), memo, "it"):
            pass
        return [value for part in values(io.BytesIO(pickled), again(memo), "it") for value in part]
    except (NotPlain, UserError):
        return None


PIECES = [
    *(bytes([op]) for op in b"(ea]t\x85\x86).N\x940}su\x88"),
    *(b"](", b"K\5", b"h\0", b"h\1", b"h\2", b"q\0", b"q\1", b"q\2"),
    *(b"X\1\0\0\0x", b"X\1\0\0\0y", b"\x8c\1z"),
]


@settings(deadline=None, max_examples=400)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), is_list=st.booleans())
def test_whatever_is_taken_for_a_list_is_one_for_python_too(pieces: list[bytes], is_list: bool) -> None:
    pickled = b"\x80\x04" + (b"](" + b"".join(pieces) + b"e." if is_list else b"".join(pieces) + b".")
    found = taken_out(pickled)
    if found is not None:
        expected = Harmless(io.BytesIO(pickled)).load()
        assert isinstance(expected, list | tuple)
        assert same(found, expected)


@settings(deadline=None, max_examples=300)
@given(expected=lists(), protocol=st.integers(2, 5), data=st.data())
def test_bytes_that_were_hit_break_nothing(expected: list[Any], protocol: int, data: st.DataObject) -> None:
    pickled = bytearray(pickle.dumps(expected, protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    found = taken_out(bytes(pickled))
    if found is not None:
        try:
            by_python = Harmless(io.BytesIO(pickled)).load()
        except (pickle.UnpicklingError, ValueError, EOFError, OverflowError):
            return  # versions and frames, which are passed over
        assert same(found, by_python)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_the_start_of_an_old_file_is_found_or_not(head: bytes) -> None:
    for start in (head, pickle.dumps(torch_list._MAGIC, 2) + head):
        with suppress(NotPlain):
            assert torch_list._start(start) <= len(start)
