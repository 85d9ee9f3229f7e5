"""Lists saved by torch: their values come back, damage is one sentence, and no code in them runs."""

import os
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.sources.parsing.torch_list import load_list


def saved(path: Path, found: Any, as_zip: bool = True) -> Path:
    torch.save(found, path, _use_new_zipfile_serialization=as_zip)
    return path


def loaded(path: Path) -> list[Any]:
    return list(load_list(FileRoot.of(path.parent), path.name))


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["a/é.jpg\n", 5, 70000, -1, 2**40, 1.5, None, True, "a/é.jpg\n"], None),
        (("a", "b"), ["a", "b"]),
        (torch.arange(5), [0, 1, 2, 3, 4]),
        (torch.tensor([0.5, 2.0]), [0.5, 2.0]),
        ([], None),
    ],
)
def test_values_come_back(tmp_path: Path, found: Any, expected: Any, as_zip: bool) -> None:
    assert loaded(saved(tmp_path / "list", found, as_zip)) == (found if expected is None else expected)


def test_a_remote_list_is_loaded(tmp_path: Path) -> None:
    data = saved(tmp_path / "list", ["a", 1]).read_bytes()
    fsspec.filesystem("memory").pipe("/lists/list", data)
    assert list(load_list(FileRoot.of("memory://lists"), "list")) == ["a", 1]


class Malice:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize("before", [0, 3000])
def test_code_never_runs(tmp_path: Path, as_zip: bool, before: int) -> None:
    trap = tmp_path / "trap"
    path = saved(tmp_path / "list", [*map(str, range(before)), Malice(trap)], as_zip)
    with pytest.raises(UserError, match=r"list: refused") as caught:
        loaded(path)
    assert "\n" not in str(caught.value)
    assert not trap.exists()
    torch.load(path, weights_only=False)
    assert trap.exists()  # it would have run


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole", ["a"] * 10**6)
    with zipfile.ZipFile(whole) as stored, zipfile.ZipFile(tmp_path / "list", "w", zipfile.ZIP_DEFLATED) as packed:
        for member in stored.namelist():
            packed.writestr(member, stored.read(member))
    assert (tmp_path / "list").stat().st_size < whole.stat().st_size / 100
    with pytest.raises(UserError, match=r"list: refused; it claims to hold [0-9,]+ bytes, more than the file has"):
        loaded(tmp_path / "list")


@pytest.mark.parametrize("as_zip", [True, False])
def test_a_truncated_list_is_one_sentence(tmp_path: Path, as_zip: bool) -> None:
    path = saved(tmp_path / "list", ["abc", 5, 2**40, None], as_zip)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="list: ") as caught:
            loaded(path)
        assert "\n" not in str(caught.value)
