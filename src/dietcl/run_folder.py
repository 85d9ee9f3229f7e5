"""What lies in a run folder: whose run it is, whether it ended, and its files."""

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
from dietcl.budget.accounts import Item
from dietcl.config import RunConfig
from dietcl.engine.checkpoint_files import CHECKPOINTS
from dietcl.engine.learner import Learner
from dietcl.engine.option_search import Found, Trial, Trials
from dietcl.errors import UserError
from dietcl.files import LOCK, digest, write_arrays, write_json
from dietcl.models.checkpoints import shipped
from dietcl.streams.stream import Stream

# Everything that a run and its report leave in the folder; config.json goes last when the folder is emptied, so that no
# half of a run can be taken for another's.
_OWN = (
    *("finished", CHECKPOINTS, "search.json", "environment.json", "events.jsonl", "counts.npz"),
    *(
        "confusion.npz",
        "receipts.json",
        "samples.npz",
        "model.safetensors",
        "model.json",
        "weights.safetensors",
        "figures",
        "report.html",
        "config.json",
    ),
)
_CUT_SHORT = re.compile(r"\.(\w+\.json|counts\.npz|confusion\.npz|samples\.npz|(model|weights)\.safetensors)\.\d+")
_WORDS = {"stream_identity": "content of the stream", "weights_digest": "file of first weights"}
_RECORDED = ("torch", "timm", "numpy", "pyarrow", "pillow", "simplejpeg", "opencv-python-headless", "matplotlib")
_ROUNDING = ("device", "threads", "torch", "platform")
_NONE = object()


def is_finished(folder: Path) -> bool:
    """Tell whether a run came to its end."""
    return (folder / "finished").is_file()


def identity(config: RunConfig, stream: Stream, precision: str | None = None) -> dict[str, Any]:
    """Return all that decides what a run computes, the content of its files included, and the precision if given."""
    path = shipped(config.model.encoder) if config.weights == "shipped" else Path(config.weights or "")
    weights = digest(path) if path.is_file() else None
    found = {**config.resolved(), "stream_identity": stream.identity, "weights_digest": weights}
    return found if precision is None else {**found, "precision": precision}


def refuse_another(wanted: dict[str, Any], folder: Path) -> None:
    """Refuse a folder that holds another run than the one of this identity, and name every difference."""
    known = _read_config(folder)
    if known and "stream_identity" not in known:
        raise UserError(f"{folder}: holds a config.json that is no run's; choose another --out")
    if not known and (strange := next((name for name in _OWN if (folder / name).exists()), None)):
        raise UserError(f"{folder}: holds {strange}, as of a run, without its config.json; choose another --out")
    if different := list(_differences(known, wanted)):
        raise UserError(
            f"{folder}: holds a run with another {' and '.join(different)}; "
            "choose another --out, or start over with --fresh"
        )


def refuse_to_empty(folder: Path) -> None:
    """Refuse a folder that holds anything but a run."""
    has_content = folder.is_dir() and any(path.name != LOCK for path in folder.iterdir())
    if has_content and "stream_identity" not in _read_config(folder):
        raise UserError(f"{folder}: is no run folder, so --fresh does not empty it; choose another --out")


def empty(folder: Path) -> None:
    """Remove a run, and nothing that somebody else put into its folder."""
    for path in (folder / name for name in _OWN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sweep_up(folder: Path) -> None:
    """Remove what a killed process left half written."""
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
    """Write down what the run is carried out with; returns what rounds differently from what it was begun with."""
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
    """Return the search that the folder's run was begun with, or the trials of an unfinished one, if it can be read."""
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


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        raise UserError(f"{path}: not readable as JSON; choose another --out") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: is no configuration of a run; choose another --out")
    return found


def _differences(found: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Say what differs, such as `training.lr (0.004 there, 0.001 here)`: nothing, if there is no configuration."""
    for key in wanted if found else ():
        if key == "hash":  # which only sums up the rest
            continue
        one, other = found.get(key, _NONE), wanted[key]
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            yield _WORDS.get(key) or f"{prefix}{key} ({'unset' if one is _NONE else one} there, {other} here)"
