"""Writes run folders as the engine does, from made-up learning: what the report's tests read."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from dietcl.config import PRESETS, RunConfig
from dietcl.methods import method_config
from dietcl.rng import numpy_generator
from dietcl.streams.options import Recipe
from dietcl.streams.sources import SOURCES

Array = npt.NDArray[Any]

STATE_BYTES = 250_000  # that much more after every time step
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_LOSSES = {
    "dietcl": {"masked": 0.9, "memory": 2.2, "reconstruct": 0.7},
    "er": {"replay": 2.4},
    "naive": {"labeled": 1.1},
}
_SHARES = {
    "dietcl": {"masked": 0.3, "memory": 0.4, "reconstruct": 0.25},
    "er": {"replay": 0.98},
    "er_ace": {"labeled": 0.49, "memory": 0.49},
    "ewc": {"labeled": 0.93, "importance": 0.06},
    "mas": {"labeled": 0.92, "importance": 0.07},
    "l2p": {"labeled": 0.73, "query": 0.25},
    "cassle": {"views": 0.6, "teacher": 0.3, "labeled": 0.08},
    "dualnet": {"views": 0.5, "labeled": 0.2, "memory": 0.2, "teacher": 0.1},
    "ccic": {"memory": 0.4, "views": 0.3, "labeled": 0.15, "features": 0.12},
    "two_stage": {"reconstruct": 0.8, "labeled": 0.2},
    "joint": {"reconstruct": 0.8, "labeled": 0.19},
    "naive": {"labeled": 1.0},
    "ncm": {"features": 0.02},
    "ranpac": {"labeled": 0.3, "solve": 0.25, "features": 0.04, "projection": 0.001},
    "acm": {"features": 0.02},
    "derpp": {"memory": 0.64, "labeled": 0.32, "logits": 0.02},
    "lwf": {"labeled": 0.74, "teacher": 0.25},
}
# Accuracy right after learning, what forgetting leaves of it, and how fast it goes.
_LEARNING = {"dietcl": (0.62, 0.30, 0.25), "er": (0.60, 0.24, 0.35), "naive": (0.85, 0.02, 1.2)}


@dataclass(frozen=True)
class _Options:
    """Options of a method that is only a name here."""

    sampling: str = "balanced"


def _shares(method: str) -> dict[str, float]:
    return _SHARES.get(method, {"labeled": 0.6, "memory": 0.38})


def _losses(method: str) -> dict[str, float]:
    return _LOSSES.get(method) or {purpose: 0.6 + share for purpose, share in _shares(method).items()}


def _learning(method: str) -> tuple[float, float, float]:
    if method in _LEARNING:
        return _LEARNING[method]
    start, rest, speed = numpy_generator("fake learning", method).random(3).tolist()
    return 0.45 + 0.3 * start, 0.05 + 0.35 * rest, 0.2 + 0.6 * speed


def write_run(
    folder: Path,
    *,
    method: str = "dietcl",
    stream: str = "glyphs",
    seed: int = 0,
    time_steps: int = 20,
    learned: int | None = None,
    stopped: str | None = None,
    curves: bool = False,
    labels: tuple[str, ...] = tuple(_LETTERS),
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder that looks as if any `method` had learned `learned` of `time_steps`; changes go to the config.

    As from the engine, `joint` learns all at once in the last time step, with the budgets of all.
    """
    folder.mkdir(parents=True)
    learned = time_steps if learned is None else learned
    micro = PRESETS["micro"]
    config = RunConfig(
        method=method,
        method_config=replace(method_config(method) if method in _LEARNING else _Options(), **(options or {})),
        stream=stream,
        source=SOURCES[stream]() if stream in SOURCES else None,
        recipe=Recipe(time_steps=time_steps, label_rate=0.02),
        model=micro.model,
        weights="shipped",
        training=micro.training,
        augmentation=micro.augmentation,
        budget="20",
        seed=seed,
    )
    config = replace(config, **changes)
    identity = hashlib.sha256(f"{stream} {config.recipe} {seed}".encode()).hexdigest()[:16]
    further = {
        "stream_identity": identity,
        "weights_digest": "0123456789abcdef",
        "precision": "float32",
        "hash": config.hash(),
    }
    _write_json(folder / "config.json", config.resolved() | further)
    _write_json(folder / "environment.json", {"dietcl": "0.1.0", "python": "3.11", "device": "cpu", "threads": 2})
    correct, count, loss_sum = _counts(method, seed, time_steps, learned, str(options))
    np.savez(folder / "counts.npz", correct=correct, count=count, loss_sum=loss_sum)
    _write_json(folder / "receipts.json", _receipts(method, time_steps, learned))
    events = _events(method, seed, learned, correct, count, curves)
    if stopped is not None:
        events.append({"event": "stopped", "reason": stopped})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    if learned == time_steps:
        _write_samples(folder / "samples.npz", seed, time_steps, labels)
    return folder


def _counts(method: str, seed: int, time_steps: int, learned: int, variant: str) -> tuple[Array, Array, Array]:
    random = numpy_generator("fake", method, seed, variant)
    start, rest, speed = _learning(method)
    images = 40 + 5 * (np.arange(time_steps) % 5)
    count = np.tri(time_steps, k=1, dtype=np.int64) * images
    count[learned:] = 0
    if method == "joint":
        count[:-1] = 0
    age = np.arange(time_steps)[:, None] - np.arange(time_steps)[None, :]
    hardness = random.uniform(0.8, 1.15, time_steps)
    rate = np.clip((rest + (start - rest) * np.exp(-speed * np.maximum(age, 0))) * hardness, 0, 1)
    correct = random.binomial(count, np.where(age >= 0, rate, 0.0))
    loss_sum = count * (2.5 - 2 * rate)
    return correct, count, loss_sum


def _time_steps(method: str, time_steps: int, learned: int) -> range:
    """Return the time steps that have a receipt and events."""
    return range(time_steps if method == "joint" else 1, learned + 1)


def _budget(method: str, time_steps: int) -> float:
    return 1280.0 * (time_steps if method == "joint" else 1)


def _receipts(method: str, time_steps: int, learned: int) -> dict[str, Any]:
    steps = []
    budget = _budget(method, time_steps)
    for t in _time_steps(method, time_steps, learned):
        spent = {purpose: round(budget * share) for purpose, share in _shares(method).items()}
        items = [
            {"purpose": purpose, "operation": "train", "images": n, "passes": float(n), "flops": n * 1.9e8}
            for purpose, n in spent.items()
        ]
        items.append({"purpose": "evaluation", "operation": "forward", "images": 40, "passes": 0.0, "flops": 0.0})
        total = float(sum(spent.values()))
        steps.append({"t": t, "budget": budget, "spent": total, "unused": budget - total, "items": items})
    search = {"purpose": "threshold", "operation": "train", "images": 640, "passes": 640.0, "flops": 640 * 1.9e8}
    search_items = [search] if method == "dietcl" else []
    return {"accounting": "images", "unit": "passes", "pass_flops": 190_000_000, "steps": steps, "search": search_items}


def _events(method: str, seed: int, learned: int, correct: Array, count: Array, curves: bool) -> list[dict[str, Any]]:
    random = numpy_generator("fake events", method, seed)
    events: list[dict[str, Any]] = []
    for t in _time_steps(method, len(count), learned):
        begin = {"event": "step_begin", "t": t, "labeled": 40, "unlabeled": 2000, "new_classes": [f"c{t}a", f"c{t}b"]}
        events.append(begin | {"classes": 2 * t, "realized_rate": 0.0196})
        for update in range(1, 21):
            fall = np.exp(-update / 6)
            loss = {
                name: float(level * (0.6 + 0.4 * fall + 0.04 * random.standard_normal()))
                for name, level in _losses(method).items()
            }
            event = {"event": "update", "t": t, "phase": "joint", "update": update, "loss": loss, "lr": 1e-3}
            events.append(event | {"spent": _budget(method, len(count)) * sum(_shares(method).values()) * update / 20})
            if curves and 3 <= t <= 6:
                events.append(_curve(t, update, correct, count))
        row = slice(0, t)
        pooled = float(correct[t - 1, row].sum() / count[t - 1, row].sum())
        end = {"event": "step_end", "t": t, "accuracy_mean": pooled, "accuracy_pooled": pooled, "seconds": 2.5}
        events.append(end | {"state_bytes": STATE_BYTES * t})
    return events


def _curve(t: int, update: int, correct: Array, count: Array) -> dict[str, Any]:
    """Earlier time steps dip when a time step begins and recover: the stability gap."""
    end = correct[t - 1, :t] / count[t - 1, :t]
    before = np.append(correct[t - 2, : t - 1] / count[t - 2, : t - 1], 0.0)
    progress = update / 20
    dip = np.append(np.full(t - 1, 0.35), 0.0) * np.exp(-(((progress - 0.12) / 0.1) ** 2))
    accuracy = np.clip(before + (end - before) * min(1.0, 1.6 * progress) - dip, 0, 1)
    return {"event": "curve", "t": t, "update": update, "loss": (2 - accuracy).tolist(), "accuracy": accuracy.tolist()}


def _write_samples(path: Path, seed: int, time_steps: int, labels: tuple[str, ...]) -> None:
    random = numpy_generator("fake samples", seed)
    true = [labels[i % len(labels)] for i in range(2 * time_steps)]
    other = [labels[int(i)] for i in random.integers(0, len(labels), len(true))]
    predicted = [a if random.random() < 0.6 else b for a, b in zip(true, other, strict=True)]
    images = np.stack([_drawing(label, random) for label in true])
    originals = images[:6]
    hidden = np.kron(random.random((len(originals), 8, 8)) < 0.75, np.ones((4, 4), dtype=bool))[..., None]
    masked = np.where(hidden, 127, originals).astype(np.uint8)
    blurred = np.stack([np.asarray(Image.fromarray(image).resize((12, 12)).resize((32, 32))) for image in originals])
    np.savez(
        path,
        images=images,
        label=np.array(true),
        predicted=np.array(predicted),
        t=np.arange(len(true)) // 2 + 1,
        originals=originals,
        masked=masked,
        reconstructed=np.where(hidden, blurred, originals).astype(np.uint8),
    )


def _drawing(label: str, random: np.random.Generator) -> Array:
    paper, ink = random.integers(150, 255, 3), random.integers(0, 100, 3)
    image = Image.new("RGB", (32, 32), tuple(int(v) for v in paper))
    corner = tuple(float(v) for v in random.uniform(4, 10, 2))
    ImageDraw.Draw(image).text(corner, label[:2], fill=tuple(int(v) for v in ink), font=ImageFont.load_default(20))
    noisy = np.asarray(image) + random.normal(0, 8, (32, 32, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
