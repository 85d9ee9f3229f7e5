"""The content of a run folder: which run it is, whether it ended, and its files."""

import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dietcl
from dietcl.budget.receipts import Item
from dietcl.checked_options import later_options
from dietcl.config import RunConfig
from dietcl.engine.checkpoint_files import CHECKPOINTS
from dietcl.engine.learner import Learner
from dietcl.engine.option_search import Found, Trial, Trials
from dietcl.errors import UserError
from dietcl.files import LOCK, digest, read_config, write_arrays, write_json
from dietcl.models.checkpoints import shipped
from dietcl.models.presets import ModelConfig
from dietcl.streams.stream import Stream

# Everything that a run and its report write; config.json is removed last, so that a half-emptied folder stays known.
_OWN = (
    *("finished", CHECKPOINTS, "search.json", "environment.json", "events.jsonl", "counts.npz", "confusion.npz"),
    *("receipts.json", "samples.npz", "model.safetensors", "model.json", "weights.safetensors"),
    *("figures", "report.html", "config.json"),
)
_CUT_SHORT = re.compile(r"\.(\w+\.json|counts\.npz|confusion\.npz|samples\.npz|(model|weights)\.safetensors)\.\d+")
_WORDS = {"stream_identity": "content of the stream", "weights_digest": "file of first weights"}
_RECORDED = ("torch", "timm", "numpy", "pyarrow", "pillow", "simplejpeg", "opencv-python-headless", "matplotlib")
_ROUNDING = ("device", "threads", "torch", "platform")
_LATER = later_options(ModelConfig)
_NONE = object()


def is_finished(folder: Path) -> bool:
    """Tell whether a run is finished."""
    return (folder / "finished").is_file()


def identity(config: RunConfig, stream: Stream, precision: str | None = None) -> dict[str, Any]:
    """Return everything that decides what a run computes, also the content of its files and a given precision."""
    path = shipped(config.model.encoder) if config.weights == "shipped" else Path(config.weights or "")
    weights = digest(path) if path.is_file() else None
    found = {**config.resolved(), "stream_identity": stream.identity, "weights_digest": weights}
    return found if precision is None else {**found, "precision": precision}


def refuse_another(wanted: dict[str, Any], folder: Path) -> None:
    """Refuse a folder that holds a run of another identity, and name every difference."""
    known = read_config(folder)
    if known and "stream_identity" not in known:
        raise UserError(f"{folder}: holds a config.json that is not a run configuration; choose another --out")
    if not known and (strange := next((name for name in _OWN if (folder / name).exists()), None)):
        raise UserError(f"{folder}: holds {strange}, as of a run, without its config.json; choose another --out")
    if different := list(_differences(known, wanted)):
        what = f"a run with another {' and '.join(different)}"
        raise UserError(f"{folder}: holds {what}; choose another --out, or start over with --fresh")


def is_done(wanted: dict[str, Any], folder: Path, fresh: bool) -> bool:
    """Refuse a folder that is not for this run; tell whether there is nothing left to do in it."""
    if not fresh:
        refuse_another(wanted, folder)
        return is_finished(folder)
    has_content = folder.is_dir() and any(path.name != LOCK for path in folder.iterdir())
    if has_content and "stream_identity" not in read_config(folder):
        raise UserError(f"{folder}: is not a run folder, so --fresh does not empty it; choose another --out")
    return False


def clean(folder: Path, fresh: bool) -> None:
    """Remove the incomplete files of a killed process; if fresh, all files of a run and no others."""
    for path in (folder / name for name in (_OWN if fresh else ())):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in folder.iterdir():
        if _CUT_SHORT.fullmatch(path.name):
            path.unlink()


def save_results(learner: Learner, folder: Path) -> None:
    """Write the counts, those by class too, and the receipts so far."""
    write_arrays(folder / "counts.npz", vars(learner.counts))
    if len(learner.class_counts.count):
        names = {"classes": np.array(learner.stream.classes, np.str_)}
        write_arrays(folder / "confusion.npz", vars(learner.class_counts) | names)
    write_json(folder / "receipts.json", learner.ledger.receipts())


def describe(learner: Learner, folder: Path) -> list[str]:
    """Write environment.json; returns what rounds differently from the environment that the run started in."""
    environment = {
        "dietcl": dietcl.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "device": str(learner.device),
        "threads": torch.get_num_threads(),
        "processes": learner.world.size,
        "weights": learner.origin,
        "realized_rate": learner.stream.realized_rate,
        **{name: version(name) for name in _RECORDED},
    }
    try:
        before = json.loads((folder / "environment.json").read_text())
        changed = [f"{name} {before[name]}" for name in _ROUNDING if before[name] != environment[name]]
    except (OSError, ValueError, KeyError, TypeError):
        changed = []
    write_json(folder / "environment.json", environment)
    return changed


def kept_search(folder: Path, option: str) -> tuple[Found | None, Trials]:
    """Return the finished search of the folder's run, or the trials of an unfinished one, if it can be read."""
    try:
        saved = json.loads((folder / "search.json").read_text())
        if "trials" in saved:
            return None, {key: Trial(trial["score"], _items(trial)) for key, trial in saved["trials"].items()}
        return Found(saved[option], saved["scores"], _items(saved)), {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None, {}


def keep_search(folder: Path, option: str, found: Found) -> None:
    """Write down the result of a search, the value under the option's name."""
    saved = asdict(found)
    write_json(folder / "search.json", {option: saved.pop("value"), **saved})


def keep_trials(folder: Path, trials: Trials) -> None:
    """Write down the trials of a search that is not finished."""
    write_json(folder / "search.json", {"trials": {key: asdict(trial) for key, trial in trials.items()}})


def _items(saved: dict[str, Any]) -> tuple[Item, ...]:
    return tuple(Item(**item) for item in saved["spent"])


def _differences(found: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Say what differs, such as `training.lr (0.004 in the folder, 0.001 requested)`; nothing in a new folder."""
    # What only the folder has is a later option that was set there, or what does not decide the result.
    later = [key for key in found if key in _LATER and key not in wanted]
    for key in (*wanted, *later) if found else ():
        if key == "hash":  # it follows from the rest
            continue
        one, other = found.get(key, _NONE), wanted.get(key, _NONE)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            before, now = ("unset" if value is _NONE else value for value in (one, other))
            yield _WORDS.get(key) or f"{prefix}{key} ({before} in the folder, {now} requested)"
