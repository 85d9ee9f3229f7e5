"""Checkpoint files: whole or not used, the right number of them, and no way for a stranger's file to run code."""

import json
import os
import pickle
import struct
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from dietcl.engine import checkpoint_files
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.errors import UserError


def state(number: int) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3,), float(number)), "b": torch.arange(number), "c": torch.tensor(number)}


def equal(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def names(folder: Path, start: str = "0") -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(start))


def test_what_is_saved_is_loaded(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    assert store.load() == (None, [])
    notes = {"position": {"t": 3, "limit": float("inf")}, "event_log": 17}
    store.save(state(1), {"rows": torch.arange(5)}, notes)
    saved, damages = Checkpoints(tmp_path, keep=2).load()
    assert equal(saved.tensors, state(1))
    assert equal(saved.rare, {"rows": torch.arange(5)})
    assert saved.notes == notes
    assert damages == []


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_so_many_are_kept(tmp_path, keep):
    store = Checkpoints(tmp_path, keep)
    for number in range(1, 6):
        store.save(state(number), state(10 * number), {"number": number})
        assert len(names(tmp_path)) == min(number, keep)
        assert len(names(tmp_path, "rare")) == min(number, keep)
    assert store.load()[0].notes == {"number": 5}
    assert equal(store.load()[0].rare, state(50))


def test_the_one_before_stays_until_the_new_one_was_read_back(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path, keep=1)
    store.save(state(1), {}, {"number": 1})
    write = checkpoint_files.write_bytes

    def lie(path, data):
        write(path, data[:-1] + b"\xff")

    monkeypatch.setattr(checkpoint_files, "write_bytes", lie)
    with pytest.raises(UserError, match="right after it was written"):
        store.save(state(2), {}, {"number": 2})
    monkeypatch.undo()
    assert store.load()[0].notes == {"number": 1}


def flip(data: bytes, bit: int) -> bytes:
    place = bit // 8 % len(data)
    return data[:place] + bytes([data[place] ^ (1 << bit % 8)]) + data[place + 1 :]


@pytest.mark.parametrize("part", ["0", "rare"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: flip(data, 3),
        lambda data: flip(data, 8 * (len(data) - 1)),
        lambda data: bytes(len(data)),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_it_is_used(tmp_path, part, damage):
    store = Checkpoints(tmp_path, keep=2)
    rare = {"big": torch.arange(100)}
    for number in (1, 2):
        store.save(state(number), rare, {"number": number})
    newest = tmp_path / names(tmp_path)[-1]
    path = newest if part == "0" else tmp_path / next(iter(checkpoint_files._rare_of(newest)))
    path.write_bytes(damage(path.read_bytes()))
    saved, (sentence,) = Checkpoints(tmp_path, keep=2).load()
    assert path.name in sentence
    assert "is damaged" in sentence
    assert saved.notes == {"number": 1}
    # What follows keeps the good one until there are two good ones again.
    store = Checkpoints(tmp_path, keep=2)
    store.save(state(3), rare, {"number": 3})
    assert [json.loads(checkpoint_files._notes(path.read_bytes())["notes"])["number"] for path in store._files()] == [
        3,
        1,
    ]
    assert len(set().union(*(checkpoint_files._rare_of(path) for path in store._files()))) == 2
    assert all(store._read(path) for path in store._files())


@given(bit=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_no_flipped_bit_goes_unnoticed(tmp_path_factory, bit):
    folder = tmp_path_factory.mktemp("flipped")
    store = Checkpoints(folder, keep=1)
    store.save(state(4), {}, {"number": 4})
    (path,) = store._files()
    path.write_bytes(flip(path.read_bytes(), bit))
    with pytest.raises(UserError, match="none of the checkpoints is intact"):
        store.load()


def test_a_damaged_older_one_costs_nothing_but_itself(tmp_path):
    store = Checkpoints(tmp_path, keep=3)
    for number in (1, 2, 3):
        store.save(state(number), {"big": torch.arange(9)}, {"number": number})
    second = store._files()[1]
    for content in (flip(second.read_bytes(), 80), struct.pack("<Q", 2**62) + b"{}"):
        second.write_bytes(content)
        again = Checkpoints(tmp_path, keep=3)
        assert again.load()[0].notes["number"] >= 3
        again.save(state(4), {"big": torch.arange(9)}, {"number": 4})
        assert all(again._read(path) for path in again._files())


def test_a_lost_part_is_named(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    for number in (1, 2):
        store.save(state(number), {"big": torch.arange(9)}, {"number": number})
    (tmp_path / next(iter(checkpoint_files._rare_of(store._files()[0])))).unlink()
    saved, (sentence,) = store.load()
    assert "is not there" in sentence
    assert saved.notes == {"number": 1}


def test_what_seldom_changes_is_written_only_when_it_did(tmp_path, monkeypatch):
    store, written = Checkpoints(tmp_path, keep=2), []
    write = checkpoint_files.write_bytes

    def watch(path, data):
        written.append(path.name[:4])
        write(path, data)

    monkeypatch.setattr(checkpoint_files, "write_bytes", watch)
    rare = {"big": torch.arange(1000.0), "empty": torch.zeros(0)}
    for number in range(4):
        store.save(state(number), rare, {})
    assert written.count("rare") == 2  # one for each slot, so that no two checkpoints depend on one file
    rare["big"][7] += 1  # in place
    store.save(state(5), rare, {})
    assert written.count("rare") == 3
    assert equal(store.load()[0].rare, rare)
    rare["small"] = torch.ones(3)
    store.save(state(6), rare, {})  # the change and the addition, in the other slot
    store.save(state(7), rare, {})  # the addition alone
    small = min(tmp_path.glob("rare-*"), key=lambda path: path.stat().st_size)
    assert small.stat().st_size < 200
    assert equal(store.load()[0].rare, rare)
    del rare["big"]
    for number in (8, 9):
        store.save(state(number), rare, {})
    assert equal(store.load()[0].rare, rare)
    assert written.count("rare") == 5  # nothing is written for what is left out


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_changes_what_is_loaded_is_what_was_saved_last(tmp_path_factory, data):
    keep = data.draw(st.integers(1, 3))
    folder = tmp_path_factory.mktemp("any")
    store, rare = Checkpoints(folder, keep), {"a": torch.zeros(4), "b": torch.zeros(2)}
    for number in range(data.draw(st.integers(1, 8))):
        for name in data.draw(st.sets(st.sampled_from("abc"))):
            change = data.draw(st.sampled_from(["in place", "anew", "away"]))
            if change == "in place" and name in rare:
                rare[name][0] += 1
            elif change == "away":
                rare.pop(name, None)
            else:
                rare[name] = torch.full((3,), float(number))
        if data.draw(st.booleans()):
            store = Checkpoints(folder, keep)  # another process
        store.save(state(number), rare, {"number": number})
        saved, damages = Checkpoints(folder, keep).load()
        assert equal(saved.rare, rare)
        assert (saved.notes["number"], damages) == (number, [])
    files = [checkpoint_files._rare_of(path) for path in store._files()]
    assert sum(map(len, files)) == len(set().union(*files))  # shared by no two


class Exploit:
    """What a hostile pickle does when it is opened."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def malicious(kind: str, target: Path) -> bytes:
    payload = pickle.dumps(Exploit(f"touch {target}"))
    if kind == "pickle":
        return payload
    if kind == "torch":
        path = target.with_suffix(".pt")
        torch.save({"state": Exploit(f"touch {target}")}, path)
        return path.read_bytes()
    # A well-formed file whose free text is the pickle.
    return save({"a": torch.zeros(1)}, {"notes": payload.hex(), "rare": "{}"})


@pytest.mark.parametrize("kind", ["pickle", "torch", "text"])
def test_a_hostile_file_is_refused_and_runs_nothing(tmp_path, kind):
    target, folder = tmp_path / "owned", tmp_path / "checkpoints"
    data = malicious(kind, target)
    pickle.loads(pickle.dumps(Exploit(f"touch {target}.proof")))
    assert Path(f"{target}.proof").exists()  # the pickle does what it says where it is opened
    folder.mkdir()
    (folder / f"00000001-0-{sha256(data).hexdigest()[:32]}.safetensors").write_bytes(data)  # its checksum is right
    for _ in range(2):  # nothing is changed by looking
        with pytest.raises(UserError, match="none of the checkpoints is intact"):
            Checkpoints(folder, keep=2).load()
    assert not target.exists()


def test_notes_nested_too_deeply_are_refused(tmp_path):
    data = save({"a": torch.zeros(1)}, {"notes": "[" * 100_000 + "]" * 100_000, "rare": "{}"})
    (tmp_path / f"00000001-0-{sha256(data).hexdigest()[:32]}.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="none of the checkpoints is intact"):
        Checkpoints(tmp_path, keep=2).load()


@pytest.mark.parametrize("rare", ["../../etc/passwd", "/etc/passwd", "rare-0-" + "0" * 32])
def test_a_checkpoint_names_no_file_outside(tmp_path, rare):
    data = save({"a": torch.zeros(1)}, {"notes": "{}", "rare": json.dumps({rare: ["a"]})})
    (tmp_path / f"00000001-0-{sha256(data).hexdigest()[:32]}.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="not a part of a checkpoint"):
        Checkpoints(tmp_path, keep=2).load()


def test_a_header_that_promises_too_much_is_refused(tmp_path):
    data = struct.pack("<Q", 2**60) + b"{}"
    (tmp_path / f"00000001-0-{sha256(data).hexdigest()[:32]}.safetensors").write_bytes(data)
    with pytest.raises(UserError, match="none of the checkpoints is intact"):
        Checkpoints(tmp_path, keep=2).load()


def test_other_files_in_the_folder_are_let_be(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".00000001-0-0123456789abcdef0123456789abcdef.safetensors.77").write_bytes(b"cut short")
    store = Checkpoints(tmp_path, keep=1)
    for number in (1, 2):
        store.save(state(number), {}, {"number": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names(tmp_path), "notes.txt"]
