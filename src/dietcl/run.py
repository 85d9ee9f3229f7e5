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
from dietcl.models.checkpoints import require_weights
from dietcl.plural import plural
from dietcl.run_folder import clean, describe, identity, is_done, keep_search, keep_trials, kept_search, save_results
from dietcl.signals import listening
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.stream import Stream, remarks
from dietcl.streams.stream_cache import cached_stream

Progress = Callable[[int, float], None]
Notify = Callable[[str], None]


class EventRecorder:
    """Writes events to the event log, which only the first process has, and passes progress on."""

    event_log: EventLog | None = None

    def __init__(self, progress: Progress, notify: Notify) -> None:
        self.progress = progress
        self.notify = notify

    def event(self, event: str, **fields: object) -> None:
        """Write an event."""
        if self.event_log is not None:
            self.event_log.write(event, **fields)


def stream_of(config: RunConfig, progress: Progress = lambda t, fraction: None) -> tuple[Stream, Index]:
    """Prepare a built-in source if need be, and cut its manifest into the stream."""
    manifest = Path(config.stream)
    if config.source is not None:
        cache = default_cache()
        manifest = config.source.prepare(cache, lambda done, total: progress(0, done / total if total else 0.0))
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
    """Carry out a run in its folder, or resume it; raises Stopped if it was asked to stop, after saving."""
    deadline = time.monotonic() + execution.time_limit
    world, fresh = world or World(), execution.fresh
    if not world.is_first:
        progress, notify = (lambda t, fraction: None), (lambda sentence: None)
    with world.one_per_machine_first():
        if fresh or not (folder / "finished").is_file():
            require_weights(config.weights)  # first, as a stream may take long to draw
        stream, index = stream_of(config, progress)
    if not stream.classes:
        why = "no label is revealed, as it rounds to none in every class and time step, or the manifest has none"
        advice = "raise it, add --at-least-one, or label some images"
        raise UserError(f"--label-rate {config.recipe.label_rate}: {why}; {advice}")
    device = pick_device(execution.device, world.gpu)
    precision, bad, cache = pick_precision(execution.precision, device), execution.bad_images, execution.cache_bytes
    equipment = Equipment(index, device, precision, bad, world, cache)
    kind, *others = dict.fromkeys(world.exchange(str(equipment.precision).removeprefix("torch.")))
    if others:
        both = f"is {kind} on one device and {others[0]} on another"
        raise UserError(f"--precision {execution.precision}: {both}; choose one")
    run_identity = identity(config, stream, kind)
    if world.first(lambda: is_done(run_identity, folder, fresh)):
        notify(f"{folder}: finished before, so nothing was done")
        return
    for remark in remarks(stream, index):
        notify(f"{config.stream}: {remark}")
    count = config.training.batch // config.training.micro_batch
    if world.size > count:
        notify(f"{world.size} processes share {count} micro-batches an update; a smaller --micro-batch gives more")
    search = requested_search(config.method_config)
    if search:
        require_labels(config, search, stream)
    recorder = EventRecorder(progress, notify)
    stopped = Stopped(f"{folder}: saved; run the same command{' without --fresh' * fresh} to resume")
    learner = assemble(config, stream, equipment, recorder)
    # Only now: a run that cannot be started must neither claim the folder nor empty it.
    with _claimed(run_identity | {"hash": config.hash()}, world, folder, fresh, notify), listening(world, notify):
        if search:
            found = _find_value(learner, search, stream, equipment, folder, deadline)
            if found is None:
                raise stopped
            settled = replace(config, method_config=replace(config.method_config, **{search.option: found.value}))
            learner = assemble(settled, stream, equipment, recorder)
            learner.ledger.book_search(found.spent)
        if world.is_first and (before := describe(learner, folder)):
            notify(f"{folder}: was begun with {' and '.join(before)}, so results will differ in rounding")
        checkpoints = Checkpoints(folder / CHECKPOINTS, execution.keep_checkpoints)
        kept = _take_up(learner, checkpoints, folder, notify)
        recorder.event_log = EventLog(folder / "events.jsonl", kept) if world.is_first else None
        try:
            is_learned = _learn(learner, folder, checkpoints, recorder.event_log, execution, deadline)
        except NotFinite as stop:
            recorder.event("stopped", reason=str(stop))
            raise
        finally:
            if recorder.event_log is not None:
                recorder.event_log.close()
        if not is_learned:
            raise stopped
        if world.is_first:
            _finish(learner, folder, notify)


@contextmanager
def _claimed(run_identity: dict[str, Any], world: World, folder: Path, fresh: bool, notify: Notify) -> Iterator[None]:
    """Lock the folder and prepare it for this run; a full disk raises one sentence."""
    held = ExitStack()

    def begin() -> None:
        held.enter_context(locked(make_folder(folder), notify))
        is_done(run_identity, folder, fresh)  # another process may have used it meanwhile
        clean(folder, fresh)
        write_json(folder / "config.json", run_identity)

    with held, disk_errors(folder):
        world.first(begin)
        yield


def _find_value(
    learner: Learner, search: Search, stream: Stream, equipment: Equipment, folder: Path, deadline: float
) -> Found | None:
    """Return the result of the search that the folder keeps, or continue it; None if it was asked to stop."""
    world, recorder = learner.world, learner.recorder
    found, trials = world.first(lambda: kept_search(folder, search.option))
    found = found or choose_value(
        learner.config,
        search,
        stream,
        equipment,
        lambda share: recorder.progress(0, share),
        trials,
        lambda trials: keep_trials(folder, trials) if world.is_first else None,
        lambda: _is_stopping(world, deadline),
    )
    if found is not None:
        cost = sum(item.passes for item in found.spent)
        recorder.notify(f"{search.flag}: {found.value} updates, found with {cost:,.0f} passes on the search account")
        if world.is_first:
            keep_search(folder, search.option, found)
    return found


def _take_up(learner: Learner, checkpoints: Checkpoints, folder: Path, notify: Notify) -> int:
    """Bring the learner to the last checkpoint; returns how long the event log was then."""
    saved, damages = learner.world.first(checkpoints.load)
    for sentence in damages:
        notify(sentence)
    if saved is None:
        if (folder / "events.jsonl").exists():
            notify(f"{folder}: was begun, but has no checkpoint, so it starts over")
        return 0
    event_log = restore_state(learner, saved)
    finished, step = learner.position.finished, learner.position.step
    within = step and f"in time step {finished + 1}, after update {step.updates}"
    notify(f"{folder}: resuming {within or f'after time step {finished}'}")
    return event_log


def _learn(
    learner: Learner,
    folder: Path,
    checkpoints: Checkpoints,
    event_log: EventLog | None,
    execution: Execution,
    deadline: float,
) -> bool:
    """Learn to the end, saving on the way; returns False if it was asked to stop."""
    world, last = learner.world, learner.stream.steps[-1].t
    updates, saved_at = 0, time.monotonic()
    for moment in advance(learner):
        updates += moment in ("update", "sweep")
        is_stopping = _is_stopping(world, deadline)
        is_late = time.monotonic() >= saved_at + 60 * execution.checkpoint_minutes
        is_due = moment == "step" or updates >= execution.checkpoint_every or is_late
        if is_due or is_stopping:
            learner.loader.keep_features()
        if event_log is not None and (is_due or is_stopping):
            save_state(learner, checkpoints, event_log.sync())
            updates, saved_at = 0, time.monotonic()
            if moment == "step":
                save_results(learner, folder)
        if is_stopping and learner.position.finished < last:
            world.exchange(None)  # no process leaves before the first one has saved
            return False
    return True


def _is_stopping(world: World, deadline: float) -> bool:
    """Tell whether the run was asked to stop, or its time is up."""
    world.was_asked = world.was_asked or time.monotonic() >= deadline
    return world.is_stopping


def _finish(learner: Learner, folder: Path, notify: Notify) -> None:
    """Write the last files of a run that has learned everything."""
    if bad := learner.loader.storage.bad:
        what = f"{plural(len(bad), 'image')} could not be read (replaced by others in training, gray in tests)"
        notify(f"{what}, such as {learner.loader.storage.describe(next(iter(bad)))}")
    save_results(learner, folder)  # again: a run may have been stopped between its last checkpoint and its results
    save_samples(learner, folder / "samples.npz")
    save_model(learner, folder)
    (folder / "finished").touch()
