"""An image that cannot be read: another of its draw stands in, the same in every run, and too many stop the run."""

import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.loop import learn
from dietcl.engine.option_search import NullRecorder
from dietcl.errors import UserError
from dietcl.streams import loader as loader_module
from dietcl.streams import storage as storage_module
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.loader import Loader, Pictures, substitutes
from dietcl.streams.manifest import Facts, write_manifest
from dietcl.streams.options import Mix
from dietcl.streams.sampler import pools_of, sample
from dietcl.streams.storage import GRAY, Storage
from dietcl.streams.stream import Stream, build_stream
from helpers.photos import photo, photo_columns, write_photos
from helpers.prepared import dietcl
from helpers.tiny import tiny_config

CPU = torch.device("cpu")


class Notes(NullRecorder):
    """A recorder that remembers events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def substituted(self) -> list[int]:
        return [event["substituted"] for event in self.events if event["event"] == "step_end"]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def stream_of(manifest: Path) -> tuple[Stream, Index]:
    config = tiny_config(manifest)
    index = open_manifest(manifest)
    return build_stream(config.stream, index, config.recipe, config.seed), index


def file_of(manifest: Path, row: int) -> Path:
    """The file behind an opaque row number."""
    stream, index = stream_of(manifest)
    return manifest.parent / index.files[index.file[stream.index_row[row]]]


def labeled_file(manifest: Path, t: int, place: int = 0) -> Path:
    return file_of(manifest, int(stream_of(manifest)[0].step(t).labeled[place]))


def run(manifest: Path, method: str = "dietcl", steps: int = 3, **options: Any) -> tuple[Learner, Notes]:
    """Learn some time steps."""
    stream, index = stream_of(manifest)
    notes = Notes()
    learner = assemble(tiny_config(manifest, method, **options), stream, Equipment(index), notes)
    for t in learn(learner):
        if t == steps:
            break
    return learner, notes


def same_weights(one: Learner, other: Learner) -> bool:
    theirs = other.network.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.network.state_dict().items())


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), unique=True))))
@example((1, [0]))
@example((3, [0, 1, 2]))
@example((3, [2]))
@example((3, []))
@settings(max_examples=200, deadline=None)
def test_who_stands_in(case: tuple[int, list[int]]) -> None:
    count, bad = case[0], sorted(case[1])
    chosen = substitutes(count, bad)
    assert len(chosen) == count
    if len(bad) == count:
        assert chosen.tolist() == list(range(count))
        return
    for place in range(count):
        if place not in bad:
            assert chosen[place] == place
        else:  # the next good one, around the end if need be
            expected = next((place + i) % count for i in range(count) if (place + i) % count not in bad)
            assert chosen[place] == expected


class TestDraws:
    MIX = Mix(unlabeled=1, labeled=1, memory=1)

    def loaded(self, manifest: Path, updates: int = 6) -> tuple[Loader, list[Any]]:
        stream, index = stream_of(manifest)
        loader = Loader(stream, Storage(index, 16, bad_share=1), CPU)
        pools = pools_of(stream, 2, self.MIX)
        draws = [sample(pools, self.MIX.counts(24, pools), (0, 2, 0, update, 0)) for update in range(updates)]
        return loader, list(zip(draws, loader.iterate(iter(draws)), strict=True))

    def test_they_carry_the_rows_and_labels_of_those_who_stand_in(self, manifest: Path) -> None:
        stream, _ = stream_of(manifest)
        step = stream.step(2)
        bad = {int(row) for row in (*step.labeled[:3], *step.unlabeled[::4])}
        for row in bad:
            cut_off(file_of(manifest, row))
        loader, found = self.loaded(manifest)
        label_of = {int(row): int(label) for s in stream.steps for row, label in zip(s.labeled, s.labels, strict=True)}
        count = 0
        for drawn, (draws, images) in found:
            for asked, draw, pictures in zip(drawn, draws, images, strict=True):
                assert isinstance(pictures, Pictures)
                assert (draw.pool, draw.key) == (asked.pool, asked.key)
                missing = [i for i, row in enumerate(asked.rows.tolist()) if row in bad]
                count += len(missing)
                assert draw.rows.tolist() == asked.rows[substitutes(len(asked.rows), missing)].tolist()
                assert not bad & set(draw.rows.tolist())
                if draw.labels is None:
                    assert draw.pool == "unlabeled"
                else:
                    assert draw.labels.tolist() == [label_of[row] for row in draw.rows.tolist()]
                for row, pixels in zip(stream.index_row[draw.rows].tolist(), pictures.pixels, strict=True):
                    np.testing.assert_array_equal(pixels, photo(row))
        assert count > 10
        assert loader.substituted == count
        assert set(loader.storage.bad) <= {int(stream.index_row[row]) for row in bad}

    def test_a_draw_without_a_good_one_is_gray_and_keeps_its_own(self, manifest: Path) -> None:
        stream, _ = stream_of(manifest)
        for row in stream.step(2).labeled:
            file_of(manifest, int(row)).unlink()
        loader, found = self.loaded(manifest, updates=2)
        count = 0
        for drawn, (draws, images) in found:
            for asked, draw, pictures in zip(drawn, draws, images, strict=True):
                if draw.pool == "labeled":
                    assert draw.rows.tolist() == asked.rows.tolist()
                    assert draw.labels.tolist() == asked.labels.tolist()
                    assert all((pixels == GRAY).all() for pixels in pictures.pixels)
                    count += len(draw.rows)
                elif draw.pool == "memory":
                    assert not set(draw.rows.tolist()) & set(stream.step(2).labeled.tolist())
                    count += int(np.isin(asked.rows, stream.step(2).labeled).sum())
        assert loader.substituted == count > 0

    def test_what_was_read_ahead_in_vain_does_not_count(self, manifest: Path) -> None:
        stream, index = stream_of(manifest)
        file_of(manifest, int(stream.step(2).labeled[0])).unlink()
        pools = pools_of(stream, 2, self.MIX)
        draws = [sample(pools, {"labeled": 30}, (update,)) for update in range(20)]
        loader = Loader(stream, Storage(index, 16), CPU)
        ready = loader.iterate(iter(draws))
        next(ready)
        ready.close()
        assert loader.substituted == int((draws[0][0].rows == stream.step(2).labeled[0]).sum())


def test_training_finishes_and_two_runs_are_the_same(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, untouched = run(manifest, steps=2)
    assert untouched.substituted() == [0, 0]
    cut_off(labeled_file(manifest, 1))
    first, notes = run(manifest, steps=2)
    assert notes.substituted()[0] > 0
    assert not same_weights(first, whole)
    storage = first.loader.storage
    assert storage.describe(next(iter(storage.bad))).startswith(f"{labeled_file(manifest, 1)}: ")
    steps = [event for event in notes.events if event["event"] == "step_end"]
    assert all(event["data_wait"] > 0 for event in steps)
    for ahead, threads in ((3, 2), (1, 1), (8, 4)):
        monkeypatch.setattr(loader_module, "AHEAD", ahead)
        monkeypatch.setattr(storage_module, "cores", lambda threads=threads: threads)
        again, others = run(manifest, steps=2)
        assert others.substituted() == notes.substituted()
        assert same_weights(first, again)
        np.testing.assert_array_equal(first.counts.correct, again.counts.correct)


@pytest.mark.parametrize("method", ["ncm", "fixmatch"])
def test_sweeps_and_views_have_substitutes_too(manifest: Path, method: str) -> None:
    cut_off(labeled_file(manifest, 1))
    (one, notes), (other, again) = (run(manifest, method, steps=1, budget="4") for _ in range(2))
    assert notes.substituted() == again.substituted()
    assert notes.substituted()[0] > 0
    assert same_weights(one, other)
    assert one.counts.count[0].sum() == 16


def test_evaluation_with_a_test_image_that_cannot_be_read(manifest: Path) -> None:
    stream, _ = stream_of(manifest)
    cut_off(file_of(manifest, int(stream.tests[0].rows[0])))
    learner, notes = run(manifest, "er", budget="2")
    assert notes.substituted() == [1, 1, 1]  # it is looked at after each of three time steps
    expected = [len(test.rows) for test in stream.tests]
    assert learner.counts.count[2].tolist() == expected  # it counts, as what nobody could see
    assert np.isfinite(learner.counts.loss_sum).all()


def test_past_the_share_the_run_stops_and_names_a_file(manifest: Path) -> None:
    stream, index = stream_of(manifest)
    files = [labeled_file(manifest, 1, place) for place in (0, 1)]
    for file in files:
        cut_off(file)
    notes = Notes()
    config = tiny_config(manifest)
    with pytest.raises(UserError) as caught:
        list(learn(assemble(config, stream, Equipment(index), notes)))
    message = str(caught.value)
    assert "\n" not in message
    assert any(str(file) in message for file in files)
    assert "1.00%" in message
    assert "--bad-images" in message
    learner = assemble(config, stream, Equipment(index, bad_share=0.02), notes)  # two of 144 are fewer than that
    assert next(learn(learner)) == 1
    assert len(learner.loader.storage.bad) == 2


# The command.


def test_the_command_stops_and_goes_on_once_the_files_are_mended(capsys: Any, manifest: Path, tmp_path: Path) -> None:
    recipe = ("--recipe", "class", "--time-steps", 3, "--label-rate", 0.2)
    model = ("--preset", "micro", "--image-size", 16, "--decoder-dim", 16, "--weights", "random", "--threads", 1)
    training = ("--method", "er", "--batch", 12, "--micro-batch", 6, "--budget", 4)
    command = ("train", "--stream", manifest, *recipe, *model, *training)
    whole = dietcl(capsys, *command, "--out", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.said

    files = [labeled_file(manifest, 2, place) for place in range(6)]
    kept = [file.read_bytes() for file in files]
    for file in files:
        cut_off(file)
    out = tmp_path / "run"
    for _ in range(2):
        stopped = dietcl(capsys, *command, "--out", out)
        assert stopped.code == 2, stopped.said
        assert "Traceback" not in stopped.said
        assert any(str(file) in stopped.err.replace("\n", "") for file in files)
        assert "cannot be read" in stopped.said
        assert not (out / "finished").exists()
    lenient = dietcl(capsys, *command, "--out", tmp_path / "lenient", "--bad-images", 0.5)
    assert lenient.code == 0, lenient.said
    assert "images could not be read (replaced by others in training" in lenient.said

    for file, data in zip(files, kept, strict=True):
        file.write_bytes(data)
    finished = dietcl(capsys, *command, "--out", out, "--json")
    assert finished.code == 0, finished.said
    assert "resuming after time step 1" in finished.said
    assert (out / "finished").is_file()
    mine, theirs = (json.loads(result.out.strip().splitlines()[-1]) for result in (finished, whole))
    assert mine["final_mean"] == theirs["final_mean"]
    counts = [np.load(folder / "counts.npz") for folder in (out, tmp_path / "whole")]
    np.testing.assert_array_equal(counts[0]["loss_sum"], counts[1]["loss_sum"])
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["substituted"] for event in events if event["event"] == "step_end"] == [0, 0, 0]


# Images that are far away.


@pytest.fixture
def bucket() -> Iterator[str]:
    """An address with the photos behind it."""
    memory = fsspec.filesystem("memory")
    top = f"/{uuid.uuid4().hex}/my photos"
    yield f"memory:/{top}"
    memory.rm(top.rpartition("/")[0], recursive=True)


def test_images_far_away_are_read_many_at_a_time(
    manifest: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = photo_columns()
    memory = fsspec.filesystem("memory")
    memory.pipe({f"{bucket}/{file}": (manifest.parent / file).read_bytes() for file in columns["file"]})
    gone = labeled_file(manifest, 1)
    name = str(gone.relative_to(manifest.parent))
    gone.unlink()
    memory.rm(f"{bucket}/{name}")
    far = write_manifest(tmp_path / "far" / "manifest.parquet", columns, Facts(root=bucket))
    asked: list[int] = []
    read_many = FileRoot.read_many

    def counted(self: FileRoot, files: Any, starts: Any, ends: Any) -> Any:
        asked.append(len(files))
        return read_many(self, files, starts, ends)

    monkeypatch.setattr(FileRoot, "read_many", counted)
    near, expected = run(manifest, steps=1)
    assert not asked
    monkeypatch.setattr(FileRoot, "read", refuse)  # one by one would take forever
    there, notes = run(far, steps=1)
    assert notes.substituted() == expected.substituted()
    assert notes.substituted()[0] > 0
    assert same_weights(there, near)
    assert max(asked) > 1
    (row,) = there.loader.storage.bad
    sentence = there.loader.storage.describe(row)
    assert sentence.startswith(f"{bucket}/{name}: cannot be read (")
    assert "\n" not in sentence


def refuse(self: FileRoot, *_: Any) -> bytes:
    raise AssertionError("images far away are not read one by one")


def test_byte_ranges_far_away(bucket: str, tmp_path: Path) -> None:
    """Encoded images inside a shard, one of them cut off by the shard's end."""
    parts = []
    for number in range(3):
        Image.fromarray(photo(number)).save(path := tmp_path / f"{number}.png")
        parts.append(path.read_bytes())
    fsspec.filesystem("memory").pipe(f"{bucket}/shard.tar", (b"?" * 100 + b"".join(parts))[:-80])
    starts = np.cumsum([100, *map(len, parts[:-1])])
    columns = {
        "id": ["a", "b", "c"],
        "file": ["shard.tar"] * 3,
        "offset": starts,
        "length": [len(part) for part in parts],
        "label": ["x"] * 3,
        "time": [0.0] * 3,
        "split": ["train"] * 3,
    }
    storage = Storage(open_manifest(write_manifest(tmp_path / "m.parquet", columns, Facts(root=bucket))), 16)
    found = storage.fetch(np.array([1, 0, 2]))
    assert isinstance(found, list)
    np.testing.assert_array_equal(found[0], photo(1))
    np.testing.assert_array_equal(found[1], photo(0))
    assert (found[2] == GRAY).all()
    assert list(storage.bad) == [2]


def test_a_store_that_cannot_be_reached_at_all(manifest: Path, tmp_path: Path) -> None:
    far = write_manifest(tmp_path / "far" / "m.parquet", photo_columns(), Facts(root="memory://nobody/here"))
    config = replace(tiny_config(far), stream=str(far))
    index = open_manifest(far)
    stream = build_stream("far", index, config.recipe, 0)
    with pytest.raises(UserError, match=r"images cannot be read.*memory://nobody/here/class \d/\d+\.png: cannot be"):
        list(learn(assemble(config, stream, Equipment(index), Notes())))


class Hiccups:
    """A far store that fails for a while."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error, self.asked = times, error, 0

    def __call__(self, files: Any, starts: Any, ends: Any) -> list[Any]:
        self.asked += 1
        good = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(good, "PNG")
        return [self.error if i == 0 and self.asked <= self.times else good.getvalue() for i in range(len(files))]


@pytest.mark.parametrize(
    ("times", "error", "asked", "is_bad"),
    [
        (1, ConnectionResetError("reset"), 2, False),
        (2, TimeoutError("slow"), 3, False),
        (9, ConnectionResetError("reset"), 3, True),
        (9, FileNotFoundError("gone"), 1, True),  # asking again would not help
    ],
)
def test_a_hiccup_of_a_far_store_makes_no_image_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, error: Exception, asked: int, is_bad: bool
) -> None:
    columns: Any = {"id": ["a", "b"], "file": ["a.png", "b.png"], "offset": [-1, -1], "label": ["x", "x"]}
    columns |= {"time": [0.0, 0.0], "split": ["train", "train"]}
    index = open_manifest(write_manifest(tmp_path / "m.parquet", columns, Facts(root="memory://store")))
    monkeypatch.setattr("dietcl.streams.storage._PAUSES", (0.0, 0.0))
    store = Hiccups(times, error)
    monkeypatch.setattr(FileRoot, "read_many", lambda self, *arguments: store(*arguments))
    storage = Storage(index, 8)
    storage.read(np.arange(2))
    assert (store.asked, bool(storage.bad)) == (asked, is_bad)


def test_a_far_store_that_is_away_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns: Any = {"id": ["a", "b"], "file": ["a.png", "b.png"], "offset": [-1, -1], "label": ["x", "x"]}
    columns |= {"time": [0.0, 0.0], "split": ["train", "train"]}
    index = open_manifest(write_manifest(tmp_path / "m.parquet", columns, Facts(root="memory://store")))
    monkeypatch.setattr("dietcl.streams.storage._PAUSES", ())
    away = [ConnectionRefusedError("refused")] * 2
    monkeypatch.setattr(FileRoot, "read_many", lambda self, *arguments: away)
    with pytest.raises(UserError, match=r"memory://store: cannot be reached \(refused\); give the same command"):
        Storage(index, 8).read(np.arange(2))
