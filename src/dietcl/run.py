"""A run from start to end in its folder: config, environment, events, checkpoints, counts, receipts, weights."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dietcl.config import RunConfig
from dietcl.engine import state
from dietcl.engine.checkpoint_files import CHECKPOINTS, Checkpoints
from dietcl.engine.device import Precision, pick_device, pick_precision
from dietcl.engine.distributed import World
from dietcl.engine.event_log import Journal
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.loop import advance
from dietcl.engine.option_search import Found, choose_threshold, require_labels
from dietcl.engine.sample_pictures import save_samples
from dietcl.errors import NotFinite, Stopped, UserError
from dietcl.files import default_cache, locked, make_folder, room, write_json
from dietcl.models.checkpoints import save_weights
from dietcl.run_folder import (
    describe,
    empty,
    identity,
    is_finished,
    keep_trials,
    kept_search,
    refuse_another,
    refuse_to_empty,
    save_results,
    sweep_up,
)
from dietcl.signals import Saving, Timer, listening
from dietcl.streams import stream_cache
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.recipes import BAD_SHARE
from dietcl.streams.stream import Stream, remarks

Progress = Callable[[int, float], None]
Say = Callable[[str], None]


class Recorder:
    """Writes events to the journal and passes progress on; in all processes but the first it does neither."""

    journal: Journal | None = None

    def __init__(self, progress: Progress, say: Say) -> None:
        self.progress = progress
        self.say = say

    def event(self, event: str, **fields: object) -> None:
        """Write an event down."""
        if self.journal is not None:
            self.journal.write(event, **fields)


def open_stream(config: RunConfig, progress: Progress | None = None) -> tuple[Stream, Index]:
    """Prepare a built-in source if need be, and cut its manifest into the stream."""
    if config.source is None:
        manifest = Path(config.stream)
    else:
        report = progress and (lambda done, total: progress(0, done / total))
        manifest = config.source.prepare(default_cache(), report)
    index = open_manifest(manifest)
    stream = stream_cache.open_stream(config.stream, index, config.recipe, config.seed)
    first = config.first_time_steps
    if first is not None and first > len(stream.steps):
        raise UserError(f"--first-time-steps {first}: the stream has only {len(stream.steps)}")
    return replace(stream, steps=stream.steps[:first], tests=stream.tests[:first]), index


def execute(
    config: RunConfig,
    folder: Path,
    *,
    device: str = "auto",
    progress: Progress,
    say: Say = lambda sentence: None,
    fresh: bool = False,
    bad_share: float = BAD_SHARE,
    saving: Saving = Saving(),  # noqa: B008 (it is frozen)
    world: World | None = None,
    precision: Precision = "auto",
) -> None:
    """Carry out a run in its folder; an unfinished one of the same configuration is continued, unless `fresh`.

    Raises Stopped if it was asked to stop; then the run is saved.
    """
    world, timer = world or World(), Timer(saving.stop_after)
    if not world.is_first:
        progress, say = (lambda t, fraction: None), (lambda sentence: None)
    with world.in_turn():
        stream, index = open_stream(config, progress)
    if not stream.classes:
        raise UserError(
            f"--label-rate {config.recipe.label_rate}: no label is revealed, as it rounds to none in every class and "
            "time step, or the manifest has none; raise it, add --at-least-one, or label some images"
        )
    place = pick_device(device, world.gpu)
    equipment = Equipment(index, place, pick_precision(precision, place), bad_share, world)
    kind, *others = dict.fromkeys(world.exchange(str(equipment.precision).removeprefix("torch.")))
    if others:
        raise UserError(f"--precision {precision}: is {kind} on one device and {others[0]} on another; choose one")
    mine = identity(config, stream, kind)
    if world.first(lambda: _is_done(mine, folder, fresh)):
        say(f"{folder}: finished before, so nothing was done")
        return
    for remark in remarks(stream):
        say(f"{config.stream}: {remark}")
    micro_batches = config.training.batch // config.training.micro_batch
    if world.size > micro_batches:
        say(f"{world.size} processes share {micro_batches} micro-batches an update; a smaller --micro-batch gives more")
    is_searching = getattr(config.method_config, "threshold", None) == "auto"
    if is_searching:
        require_labels(config, stream)
    recorder = Recorder(progress, say)
    stopped = Stopped(f"{folder}: saved; the same command{' without --fresh' * fresh} goes on from here")
    learner = assemble(config, stream, equipment, recorder)
    # Only now: what cannot be started must neither claim the folder nor empty it.
    with _claimed(mine | {"hash": config.hash()}, world, folder, fresh, say), listening(world, say):
        if is_searching:
            found = _find_threshold(config, stream, equipment, folder, timer, recorder)
            if found is None:
                raise stopped
            settled = replace(config, method_config=replace(config.method_config, threshold=found.threshold))
            learner = assemble(settled, stream, equipment, recorder)
            learner.ledger.book_search(found.spent)
        if world.is_first and (before := describe(learner, folder)):
            say(f"{folder}: was begun with {' and '.join(before)}, so it rounds differently from here on")
        checkpoints = Checkpoints(folder / CHECKPOINTS, saving.keep)
        with _recording(recorder, folder, _take_up(learner, checkpoints, folder, say), world):
            if not _learn(learner, folder, checkpoints, recorder, saving, timer):
                raise stopped
        if world.is_first:
            _finish(config, learner, folder, say)


def _is_done(mine: dict[str, Any], folder: Path, fresh: bool) -> bool:
    """Refuse a folder that is not for this run; tell whether there is nothing left to do in it."""
    if fresh:
        refuse_to_empty(folder)
        return False
    refuse_another(mine, folder)
    return is_finished(folder)


@contextmanager
def _claimed(mine: dict[str, Any], world: World, folder: Path, fresh: bool, say: Say) -> Iterator[None]:
    """Hold the folder against other processes, make it this run's, and say so in one sentence when it is full."""
    held = ExitStack()

    def begin() -> None:
        held.enter_context(locked(make_folder(folder), say))
        _is_done(mine, folder, fresh)  # somebody may have been at work in it meanwhile
        if fresh:
            empty(folder)
        sweep_up(folder)
        write_json(folder / "config.json", mine)

    with held, room(folder):
        world.first(begin)
        yield


def _find_threshold(
    config: RunConfig, stream: Stream, equipment: Equipment, folder: Path, timer: Timer, recorder: Recorder
) -> Found | None:
    """Return the threshold of the search that the folder keeps, or search on; None if it was asked to stop."""
    world = equipment.world
    found, trials = world.first(lambda: kept_search(folder))
    found = found or choose_threshold(
        config,
        stream,
        equipment,
        lambda share: recorder.progress(0, share),
        trials,
        lambda trials: keep_trials(folder, trials) if world.is_first else None,
        lambda: _is_stopping(world, timer),
    )
    if found is not None:
        cost = sum(item.passes for item in found.spent)
        recorder.say(
            f"--threshold auto: {found.threshold} updates, found with {cost:,.0f} passes on the search account"
        )
        if world.is_first:
            write_json(folder / "search.json", asdict(found))
    return found


@contextmanager
def _recording(recorder: Recorder, folder: Path, kept: int, world: World) -> Iterator[None]:
    """Write events to the journal, of which so many bytes are kept."""
    if not world.is_first:
        yield
        return
    recorder.journal = Journal(folder / "events.jsonl", keep=kept)
    try:
        yield
    except NotFinite as stop:
        recorder.event("stopped", reason=str(stop))
        raise
    finally:
        recorder.journal.close()


def _take_up(learner: Learner, checkpoints: Checkpoints, folder: Path, say: Say) -> int:
    """Bring the learner to the last checkpoint; returns how long the journal was then."""
    saved, damages = learner.world.first(checkpoints.load)
    for sentence in damages:
        say(sentence)
    if saved is None:
        if (folder / "events.jsonl").exists():
            say(f"{folder}: was begun, but has no checkpoint, so it begins anew")
        return 0
    journal = state.restore(learner, saved)
    finished, step = learner.position.finished, learner.position.step
    where = (
        f"after time step {finished}" if step is None else f"in time step {finished + 1}, after update {step.updates}"
    )
    say(f"{folder}: going on {where}")
    return journal


def _learn(
    learner: Learner, folder: Path, checkpoints: Checkpoints, recorder: Recorder, saving: Saving, timer: Timer
) -> bool:
    """Learn to the end, saving on the way; returns whether it came there or was asked to stop."""
    world, last = learner.world, learner.stream.steps[-1].t
    updates, saved_at = 0, time.monotonic()
    for moment in advance(learner):
        updates += moment in ("update", "sweep")
        is_stopping = _is_stopping(world, timer)
        is_due = moment == "step" or updates >= saving.every or time.monotonic() >= saved_at + 60 * saving.minutes
        if recorder.journal is not None and (is_due or is_stopping):
            state.save(learner, checkpoints, recorder.journal.sync())
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


def _finish(config: RunConfig, learner: Learner, folder: Path, say: Say) -> None:
    """Write what is left of a run that has learned everything."""
    if bad := learner.loader.storage.bad:
        say(
            f"{len(bad)} images could not be read (others stood in for them in training; those for tests were gray), "
            f"such as {learner.loader.storage.describe(next(iter(bad)))}"
        )
    save_results(learner, folder)  # again: a run may have been stopped between its last checkpoint and its results
    save_samples(learner, folder / "samples.npz")
    # Whoever uses the head needs to know what its rows stand for.
    classes = json.dumps(learner.stream.classes[: learner.net.classes])
    save_weights(learner.network, folder / "weights.safetensors", {"config": config.hash(), "classes": classes})
    (folder / "finished").touch()
