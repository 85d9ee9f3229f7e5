"""Whether runs that are killed again and again end as if they had not been: real processes, SIGKILL, every bit."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.figure import Figure
from benchmarks.kills import HOOKS, MOMENTS, Facts, Shot, differences, facts_of, outcome, start, wait
from dietcl import build_config
from dietcl.config import RunConfig
from dietcl.execution import Execution
from dietcl.run_folder import is_finished
from dietcl.streams.manifest import write_manifest

KILLS, QUICK_KILLS = 200, 8
AT_ONCE = 2  # runs
SWEEP = HOOKS["absorb"]
RECORD = Path("results/benchmarks")
CLASSES, TRAIN, TEST, SIDE = 6, 60, 10, 16
STREAM: dict[str, Any] = {"recipe": "class", "time_steps": 3, "label_rate": 0.4}
MODEL: dict[str, Any] = {"image_size": 16, "decoder_dim": 16, "weights": "random"}
TRAINING: dict[str, Any] = {"batch": 12, "micro_batch": 6, "lr": 1e-3, "head_lr": 1e-2, "lr_floor": 1e-4}
# Every method, and options that change what it keeps or what happens on the way; a case's position is its seed, and
# the first four are the quick ones.
CASES: dict[str, dict[str, Any]] = {
    "dietcl": {"budget": 10},
    "ewc": {"budget": 10},
    "dualnet": {"budget": 16, "width": 16},
    "ranpac": {"budget": 10, "random_features": 60},
    "er": {"budget": 10},
    "er_ace": {"budget": 10},
    "mas": {"budget": 10},
    "gdumb": {"budget": 10},
    "l2p": {"budget": 10},
    "cassle": {"budget": 16, "width": 16},
    "ccic": {"budget": 20},
    "one_stage": {"budget": 10},
    "two_stage": {"budget": 10},
    "joint": {"budget": 10},
    "naive": {"budget": 10},
    "linear_probe": {"budget": 10},
    "ncm": {"budget": 10},
    "acm": {"budget": 10},
    "derpp": {"budget": 10},
    "fixmatch": {"budget": 15},
    "lwf": {"budget": 10},
    "dietcl, searched threshold": {"budget": 6, "threshold": "auto"},
    "dietcl, curves, FLOPs": {"budget": 10, "curves": 4, "accounting": "flops"},
    "er, reservoir": {"budget": 10, "memory": 7},
    "er, damaged pictures": {"budget": 10},
    "ewc, online": {"budget": 10, "online": True, "decay": 0.5},
    "l2p, unfrozen": {"budget": 10, "frozen": False},
    "linear_probe:sgd": {"budget": 5},
    "ranpac:frozen, few features": {"budget": 10, "random_features": 12},
    "larder": {"budget": 10},
    "larder, frozen": {"budget": 10, "train": "head"},
}


@dataclass
class Hunt:
    """What came of one case: kills by moment, runs that came to their end, and what was not the same in them."""

    case: str
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    different: list[str] = field(default_factory=list)


def run(quick: bool) -> list[Figure]:
    """Kill runs of every case, two at a time, and compare what they leave with what an undisturbed run leaves."""
    cases = list(CASES)[:4] if quick else list(CASES)
    total = QUICK_KILLS if quick else KILLS
    RECORD.mkdir(parents=True, exist_ok=True)
    path = RECORD / f"resume-kills{'-quick' if quick else ''}.jsonl"
    with tempfile.TemporaryDirectory() as name, path.open("w") as record, ThreadPoolExecutor(AT_ONCE) as pool:
        folder = Path(name)
        os.environ["DIETCL_CACHE"] = str(folder / "cache")
        configs = make_configs(folder, cases)

        def note(**fields: object) -> None:
            record.write(json.dumps(fields) + "\n")
            record.flush()

        def one(number: int) -> Hunt:
            case, kills = cases[number], total // len(cases) + (number < total % len(cases))
            found = hunt(case, configs[case], kills, folder / "runs" / str(number), note)
            print(f"{case}: {kills} kills, {found.runs} runs, {len(found.different)} differences", flush=True)
            return found

        hunts = list(pool.map(one, range(len(cases))))
    return list(_figures(hunts, total, methods=4 if quick else 10))


def make_configs(folder: Path, cases: Iterable[str]) -> dict[str, RunConfig]:
    """Write the miniature streams and return the configuration of each case."""
    squares = write_stream(folder / "squares", pictures=False)
    pictures = write_stream(folder / "pictures", pictures=True)
    configs = {}
    for case in cases:
        manifest = pictures if case.endswith("pictures") else squares
        method, seed = case.partition(",")[0], list(CASES).index(case)
        configs[case] = build_config(manifest, method, "micro", seed=seed, **STREAM, **MODEL, **TRAINING, **CASES[case])
    return configs


def hunt(
    case: str, config: RunConfig, kills: int, folder: Path, note: Callable[..., None] = lambda **fields: None
) -> Hunt:
    """Kill runs of one configuration `kills` times in all and compare their ends."""
    expected = outcome(_undisturbed(config, folder / "whole", Execution.checkpoint_every))
    # To save more often must not change anything either; what this run meets on its way can be aimed at.
    busy = _undisturbed(config, folder / "busy", every=1)
    facts, found = facts_of(busy), Hunt(case, different=differences(expected, outcome(busy)))
    generator = np.random.default_rng(config.seed)
    while found.kills.total() < kills:
        place, left, before = folder / str(found.runs), 1.0, found.kills.total()
        while True:
            number = found.kills.total()
            shot = _draw(number, facts, left, generator, config.seed) if number < kills else Shot(every=1)
            begun = time.monotonic()
            if _is_over(config, place, shot):
                break
            seconds = time.monotonic() - begun
            activity = "starting" if seconds < facts.start else "learning"
            moment = shot.aim[0] if shot.aim else f"at random while {activity}"
            found.kills[moment] += 1
            note(case=case, seed=config.seed, run=found.runs, moment=moment, seconds=seconds, every=shot.every)
            left = max(0.0, left - max(0.0, seconds - facts.start) / facts.work)
        different = differences(expected, outcome(place))
        note(case=case, seed=config.seed, run=found.runs, differences=different)
        found.different += different
        found.runs += 1
        if found.kills.total() == before:  # the kill came too late: runs have become faster
            with suppress(FileNotFoundError):  # or came when only the last word was missing
                facts = replace(facts_of(place), moments=facts.moments)
        shutil.rmtree(place)
    return found


def write_stream(folder: Path, pictures: bool) -> Path:
    """Write six classes of colored squares on noise, in one array or as PNG files of which every seventh is cut off."""
    folder.mkdir(parents=True)
    count = CLASSES * (TRAIN + TEST)
    label = np.arange(count) % CLASSES
    images = np.random.default_rng(0).integers(0, 90, (count, SIDE, SIDE, 3), dtype=np.uint8)
    for image, code in zip(images, label, strict=True):
        image[3 * code % 11 :][:5, :5] = 80 + 40 * np.array([code % 2, code // 2 % 2, code // 4])
    names = [f"{row}.png" for row in range(count)]
    if pictures:
        for row, image in enumerate(images):
            Image.fromarray(image).save(folder / names[row])
            if row % 7 == 0:
                os.truncate(folder / names[row], 300)
    else:
        np.save(folder / "images.npy", images)
    columns = {
        "id": names,
        "file": names if pictures else ["images.npy"] * count,
        "offset": np.full(count, -1) if pictures else np.arange(count),
        "label": [f"class {code}" for code in label],
        "time": np.arange(count, dtype=float),
        "split": np.where(np.arange(count) < CLASSES * TRAIN, "train", "test"),
    }
    return write_manifest(folder / "manifest.parquet", columns)


def _draw(number: int, facts: Facts, left: float, generator: np.random.Generator, seed: int) -> Shot:
    """Draw when to kill a run of which a share is left: at random, and every third time at one of its moments."""
    if number % 3:
        return Shot(every=int(generator.choice([1, 3])), after=generator.uniform(0, facts.start + left * facts.work))
    aims = [moment for moment in MOMENTS if moment in facts.moments]
    turn = number // 3
    # Few methods have sweeps, so they come first; then each case goes on with other moments.
    moment = SWEEP if not turn and SWEEP in aims else aims[(3 * seed + turn) % len(aims)]
    occurrences = max(1, round(left * facts.moments[moment]))
    return Shot(every=1, aim=(moment, 1 + int(generator.integers(occurrences))))


def _undisturbed(config: RunConfig, folder: Path, every: int) -> Path:
    if not _is_over(config, folder, Shot(every=every)):
        raise RuntimeError(f"{folder}: the run was killed from outside the benchmark")
    return folder


def _is_over(config: RunConfig, folder: Path, shot: Shot) -> bool:
    """Start or continue a run and shoot at it; return whether it finished."""
    code = wait(start(config, folder, shot), shot.after)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{config.method}, seed {config.seed}: a run ended with exit code {code} at {shot}")
    return is_finished(folder)


def _figures(hunts: list[Hunt], kills: int, methods: int) -> Iterator[Figure]:
    by_moment: Counter[str] = sum((hunt.kills for hunt in hunts), Counter())
    names = {hunt.case.partition(",")[0].partition(":")[0] for hunt in hunts if hunt.kills}
    yield Figure("kills by SIGKILL that hit", by_moment.total(), "kills", at_least=kills)
    yield Figure("methods killed", len(names), "methods", at_least=methods)
    yield Figure("runs compared with undisturbed ones", sum(hunt.runs for hunt in hunts), "runs")
    yield Figure("differences", sum(len(hunt.different) for hunt in hunts), "tensors, arrays or events", at_most=0)
    for moment, count in by_moment.most_common():
        yield Figure(f"kills {moment}", count, "kills")
    for hunt in hunts:
        yield Figure(f"kills of {hunt.case}", hunt.kills.total(), "kills")
