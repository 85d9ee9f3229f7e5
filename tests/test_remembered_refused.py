"""What a method may not remember is refused in a sentence: images it was not shown, labels it cannot know."""

from dataclasses import replace

import numpy as np
import pytest

from dietcl.engine.remembered import Remembered
from dietcl.methods.base import Method, Mix, Phase, Pool, Sweep, Term
from dietcl.streams.sampler import NOTHING
from helpers.larder_runs import KINDS, learner_of
from helpers.recording import Notes, run_through
from helpers.tiny import tiny_config, tiny_learner


class Claims(Method):
    """Remembers what it is given, from a time step on, and walks or learns in one segment."""

    since = 1

    def __init__(self, pool, segments=()):
        super().__init__(None)
        self.claimed, self.segments, self.t = pool, segments, 0

    def begin_step(self, net, step):
        self.t = step.t

    def next_phase(self, step, done, remaining):
        return self.segments[len(done)] if len(done) < len(self.segments) else None

    def losses(self, net, phase, batch):
        yield Term("replay", batch.cross_entropy(net.logits(*batch.supervised)))

    def gather(self, net, sweep, part):
        return {"scores": net.scores(part.images, sweep.name)}

    def absorb(self, net, sweep, gathered):
        pass

    def remembered(self):
        return self.claimed if self.t >= self.since else NOTHING


@pytest.fixture(scope="module")
def stream(blobs):
    return tiny_learner(tiny_config(blobs)).stream


def shown(stream, t):
    """All rows of the time steps up to t."""
    return np.concatenate([rows for step in stream.steps[:t] for rows in (step.labeled, step.unlabeled)])


def allowed(stream, **changes):
    """Four rows of time step 2 with labels of its classes, and running sums of their weights."""
    pool = Pool(stream.steps[1].unlabeled[:4], np.arange(4), cumulative=np.array([0.5, 0.5, 2.0, 3.0]))
    return replace(pool, **changes)


def refused(stream, pool, t=2):
    method = Claims(pool)
    method.t = t
    with pytest.raises(RuntimeError, match=r"^Claims\.remembered returns [^\n]*; return [^\n]*$") as error:
        Remembered(stream).pool(method, stream.steps[t - 1])
    return str(error.value)


def accepted(stream, pool, t=2):
    method = Claims(pool)
    method.t = t
    return Remembered(stream).pool(method, stream.steps[t - 1]) is pool


def with_row(stream, row):
    return allowed(stream, rows=np.append(stream.steps[1].unlabeled[:3], row))


# Rows.


def test_test_images_are_refused(stream):
    for test in stream.tests:
        assert f"row {test.rows[0]}, a test image" in refused(stream, with_row(stream, test.rows[0]))


@pytest.mark.parametrize("kind", ["labeled", "unlabeled"])
def test_images_of_later_time_steps_are_refused_until_they_arrive(stream, kind):
    row = getattr(stream.steps[2], kind)[-1]
    assert f"row {row}" in refused(stream, with_row(stream, row))
    assert accepted(stream, with_row(stream, row), t=3)


def test_rows_that_the_stream_does_not_have_are_refused(stream):
    for row in (len(stream.index_row), -1, -len(stream.index_row)):
        assert f"row {row}, which the stream does not have" in refused(stream, with_row(stream, row))


def test_all_that_was_shown_may_be_remembered_at_every_time_step(stream):
    remembered, method = Remembered(stream), Claims(NOTHING)
    for step in stream.steps:
        rows = shown(stream, step.t)
        for claimed in (NOTHING, Pool(rows, rows % step.seen_classes)):
            method.claimed = claimed
            method.t = step.t
            assert remembered.pool(method, step) is claimed
            assert accepted(stream, claimed, step.t)  # by one that begins here, as a resumed run does
        if step.t < len(stream.steps):
            later = stream.steps[step.t].unlabeled[:1]
            method.claimed = Pool(later, later * 0)
            with pytest.raises(RuntimeError, match="later time step"):
                remembered.pool(method, step)


def test_rows_are_marked_once_in_a_time_step(stream):
    marked = []

    class Watched:
        def __init__(self, step):
            self.step = step

        def __getattr__(self, name):
            if name == "labeled":
                marked.append(self.step.t)
            return getattr(self.step, name)

    remembered = Remembered(replace(stream, steps=tuple(map(Watched, stream.steps))))
    for t in (2, 2, 3, 3):
        remembered.pool(Claims(NOTHING), stream.steps[t - 1])
        method = Claims(allowed(stream))
        method.t = t
        remembered.pool(method, stream.steps[t - 1])
    assert marked == [1, 2, 3]


# Labels and weights.


@pytest.mark.parametrize("label", [-1, 4, 5])
def test_labels_that_are_not_revealed_are_refused(stream, label):
    assert stream.steps[1].seen_classes == 4
    found = refused(stream, allowed(stream, labels=np.array([0, 3, label, 1])))
    assert f"label {label}, but 4 classes are revealed" in found


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (None, "no labels"),
        (np.arange(3), r"(4,) and labels of shape (3,)"),
        (np.arange(4)[:, None], "shape (4, 1)"),
        (np.arange(4.0), "labels of float64"),
    ],
)
def test_columns_that_do_not_fit_each_other_are_refused(stream, labels, word):
    assert word in refused(stream, allowed(stream, labels=labels))


@pytest.mark.parametrize(
    ("sums", "word"),
    [
        ([1.0, 2.0, 3.0], "shape (3,)"),
        ([1.0, 2.0, 1.5, 3.0], "falls"),
        ([-1.0, 0.0, 1.0, 2.0], "falls"),
        ([0.0, 0.0, 0.0, 0.0], "stays 0"),
        ([1.0, 2.0, np.nan, 4.0], "not finite"),
        ([1.0, 2.0, 3.0, np.inf], "not finite"),
    ],
)
def test_sums_that_are_not_running_sums_of_weights_are_refused(stream, sums, word):
    assert word in refused(stream, allowed(stream, cumulative=np.array(sums)))


def test_what_is_allowed_passes(stream):
    assert accepted(stream, allowed(stream))
    assert accepted(stream, allowed(stream, cumulative=None))
    assert accepted(stream, allowed(stream, cumulative=np.arange(4, dtype=np.float32)))
    assert accepted(stream, Pool(NOTHING.rows, NOTHING.rows, cumulative=np.zeros(0)))


# In a run.

LEARN = Phase(name="learn", mix=Mix(memory=1 / 2, larder=1 / 2), updates=1)
WALK = Sweep(name="walk", pool="larder")


@pytest.mark.parametrize("segments", [(LEARN,), (WALK,), ()], ids=["phase", "sweep", "evaluation"])
def test_a_run_stops_at_the_time_step_in_which_a_method_claims_what_it_may_not(blobs, stream, segments):
    learner = tiny_learner(tiny_config(blobs))
    row = stream.tests[0].rows[:1]
    learner.method, learner.recorder = Claims(Pool(row, row * 0), segments), Notes()
    learner.method.since = 2
    with pytest.raises(RuntimeError, match=r"Claims\.remembered returns row"):
        run_through(learner)
    assert learner.position.finished == 1
    assert not [event for event in learner.recorder.events if event.get("t") == 2 and event["event"] != "step_begin"]


@pytest.mark.parametrize(("train", "recipe"), KINDS)
def test_what_larder_remembers_passes(blobs, train, recipe):
    learner = learner_of(blobs, train, recipe, rate=0.4)
    learner.recorder = Notes()
    run_through(learner)
    pool = learner.method.remembered()
    if (train, recipe) == KINDS[0]:
        assert len(pool.rows)
    for event in learner.recorder.of("step_end"):
        assert event.get("guesses_known") == event.get("guesses")
