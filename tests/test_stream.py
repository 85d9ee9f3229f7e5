"""Streams: what the time steps hold, and that nothing a method can reach tells a hidden label."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.config import RunConfig
from dietcl.engine.evaluator import Evaluator
from dietcl.engine.learner import Learner
from dietcl.engine.loop import learn
from dietcl.methods import METHODS
from dietcl.methods.dietcl import DietCL
from dietcl.streams.assign_steps import NOWHERE, TEST, TRAIN, assign_steps
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.loader import Loader
from dietcl.streams.manifest import write_manifest
from dietcl.streams.options import Recipe
from dietcl.streams.stream import Stream, TestStep, TimeStep, build_stream, remarks, reveal
from helpers.tiny import AMPLE, tiny_config, tiny_learner


def write(path: Path, label: Any, *, time: Any = None, split: Any = None, files: Any = None) -> Index:
    """Write a manifest of single files and open it."""
    count = len(label)
    columns = {
        "id": [f"{i}" for i in range(count)],
        "file": [f"{i}.png" for i in range(count)] if files is None else files,
        "offset": [-1] * count,
        "label": label,
        "time": [None] * count if time is None else time,
        "split": ["train"] * count if split is None else split,
    }
    return open_manifest(write_manifest(path / "manifest.parquet", columns))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Six classes, every fifth row a test image, every eleventh label unknown."""
    label = [f"class {i % 6}" if i % 11 else None for i in range(300)]
    return write(tmp_path, label, time=np.arange(300.0), split=np.where(np.arange(300) % 5, "train", "test"))


def arrays(stream: Stream) -> Iterator[tuple[str, Any]]:
    """Every value a stream holds, by name."""
    for field in fields(stream):
        value = getattr(stream, field.name)
        if field.name in ("steps", "tests"):
            for step in value:
                for inner in fields(step):
                    yield f"{field.name}[{step.t}].{inner.name}", getattr(step, inner.name)
        else:
            yield field.name, value


def assert_same(one: Stream, two: Stream, but: tuple[str, ...] = ()) -> None:
    names = []
    for (name, left), (other, right) in zip(arrays(one), arrays(two), strict=True):
        assert name == other
        names.append(name)
        if name not in but:
            np.testing.assert_array_equal(left, right, err_msg=name)
            assert np.asarray(left).dtype == np.asarray(right).dtype
    assert len(names) > 10


RECIPES = [
    Recipe(recipe="class", time_steps=3, label_rate=0.1),
    Recipe(recipe="time", time_steps=7, label_rate=0.1, at_least_one=True),
    Recipe(recipe="time", time_steps=4, label_rate=0.3, cut="duration", test_per_time_step=5),
    Recipe(recipe="data", time_steps=5, label_rate=0.2),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.recipe}-{recipe.cut}")
def test_time_steps_hold_what_was_dealt(index: Index, recipe: Recipe) -> None:
    stream = build_stream("s", index, recipe, 4)
    assignment = assign_steps(index, recipe, 4)
    assert [step.t for step in stream.steps] == [test.t for test in stream.tests] == [*range(1, recipe.time_steps + 1)]
    assert sorted(stream.index_row.tolist()) == [*range(300)]
    known: list[str] = []
    for step, test in zip(stream.steps, stream.tests, strict=True):
        labeled, unlabeled = stream.index_row[step.labeled], stream.index_row[step.unlabeled]
        train = (assignment.step == step.t - 1) & (index.split == TRAIN)
        assert sorted(labeled) == np.flatnonzero(train & assignment.labeled).tolist()
        assert sorted(unlabeled) == np.flatnonzero(train & ~assignment.labeled).tolist()
        # Labels belong to their rows; classes are numbered in the order of their first reveal.
        names = [index.classes[code] for code in index.label[labeled]]
        assert [stream.classes[number] for number in step.labels] == names
        assert set(step.new_classes) == set(names) - set(known)
        known += step.new_classes
        assert step.seen_classes == len(known)
        assert step.classes.tolist() == sorted(set(step.labels.tolist()))
        assert step.realized_rate == pytest.approx(len(labeled) / max(1, train.sum()))
        if recipe.recipe == "time":
            assert stream.times[step.t - 1] == (np.nanmin(index.time[train]), np.nanmax(index.time[train]))
        rows = stream.index_row[test.rows]
        wanted = (assignment.step == step.t - 1) & (index.split == TEST) & (index.label >= 0)
        assert sorted(rows) == np.flatnonzero(wanted).tolist()
        assert [stream.classes[number] for number in test.labels] == [index.classes[code] for code in index.label[rows]]
    assert stream.classes == tuple(known)
    assert len(stream.times) == (recipe.time_steps if recipe.recipe == "time" else 0)
    assert stream.realized_rate == pytest.approx(assignment.labeled.sum() / (index.split == TRAIN).sum())


def test_the_realized_rate_counts_what_rounding_and_unknown_labels_did(tmp_path: Path) -> None:
    index = write(tmp_path, ["a"] * 30 + ["b"] * 10 + [None] * 10)
    stream = build_stream("s", index, Recipe(recipe="class", time_steps=2, label_rate=0.04), 0)
    assert stream.realized_rate == pytest.approx(1 / 50)  # 1.2 of a -> 1; 0.4 of b -> 0
    assert sorted(step.realized_rate for step in stream.steps) == pytest.approx([0, 1 / 35])
    assert stream.classes == ("a",)


def test_identity_is_manifest_and_recipe_and_seed(tmp_path: Path) -> None:
    label = ["a", "b", "c", "d"]
    index, recipe = write(tmp_path / "1", label), Recipe(recipe="class", time_steps=2)
    base = build_stream("s", index, recipe, 0)
    assert build_stream("another name", index, recipe, 0).identity == base.identity
    others = [
        build_stream("s", write(tmp_path / "2", ["a", "b", "c", "a"]), recipe, 0),
        build_stream("s", index, recipe, 1),
        *(
            build_stream("s", index, replace(recipe, **change), 0)
            for change in ({"time_steps": 1}, {"label_rate": 0.5}, {"at_least_one": True}, {"recipe": "data"})
        ),
    ]
    assert len({base.identity, *(other.identity for other in others)}) == 1 + len(others)


def test_same_seed_same_stream_other_seed_other_stream(index: Index) -> None:
    recipe = RECIPES[0]
    one, two, other = (build_stream("s", index, recipe, seed) for seed in (0, 0, 1))
    assert_same(one, two)
    assert one.steps[0].labeled.tolist() != other.steps[0].labeled.tolist()
    assert one.steps[0].unlabeled.tolist() != other.steps[0].unlabeled.tolist()
    assert one.index_row.tolist() != other.index_row.tolist()


def test_classes_arrive_late_vanish_and_return(tmp_path: Path) -> None:
    label = ["a", "a", "b", "b", "a", "c", None, None, "b", "a"]
    index = write(tmp_path, label, time=np.arange(10.0))
    stream = build_stream("s", index, Recipe(recipe="time", time_steps=5, label_rate=1), 0)
    assert [sorted(stream.classes[i] for i in step.classes) for step in stream.steps] == [
        *(["a"], ["b"], ["a", "c"], [], ["a", "b"])
    ]
    assert [step.new_classes for step in stream.steps] == [("a",), ("b",), ("c",), (), ()]
    assert [step.seen_classes for step in stream.steps] == [1, 2, 3, 3, 3]
    assert stream.steps[3].realized_rate == 0
    assert stream.steps[3].labels.dtype == stream.steps[0].labels.dtype == np.int64


def test_empty_time_steps_are_legal(tmp_path: Path) -> None:
    index = write(tmp_path, ["a", "b", "a", "b"], time=[0.0, 0.1, 0.2, 10.0], split=["train", "train", "test", "train"])
    stream = build_stream("s", index, Recipe(recipe="time", time_steps=5, label_rate=1, cut="duration"), 0)
    assert [len(step.labeled) for step in stream.steps] == [2, 0, 0, 0, 1]
    assert [len(test.rows) for test in stream.tests] == [1, 0, 0, 0, 0]
    assert stream.steps[1].realized_rate == 0


def test_remarks_name_empty_time_steps_and_tests_that_cannot_be_passed(blobs: Path) -> None:
    index = open_manifest(blobs)
    stream = build_stream("s", index, Recipe(time_steps=3, label_rate=1.0), 0)
    assert remarks(stream, index) == []
    none = np.zeros(0, np.int64)
    bare = replace(stream.steps[1], labeled=none, labels=none, unlabeled=none)
    (empty,) = remarks(replace(stream, steps=(stream.steps[0], bare, stream.steps[2])), index)
    assert empty == "time steps without images: 1 of 3; use fewer time steps"
    two = replace(stream, steps=(bare, bare, stream.steps[2]), times=((0, 1), None, None))
    assert re.fullmatch("time steps without images: 2 of 3; .* share a time, .* or recipe data", remarks(two, index)[0])
    unknown = replace(stream.tests[0], labels=np.full(8, -1))
    (wrong,) = remarks(replace(stream, tests=(unknown, *stream.tests[1:])), index)
    assert wrong == "test images of classes that are never revealed, which count as wrong: 8 of 24"
    untested = tuple(replace(test, rows=none, labels=none) for test in stream.tests)
    assert "no accuracy" in remarks(replace(stream, tests=untested), index)[0]


def test_remarks_count_hidden_labels_and_not_unknown_ones(tmp_path: Path) -> None:
    index = write(tmp_path, ["a"] * 10 + ["b"] * 10 + [None] * 7 + ["a"], split=["train"] * 27 + ["test"])
    sparse = build_stream("s", index, Recipe(recipe="data", time_steps=1, label_rate=0.2), 0)
    assert remarks(sparse, index)[0].startswith("labels revealed: 4 of 20 (")
    assert remarks(build_stream("s", index, Recipe(recipe="data", time_steps=1, label_rate=1.0), 0), index) == []


def test_classes_that_are_never_revealed_are_minus_one_in_the_test(tmp_path: Path) -> None:
    index = write(tmp_path, ["a"] * 4 + ["b", "b", "a", None], split=["train"] * 5 + ["test"] * 3)
    stream = build_stream("s", index, Recipe(recipe="data", time_steps=1, label_rate=0.25), 0)
    labels = dict(zip(stream.index_row[stream.tests[0].rows].tolist(), stream.tests[0].labels.tolist(), strict=True))
    assert stream.classes == ("a",)
    assert labels == {5: -1, 6: 0}  # row 7 cannot be judged: nobody knows its label


# The label firewall.


def permute_hidden(index: Index, labeled: Any, seed: int) -> Index:
    """Permute the labels of all training rows that are not revealed."""
    hidden = np.flatnonzero((index.split == TRAIN) & ~labeled)
    label = index.label.copy()
    label[hidden] = np.random.default_rng(seed).permutation(label[hidden])
    assert (label != index.label).any()
    return replace(index, label=label)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.recipe}-{recipe.cut}")
def test_permuting_hidden_labels_changes_nothing_in_the_stream(index: Index, recipe: Recipe) -> None:
    assignment = assign_steps(index, recipe, 0)
    stream = reveal("s", index, recipe, 0, assignment)
    assert_same(stream, build_stream("s", index, recipe, 0))
    for seed in range(3):
        assert_same(stream, reveal("s", permute_hidden(index, assignment.labeled, seed), recipe, 0, assignment))
    # The comparison can tell: one revealed label changed does show.
    revealed = np.flatnonzero(assignment.labeled)
    label = index.label.copy()
    label[revealed[0]] = (label[revealed[0]] + 1) % 6
    with pytest.raises(AssertionError):
        assert_same(stream, reveal("s", replace(index, label=label), recipe, 0, assignment))


@given(st.integers(0, 99), st.sampled_from(RECIPES))
@settings(max_examples=25, deadline=None)
def test_permuting_hidden_labels_of_any_stream(seed: int, recipe: Recipe) -> None:
    generator = np.random.default_rng(seed)
    count = 120
    index = Index(
        root=Path(),
        hash="x",
        files=("f",),  # type: ignore[arg-type]
        classes=tuple("abcde"),
        file=np.zeros(count, np.int32),
        offset=np.arange(count),
        length=np.full(count, -1),
        label=generator.integers(-1, 5, count).astype(np.int32),
        time=generator.integers(0, 30, count).astype(float),
        split=(generator.random(count) < 0.2).astype(np.int8),
    )
    assignment = assign_steps(index, recipe, seed)
    stream = reveal("s", index, recipe, seed, assignment)
    assert_same(stream, reveal("s", permute_hidden(index, assignment.labeled, seed), recipe, seed, assignment))


def learned(config: RunConfig, index: Index, stream: Stream) -> tuple[Learner, list[Any], list[Any]]:
    """A learner after the stream, what it predicted, and what it drew."""
    learner = tiny_learner(config, stream, index)
    draws: list[Any] = []
    iterate = learner.loader.iterate

    def note(micro_batches: Any, ahead: Any = None) -> Any:
        for drawn, images in iterate(micro_batches, ahead):
            draws.extend((d.pool, d.rows.tolist(), None if d.labels is None else d.labels.tolist()) for d in drawn)
            yield drawn, images

    learner.loader.iterate = note  # type: ignore[method-assign]
    for _ in learn(learner):
        pass
    predictions = [learner.evaluator.predict(learner.method, learner.net, test) for test in stream.tests]
    return learner, predictions, draws


@pytest.mark.parametrize("method", METHODS)
def test_permuting_hidden_labels_changes_no_weight_no_draw_and_no_prediction(blobs: Path, method: str) -> None:
    options: dict[str, object] = {"threshold": "2.0"} if method == "dietcl" else {}  # so that both phases run
    config, index = tiny_config(blobs, method, budget=AMPLE.get(method, "3"), **options), open_manifest(blobs)
    assignment = assign_steps(index, config.recipe, config.seed)
    other = permute_hidden(index, assignment.labeled, 5)
    runs = [learned(config, one, reveal("s", one, config.recipe, config.seed, assignment)) for one in (index, other)]
    (one, predicted, draws), (two, predicted_too, draws_too) = runs
    assert len(draws) > 2
    assert draws == draws_too
    weights, weights_too = one.network.state_dict(), two.network.state_dict()
    start = tiny_learner(config).network.state_dict()
    if method not in ("linear_probe", "ncm", "acm", "l2p"):  # whose encoder is frozen
        assert any(not torch.equal(weights[name], start[name]) for name in start if not name.startswith("head"))
    weights |= one.method.state()
    weights_too |= two.method.state()
    assert weights.keys() == weights_too.keys()
    assert all(torch.equal(weights[name].nan_to_num(-7), weights_too[name].nan_to_num(-7)) for name in weights)
    assert json.dumps(one.ledger.receipts()) == json.dumps(two.ledger.receipts())
    for left, right in zip(predicted, predicted_too, strict=True):
        np.testing.assert_array_equal(left[0], right[0])
        np.testing.assert_array_equal(left[1], right[1])
    np.testing.assert_array_equal(one.counts.correct, two.counts.correct)


def test_paths_tell_nothing(tmp_path: Path) -> None:
    label = [f"class {i % 4}" for i in range(80)]
    recipe = Recipe(recipe="class", time_steps=2, label_rate=0.2)
    plain = build_stream("s", write(tmp_path / "plain", label), recipe, 0)
    telling = write(tmp_path / "telling", label, files=[f"{name}/{i}.png" for i, name in enumerate(label)])
    other = build_stream("s", telling, recipe, 0)
    for one, two in zip((*plain.steps, *plain.tests), (*other.steps, *other.tests), strict=True):
        for pool in ("labeled", "unlabeled", "rows"):
            if hasattr(one, pool):
                rows = [np.sort(s.index_row[getattr(step, pool)]) for s, step in ((plain, one), (other, two))]
                assert (rows[0] == rows[1]).all()


def test_the_seed_alone_does_not_tell_which_image_a_row_number_is(tmp_path: Path) -> None:
    # A method knows its keys, and so could know the seed.
    recipe = Recipe(recipe="data", time_steps=1, label_rate=0)
    one, two = (
        build_stream("s", write(tmp_path / name, ["a"] * 40, files=[f"{name}.png"] * 40), recipe, 0) for name in "xy"
    )
    assert (one.index_row != two.index_row).any()


def test_order_tells_nothing(tmp_path: Path) -> None:
    # All rows sorted by class, in the order of the classes' names: the worst a manifest can do.
    label = np.repeat(np.arange(20), 200)
    index = write(
        tmp_path, [f"class {code:02}" for code in label], split=np.where(np.arange(4000) % 10, "train", "test")
    )
    stream = build_stream("s", index, Recipe(recipe="data", time_steps=2, label_rate=0.1), 0)
    for step in stream.steps:
        hidden = label[stream.index_row[step.unlabeled]]
        # Neither the row number nor the place in the pool goes with the label: r of n pairs is normal with 1/sqrt(n).
        for what in (step.unlabeled, np.arange(len(hidden)), step.unlabeled % 20):
            assert abs(np.corrcoef(what, hidden)[0, 1]) * np.sqrt(len(hidden)) < 4
        # Nor do neighbours share their class more often than by chance.
        matches = (hidden[1:] == hidden[:-1]).mean()
        assert abs(matches - 1 / 20) * np.sqrt(len(hidden) / (1 / 20 * 19 / 20)) < 4
        # The labeled pool is in random order too, so that the place of an image tells nothing.
        assert abs(np.corrcoef(np.arange(len(step.labels)), step.labels)[0, 1]) * np.sqrt(len(step.labels)) < 4


def test_row_numbers_of_train_and_test_and_labeled_are_mixed(index: Index) -> None:
    stream = build_stream("s", index, Recipe(recipe="data", time_steps=1, label_rate=0.3), 0)
    step, test = stream.steps[0], stream.tests[0]
    for rows in (step.labeled, step.unlabeled, test.rows):
        error = 300 / np.sqrt(12 * len(rows))
        assert abs(rows.mean() - 150) < 4 * error


def test_a_time_step_holds_rows_and_revealed_labels_only(index: Index) -> None:
    stream = build_stream("s", index, RECIPES[0], 0)
    public = {
        "t",
        "labeled",
        "labels",
        "unlabeled",
        "seen_classes",
        "new_classes",
        "classes",
        "is_first",
        "realized_rate",
        "spans",
        "by_class",
        "unplaced",
    }
    for step in stream.steps:
        assert {name for name in dir(step) if not name.startswith("_")} == public
        assert set(vars(step)) == {field.name for field in fields(TimeStep)}
        assert len(step.labels) == len(step.labeled)
        for name in ("labeled", "labels", "unlabeled", "unplaced", "classes"):
            values = getattr(step, name)
            assert type(values) is np.ndarray
            assert values.dtype == np.int64
            assert values.base is None  # no view of an array that holds more
        assert isinstance(step.t, int)
        assert isinstance(step.seen_classes, int)
        assert all(type(name) is str for name in step.new_classes)


def test_a_method_is_handed_nothing_but_time_steps_and_batches(blobs: Path) -> None:
    """Walk everything that can be reached from what the loop hands to a method: no index and no test label is there."""
    reached: list[Any] = []

    class Spy(DietCL):
        def begin_step(self, net: Any, step: Any) -> None:
            reached.extend(walk([self, net, step]))

        def losses(self, net: Any, phase: Any, batch: Any) -> Any:
            reached.extend(walk([phase, batch]))
            return super().losses(net, phase, batch)

    learner = tiny_learner(tiny_config(blobs, budget="1"))
    learner.method = Spy(learner.config.method_config)
    for _ in learn(learner):
        pass
    assert len(reached) > 100
    assert any(isinstance(thing, TimeStep) for thing in reached)
    secret = (Index, Stream, TestStep, Loader, Evaluator, Learner)
    assert not any(isinstance(thing, secret) for thing in reached)
    assert {type(thing) for thing in walk([learner])} > set(secret)  # the walk does find them where they are


def walk(roots: list[Any]) -> list[Any]:
    """Everything reachable by attributes, items and the closures of bound methods, short of modules and classes."""
    seen: dict[int, Any] = {}
    todo = list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (type, str, bytes, int, float, torch.Tensor, np.ndarray)):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, dict):
            todo += [*thing.keys(), *thing.values()]
        elif isinstance(thing, (list, tuple, set)):
            todo += list(thing)
        elif hasattr(thing, "__self__"):
            todo.append(thing.__self__)
        elif type(thing).__module__.startswith(("dietcl", "torch", "timm", "test_")):
            todo += list(getattr(thing, "__dict__", {}).values())
    return list(seen.values())


@pytest.mark.parametrize("method", ["dietcl", "er", "naive"])
def test_time_steps_without_labels_or_images_can_be_learned(blobs: Path, method: str) -> None:
    index = open_manifest(blobs)
    train = index.split == TRAIN
    recipe = Recipe(recipe="time", time_steps=5, label_rate=0.5)
    assignment = assign_steps(index, recipe, 0)
    assignment.labeled[np.isin(assignment.step, [0, 2])] = False  # no label at the first and third time steps
    assignment.step[train & (assignment.step == 3)] = NOWHERE  # and nothing at all at the fourth
    stream = reveal(
        "s", index, recipe, 0, replace(assignment, labeled=assignment.labeled & (assignment.step != NOWHERE))
    )
    assert [bool(len(step.labeled)) for step in stream.steps] == [False, True, False, False, True]
    learner = tiny_learner(replace(tiny_config(blobs, method, budget="1"), recipe=recipe), stream, index)
    assert list(learn(learner)) == [1, 2, 3, 4, 5]
    assert all(torch.isfinite(value).all() for value in learner.network.state_dict().values())
    spent = [receipt.spent for receipt in learner.ledger.closed]
    assert spent[1] > 0
    assert (spent[0] > 0) == (method == "dietcl")  # reconstruction needs no label
