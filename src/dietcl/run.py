"""A run from start to end in its folder: config, environment, events, checkpoints, counts, receipts, weights."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dietcl.config import RunConfig
from dietcl.engine.checkpoint_files import CHECKPOINTS, Checkpoints
from dietcl.engine.device import pick_device, pick_precision
from dietcl.engine.distributed import World
from dietcl.engine.event_log import EventLog
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.loop import advance
from dietcl.engine.option_search import Found, choose_value, require_labels
from dietcl.engine.sample_pictures import save_samples
from dietcl.engine.state import restore_state, save_state
from dietcl.errors import NotFinite, Stopped, UserError
from dietcl.execution import Execution
from dietcl.files import default_cache, disk_errors, locked, make_folder, write_json
from dietcl.methods.method_options import Search, requested_search
from dietcl.model import save_model
from dietcl.plural import plural
from dietcl.run_folder import (
    describe,
    empty,
    identity,
    is_finished,
    keep_search,
    keep_trials,
    kept_search,
    refuse_another,
    refuse_to_empty,
    save_results,
    sweep_up,
)
from dietcl.signals import Timer, listening
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.stream import Stream, remarks
from dietcl.streams.stream_cache import cached_stream

Progress = Callable[[int, float], None]
Notify = Callable[[str], None]


class EventRecorder:
    """Writes events to the event_log and passes progress on; in all processes but the first it does neither."""

    event_log: EventLog | None = None

    def __init__(self, progress: Progress, notify: Notify) -> None:
        self.progress = progress
        self.notify = notify

    def event(self, event: str, **fields: object) -> None:
        """Write an event down."""
        if self.event_log is not None:
            self.event_log.write(event, **fields)


def stream_of(config: RunConfig, progress: Progress | None = None) -> tuple[Stream, Index]:
    """Prepare a built-in source if need be, and cut its manifest into the stream."""
    if config.source is None:
        manifest = Path(config.stream)
    else:
        report = progress and (lambda done, total: progress(0, done / total))
        manifest = config.source.prepare(default_cache(), report)
    index = open_manifest(manifest)
    stream = cached_stream(config.stream, index, config.recipe, config.seed)
    first = config.first_time_steps
    if first is not None and first > len(stream.steps):
        raise UserError(f"--first-time-steps {first}: the stream has only {len(stream.steps)}")
    return replace(stream, steps=stream.steps[:first], tests=stream.tests[:first]), index


def execute(
    config: RunConfig,
    folder: Path,
    execution: Execution = Execution(),  # noqa: B008 (it is frozen)
    *,
    progress: Progress = lambda t, fraction: None,
    notify: Notify = lambda sentence: None,
    world: World | None = None,
) -> None:
    """Carry out a run in its folder; an unfinished one of the same configuration is continued, unless told otherwise.

    Raises Stopped if it was asked to stop; then the run is saved.
    """
    world, timer, fresh = world or World(), Timer(execution.time_limit), execution.fresh
    if not world.is_first:
        progress, notify = (lambda t, fraction: None), (lambda sentence: None)
    with world.in_turn():
        stream, index = stream_of(config, progress)
    if not stream.classes:
        raise UserError(
            f"--label-rate {config.recipe.label_rate}: no label is revealed, as it rounds to none in every class and "
            "time step, or the manifest has none; raise it, add --at-least-one, or label some images"
        )
    device = pick_device(execution.device, world.gpu)
    equipment = Equipment(index, device, pick_precision(execution.precision, device), execution.bad_images, world)
    kind, *others = dict.fromkeys(world.exchange(str(equipment.precision).removeprefix("torch.")))
    if others:
        raise UserError(
            f"--precision {execution.precision}: is {kind} on one device and {others[0]} on another; choose one"
        )
    run_identity = identity(config, stream, kind)
    if world.first(lambda: _is_done(run_identity, folder, fresh)):
        notify(f"{folder}: finished before, so nothing was done")
        return
    for remark in remarks(stream, index):
        notify(f"{config.stream}: {remark}")
    micro_batches = config.training.batch // config.training.micro_batch
    if world.size > micro_batches:
        notify(
            f"{world.size} processes share {micro_batches} micro-batches an update; a smaller --micro-batch gives more"
        )
    search = requested_search(config.method_config)
    if search:
        require_labels(config, search, stream)
    recorder = EventRecorder(progress, notify)
    stopped = Stopped(f"{folder}: saved; the same command{' without --fresh' * fresh} goes on from here")
    learner = assemble(config, stream, equipment, recorder)
    # Only now: what cannot be started must neither claim the folder nor empty it.
    with _claimed(run_identity | {"hash": config.hash()}, world, folder, fresh, notify), listening(world, notify):
        if search:
            found = _find_value(config, search, stream, equipment, folder, timer, recorder)
            if found is None:
                raise stopped
            settled = replace(config, method_config=replace(config.method_config, **{search.option: found.value}))
            learner = assemble(settled, stream, equipment, recorder)
            learner.ledger.book_search(found.spent)
        if world.is_first and (before := describe(learner, folder)):
            notify(f"{folder}: was begun with {' and '.join(before)}, so it rounds differently from here on")
        checkpoints = Checkpoints(folder / CHECKPOINTS, execution.keep_checkpoints)
        with _recording(recorder, folder, _take_up(learner, checkpoints, folder, notify), world):
            if not _learn(learner, folder, checkpoints, recorder, execution, timer):
                raise stopped
        if world.is_first:
            _finish(learner, folder, notify)


def _is_done(run_identity: dict[str, Any], folder: Path, fresh: bool) -> bool:
    """Refuse a folder that is not for this run; tell whether there is nothing left to do in it."""
    if fresh:
        refuse_to_empty(folder)
        return False
    refuse_another(run_identity, folder)
    return is_finished(folder)


@contextmanager
def _claimed(run_identity: dict[str, Any], world: World, folder: Path, fresh: bool, notify: Notify) -> Iterator[None]:
    """Hold the folder against other processes, make it this run's, and say so in one sentence when it is full."""
    held = ExitStack()

    def begin() -> None:
        held.enter_context(locked(make_folder(folder), notify))
        _is_done(run_identity, folder, fresh)  # somebody may have been at work in it meanwhile
        if fresh:
            empty(folder)
        sweep_up(folder)
        write_json(folder / "config.json", run_identity)

    with held, disk_errors(folder):
        world.first(begin)
        yield


def _find_value(
    config: RunConfig,
    search: Search,
    stream: Stream,
    equipment: Equipment,
    folder: Path,
    timer: Timer,
    recorder: EventRecorder,
) -> Found | None:
    """Return the result of the search that the folder keeps, or continue it; None if it was asked to stop."""
    world = equipment.world
    found, trials = world.first(lambda: kept_search(folder, search.option))
    found = found or choose_value(
        config,
        search,
        stream,
        equipment,
        lambda share: recorder.progress(0, share),
        trials,
        lambda trials: keep_trials(folder, trials) if world.is_first else None,
        lambda: _is_stopping(world, timer),
    )
    if found is not None:
        cost = sum(item.passes for item in found.spent)
        recorder.notify(f"{search.flag}: {found.value} updates, found with {cost:,.0f} passes on the search account")
        if world.is_first:
            keep_search(folder, search.option, found)
    return found


@contextmanager
def _recording(recorder: EventRecorder, folder: Path, kept: int, world: World) -> Iterator[None]:
    """Write events to the event_log, of which so many bytes are kept."""
    if not world.is_first:
        yield
        return
    recorder.event_log = EventLog(folder / "events.jsonl", keep=kept)
    try:
        yield
    except NotFinite as stop:
        recorder.event("stopped", reason=str(stop))
        raise
    finally:
        recorder.event_log.close()


def _take_up(learner: Learner, checkpoints: Checkpoints, folder: Path, notify: Notify) -> int:
    """Bring the learner to the last checkpoint; returns how long the event_log was then."""
    saved, damages = learner.world.first(checkpoints.load)
    for sentence in damages:
        notify(sentence)
    if saved is None:
        if (folder / "events.jsonl").exists():
            notify(f"{folder}: was begun, but has no checkpoint, so it begins anew")
        return 0
    event_log = restore_state(learner, saved)
    finished, step = learner.position.finished, learner.position.step
    where = (
        f"after time step {finished}" if step is None else f"in time step {finished + 1}, after update {step.updates}"
    )
    notify(f"{folder}: going on {where}")
    return event_log


def _learn(
    learner: Learner,
    folder: Path,
    checkpoints: Checkpoints,
    recorder: EventRecorder,
    execution: Execution,
    timer: Timer,
) -> bool:
    """Learn to the end, saving on the way; returns whether it came there or was asked to stop."""
    world, last = learner.world, learner.stream.steps[-1].t
    updates, saved_at = 0, time.monotonic()
    for moment in advance(learner):
        updates += moment in ("update", "sweep")
        is_stopping = _is_stopping(world, timer)
        is_late = time.monotonic() >= saved_at + 60 * execution.checkpoint_minutes
        is_due = moment == "step" or updates >= execution.checkpoint_every or is_late
        if recorder.event_log is not None and (is_due or is_stopping):
            save_state(learner, checkpoints, recorder.event_log.sync())
            updates, saved_at = 0, time.monotonic()
            if moment == "step":
                save_results(learner, folder)
        if is_stopping and learner.position.finished < last:
            world.exchange(None)  # nobody leaves before the first process has saved
            return False
    return True


def _is_stopping(world: World, timer: Timer) -> bool:
    """Tell whether somebody asked the run to stop, or its time is up."""
    world.was_asked = world.was_asked or timer.is_over
    return world.is_stopping


def _finish(learner: Learner, folder: Path, notify: Notify) -> None:
    """Write what is left of a run that has learned everything."""
    if bad := learner.loader.storage.bad:
        notify(
            f"{plural(len(bad), 'image')} could not be read (replaced by others in training, gray in tests), "
            f"such as {learner.loader.storage.describe(next(iter(bad)))}"
        )
    save_results(learner, folder)  # again: a run may have been stopped between its last checkpoint and its results
    save_samples(learner, folder / "samples.npz")
    save_model(learner, folder)
    (folder / "finished").touch()
