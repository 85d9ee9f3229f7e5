"""The loop: every time step its phases and sweeps, then its evaluation."""

import time
from collections.abc import Iterator, Sequence
from typing import Literal

from dietcl import rng
from dietcl.engine.curve import Curve
from dietcl.engine.evaluator import right_guesses
from dietcl.engine.learner import Learner
from dietcl.engine.phases import run_phase, run_sweep, within_budget
from dietcl.engine.resume_position import StepPosition
from dietcl.engine.state import weights_of
from dietcl.methods.base import Phase, Segment, Sweep
from dietcl.metrics import known, summarize
from dietcl.streams.sampler import pools_of
from dietcl.streams.stream import TimeStep

MOST_SEGMENTS = 1000  # in a time step; with more of them, the method never returns None

Moment = Literal["update", "sweep", "learned", "step"]
"""After an update, after micro-batches of a sweep, before a time step's evaluation, and after it."""


def learn(learner: Learner) -> Iterator[int]:
    """Learn what is left of the stream; yields every time step once it is learned and measured."""
    for moment in advance(learner):
        if moment == "step":
            yield learner.position.finished


def advance(learner: Learner) -> Iterator[Moment]:
    """Learn what is left of the stream; yields whenever a checkpoint could be saved."""
    for step in [step for step in learner.stream.steps if step.t > learner.position.finished]:
        if learner.position.step is None:
            _begin(learner, step)
        position = learner.position.step
        assert position is not None
        watch = _Watch(learner, position)
        curve = Curve(learner, step, position)
        while not position.is_learned:
            if position.segment is None and not _next_segment(learner, step, position):
                break
            if isinstance(position.segment, Sweep):
                for _ in run_sweep(learner, step, position, position.segment):
                    watch.note()
                    yield "sweep"
            elif position.segment is not None:
                for _ in run_phase(learner, step, position, position.segment, curve):
                    watch.note()
                    yield "update"
            learner.ledger.release()
            position.finish_segment()
        if not position.is_learned:
            with within_budget(learner, "end_step"):
                learner.method.end_step(learner.net, step)
            curve.after_last_update()
            position.is_learned = True
            watch.note()
            yield "learned"
        _finish(learner, step, position, watch)
        yield "step"


def _begin(learner: Learner, step: TimeStep) -> None:
    """Grow the head, open the budget and let the method prepare."""
    learner.network.head.grow(step.seen_classes, rng.torch_generator("cpu", learner.config.seed, step.t, "head"))
    learner.ledger.open(step.t, step.seen_classes, step.spans)
    learner.recorder.event(
        "step_begin",
        t=step.t,
        labeled=len(step.labeled),
        unlabeled=len(step.unlabeled),
        new_classes=step.new_classes,
        classes=step.seen_classes,
        realized_rate=step.realized_rate,
        times=learner.stream.times[step.t - 1] if learner.stream.times else None,
    )
    with within_budget(learner, "begin_step"):
        learner.method.begin_step(learner.net, step)
    learner.position.step = StepPosition()
    Curve(learner, step, learner.position.step).measure_if_due()


def _next_segment(learner: Learner, step: TimeStep, position: StepPosition) -> bool:
    """Ask the method for its next segment and reserve what it must leave; False when the time step is over."""
    if len(position.done) > MOST_SEGMENTS:
        name = type(learner.method).__name__
        raise RuntimeError(f"{name}.next_phase never ends; return None when the time step is over, which `done` tells")
    ledger = learner.ledger
    ledger.tick()
    position.segment = segment = learner.method.next_phase(step, position.done, ledger.remaining_updates())
    if segment is None or (isinstance(segment, Phase) and not segment.schedule[0]):
        learner.optimizers.clear()
    if segment is None:
        return False
    reserve, first_update = segment.reserve, 0.0
    passes = ledger.price("importance") * reserve.importance + ledger.price("forward") * reserve.forward
    passes += reserve.flops / ledger.pass_flops
    if isinstance(segment, Phase) and segment.share:
        first_update = learner.config.training.batch * segment.price / segment.share
    ledger.hold(passes, leave=first_update)
    return True


def _finish(learner: Learner, step: TimeStep, position: StepPosition, watch: "_Watch") -> None:
    """Measure the time step, close its budget and record the results."""
    until = min(step.t + 1, len(learner.stream.tests))
    counts = learner.counts
    learner.evaluator.measure(
        learner.method,
        learner.net,
        counts,
        step.t - 1,
        until,
        by_class=learner.class_counts,
        is_last=step is learner.stream.steps[-1],
    )
    receipt = learner.ledger.close()
    summary = summarize(counts.correct, counts.count, counts.loss_sum)
    learner.world.require_equal(weights_of(learner) | learner.method.state())
    learner.recorder.event(
        "step_end",
        t=step.t,
        accuracy_mean=known(summary.accuracy_mean[step.t - 1]),
        accuracy_pooled=known(summary.accuracy_pooled[step.t - 1]),
        updates=position.updates,
        spent=receipt.spent,
        unused=receipt.unused,
        state_bytes=state_bytes(learner, step, position.done),
        **_guesses(learner, step),
        seconds=position.seconds,
        data_wait=position.data_wait,
        substituted=watch.substituted,  # test images included
    )
    learner.position.finished, learner.position.step = step.t, None


def _guesses(learner: Learner, step: TimeStep) -> dict[str, int]:
    """Count the guesses that the method remembers, those of known truth and the right ones; it is never told."""
    pool = learner.remembered.pool(learner.method, step)
    if not len(pool.rows):
        return {}
    right, known = right_guesses(pool, learner.stream, learner.loader.storage.index)
    found = {"guesses": len(pool.rows), "guesses_known": known}
    return {**found, "guesses_right": right} if known else found


class _Watch:
    """Counts the time spent and the images substituted in a time step, also across interruptions."""

    def __init__(self, learner: Learner, position: StepPosition) -> None:
        self._loader, self._position = learner.loader, position
        self._started = time.perf_counter() - position.seconds
        self._waited = learner.loader.waited - position.data_wait
        self._substituted = learner.loader.substituted - position.substituted

    def note(self) -> None:
        """Update the position."""
        self._position.seconds = time.perf_counter() - self._started
        self._position.data_wait = self._loader.waited - self._waited
        self._position.substituted = self.substituted

    @property
    def substituted(self) -> int:
        """Images of the time step that could not be read so far."""
        return self._loader.substituted - self._substituted


def state_bytes(learner: Learner, step: TimeStep, done: Sequence[Segment]) -> int:
    """Return the size of what the method keeps: its tensors and modules, and the labels it remembers."""
    method = learner.method
    tensors = [*method.state().values(), *(p for m in method.modules().values() for p in m.state_dict().values())]
    mixes = [segment.mix for segment in done if isinstance(segment, Phase) and segment.mix.memory]
    rows = [pools_of(learner.stream, step.t, mix)["memory"].rows.nbytes for mix in mixes]
    # A row number and a label for each remembered image.
    return 2 * max(rows, default=0) + sum(int(value.nbytes) for value in tensors)
