"""A run folder from start to end: config, environment, events, counts, receipts, weights."""

import json
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dietcl
from dietcl.budget.receipts import Item
from dietcl.config import RunConfig
from dietcl.engine import checkpoint
from dietcl.engine.device import pick_device
from dietcl.engine.journal import Journal
from dietcl.engine.learner import Learner, assemble
from dietcl.engine.loop import NotFinite, learn
from dietcl.engine.samples import save_samples
from dietcl.engine.search import Found, choose_threshold
from dietcl.errors import UserError
from dietcl.files import default_cache, digest, make_folder, write_json
from dietcl.models.checkpoints import save_weights, shipped
from dietcl.streams import kept
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.recipes import BAD_SHARE
from dietcl.streams.stream import Stream, remarks

Progress = Callable[[int, float], None]
# Everything that a run and its report leave in the folder; config.json goes last when the folder is emptied, so that no
# half of a run can be taken for another's.
_OWN = (
    *("finished", "checkpoint", "checkpoint.partial", "checkpoint.old", "search.json", "environment.json"),
    *("events.jsonl", "counts.npz", ".counts.npz", "receipts.json", "samples.npz", "weights.safetensors"),
    *("figures", "report.html", "config.json"),
)
_WORDS = {"stream_identity": "content of the stream", "weights_digest": "file of first weights"}
_RECORDED = ("torch", "timm", "numpy", "pyarrow", "pillow", "simplejpeg", "opencv-python-headless", "matplotlib")


class Recorder:
    """Writes events to the journal and passes progress on."""

    journal: Journal

    def __init__(self, progress: Progress, say: Callable[[str], None]) -> None:
        self.progress = progress
        self.say = say

    def event(self, event: str, **fields: object) -> None:
        """Write an event down."""
        self.journal.write(event, **fields)


def open_stream(config: RunConfig, progress: Progress | None = None) -> tuple[Stream, Index]:
    """Prepare a built-in source if need be, and cut its manifest into the stream."""
    if config.source is None:
        manifest = Path(config.stream)
    else:
        report = progress and (lambda done, total: progress(0, done / total))
        manifest = config.source.prepare(default_cache(), report)
    index = open_manifest(manifest)
    stream = kept.open_stream(config.stream, index, config.recipe, config.seed)
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
    say: Callable[[str], None] = lambda sentence: None,
    fresh: bool = False,
    bad_share: float = BAD_SHARE,
) -> None:
    """Carry out a run in its folder; an unfinished one of the same configuration is continued, unless `fresh`."""
    stream, index = open_stream(config, progress)
    identity = _identity(config, stream)
    if not stream.classes:
        raise UserError(
            f"--label-rate {config.recipe.label_rate}: no label is revealed, as it rounds to none in every class and "
            "time step, or the manifest has none; raise it, add --at-least-one, or label some images"
        )
    if fresh:
        _refuse_to_empty(folder)
    else:
        refuse_another(config, stream, folder)
        if is_finished(folder):
            say(f"{folder}: finished before, so nothing was done")
            return
    for remark in remarks(stream):
        say(f"{config.stream}: {remark}")
    place = pick_device(device)
    found = None
    if getattr(config.method_config, "threshold", None) == "auto":
        found = None if fresh else _kept_search(folder)
        found = found or choose_threshold(config, stream, index, place, lambda share: progress(0, share), bad_share)
    recorder = Recorder(progress, say)
    learner = assemble(_settled(config, found), stream, index, place, recorder, bad_share)
    # Only now: what cannot be started must neither claim the folder nor empty it.
    if fresh:
        _empty(folder)
    write_json(make_folder(folder) / "config.json", identity | {"hash": config.hash()})
    if found is not None:
        write_json(folder / "search.json", asdict(found))
        learner.ledger.book_search(found.spent)
        cost = sum(item.passes for item in found.spent)
        say(f"--threshold auto: {found.threshold} updates, found with {cost:,.0f} passes on the search account")
    _describe(learner, folder)
    if saved := checkpoint.load(learner, folder / "checkpoint"):
        say(f"{folder}: going on after time step {saved.finished}")
    recorder.journal = Journal(folder / "events.jsonl", keep=saved.journal if saved else 0)
    try:
        for finished in learn(learner, saved.finished if saved else 0):
            progress_made = checkpoint.Progress(finished, recorder.journal.position())
            checkpoint.save(learner, folder / "checkpoint", progress_made)
            save_results(learner, folder)
    except NotFinite as stop:
        recorder.event("stopped", reason=str(stop))
        raise
    finally:
        recorder.journal.close()
    if bad := learner.loader.storage.bad:
        say(
            f"{len(bad)} images could not be read (others stood in for them in training; those for tests were gray), "
            f"such as {learner.loader.storage.describe(next(iter(bad)))}"
        )
    save_results(learner, folder)  # again: a run may have been stopped between its last checkpoint and its results
    save_samples(learner, folder / "samples.npz")
    # Whoever uses the head needs to know what its rows stand for.
    notes = {"config": config.hash(), "classes": json.dumps(stream.classes[: learner.net.classes])}
    save_weights(learner.network, folder / "weights.safetensors", notes)
    (folder / "finished").touch()


def is_finished(folder: Path) -> bool:
    """Tell whether a run came to its end."""
    return (folder / "finished").is_file()


def save_results(learner: Learner, folder: Path) -> None:
    """Write the counts and the receipts so far."""
    partial = folder / ".counts.npz"
    np.savez(partial, **vars(learner.counts))
    partial.replace(folder / "counts.npz")
    write_json(folder / "receipts.json", learner.ledger.receipts())


def _refuse_to_empty(folder: Path) -> None:
    """Refuse a folder that holds anything but a run."""
    if folder.is_dir() and any(folder.iterdir()) and "stream_identity" not in _read_config(folder):
        raise UserError(f"{folder}: is no run folder, so --fresh does not empty it; choose another --out")


def _empty(folder: Path) -> None:
    """Remove a run, and nothing that somebody else put into its folder."""
    for path in (folder / name for name in _OWN):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _identity(config: RunConfig, stream: Stream) -> dict[str, Any]:
    return {**config.resolved(), "stream_identity": stream.identity, "weights_digest": _weights_digest(config)}


def refuse_another(config: RunConfig, stream: Stream, folder: Path) -> None:
    """Refuse a folder that holds another run."""
    identity, known = _identity(config, stream), _read_config(folder)
    if not known and (is_finished(folder) or checkpoint.newest(folder / "checkpoint")):
        raise UserError(f"{folder}: holds a run without its config.json; choose another --out")
    different = [_WORDS.get(name, name) for name in _differences(known, identity)]
    if different:
        raise UserError(
            f"{folder}: holds a run with another {' and '.join(different)}; "
            "choose another --out, or start over with --fresh"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        raise UserError(f"{path}: not readable as JSON; choose another --out") from None
    return found if isinstance(found, dict) else {}


def _differences(theirs: dict[str, Any], mine: dict[str, Any], prefix: str = "") -> list[str]:
    """Name the options that differ, such as training.lr; nothing differs from an empty configuration."""
    different = []
    for key in mine if theirs else ():
        if isinstance(mine[key], dict) and isinstance(theirs.get(key), dict):
            different += _differences(theirs[key], mine[key], f"{prefix}{key}.")
        elif mine[key] != theirs.get(key):
            different.append(f"{prefix}{key}")
    return different


def _weights_digest(config: RunConfig) -> str | None:
    """Return a hash of the file that the run starts from, if it starts from one."""
    path = shipped(config.model.encoder) if config.weights == "shipped" else Path(config.weights or "")
    return digest(path) if path.is_file() else None


def _describe(learner: Learner, folder: Path) -> None:
    environment = {
        "dietcl": dietcl.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "device": str(learner.device),
        "threads": torch.get_num_threads(),
        "weights": learner.origin,
        "realized_rate": learner.stream.realized_rate,
        **{name: version(name) for name in _RECORDED},
    }
    write_json(folder / "environment.json", environment)


def _kept_search(folder: Path) -> Found | None:
    """Return the search that the folder's run was begun with, if it had one and it can be read."""
    try:
        saved = json.loads((folder / "search.json").read_text())
        return Found(saved["threshold"], saved["scores"], tuple(Item(**item) for item in saved["spent"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _settled(config: RunConfig, found: Found | None) -> RunConfig:
    """Put the threshold that the search found in the place of `auto`."""
    if found is None:
        return config
    return replace(config, method_config=replace(config.method_config, threshold=found.threshold))
