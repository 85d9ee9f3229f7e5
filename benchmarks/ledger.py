"""What accounting and data cost beside an update at `micro` size, all measured in turn in one process."""

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from benchmarks.figure import Figure
from dietcl import build_config
from dietcl.engine.learner import Equipment, assemble
from dietcl.engine.optimizer import build_optimizer
from dietcl.engine.option_search import NullRecorder
from dietcl.engine.phases import backward
from dietcl.methods.base import Phase
from dietcl.run import stream_of
from dietcl.streams.augment import make_batch
from dietcl.streams.batch import Batch
from dietcl.streams.sampler import pools_of, sample

T = 10
WARM_UP = 3
Result = TypeVar("Result")


def run(quick: bool) -> list[Figure]:
    """Time the parts of an update of each method, interleaved, and compare medians."""
    torch.set_num_threads(1)
    rounds = 30 if quick else 150
    figures = []
    for method in ("dietcl", "er"):
        update, ledger, data, augment = _medians(method, rounds)
        figures += [
            Figure(f"{method}: ledger, of an update", 100 * ledger / update, "%", at_most=1.0),
            Figure(f"{method}: sampler and loader, of an update", 100 * data / update, "%", at_most=5.0),
            Figure(f"{method}: augmentation, of an update", 100 * augment / update, "%"),
        ]
    return figures


def _medians(method: str, rounds: int) -> tuple[float, ...]:
    config = build_config("glyphs", method, budget="1e9", label_rate=0.05)
    stream, index = stream_of(config)
    learner = assemble(config, stream, Equipment(index), NullRecorder())
    step = stream.steps[T - 1]
    learner.network.head.grow(step.seen_classes, torch.Generator())
    learner.ledger.open(step.t, step.seen_classes)
    phase = learner.method.next_phase(step, (), 1e9)
    assert isinstance(phase, Phase)
    pools = pools_of(stream, step.t, phase.mix)
    counts = phase.mix.counts(config.training.micro_batch, pools)
    ledger, allotment = learner.ledger, learner.ledger.allot(phase.share, phase.updates)
    optimizer = build_optimizer(learner.network, {}, config.training)
    classes = torch.from_numpy(step.classes)

    def update(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        backward(learner, phase, batch, 1)
        optimizer.step()

    def account_for() -> None:
        """All that the engine asks of the ledger in one update."""
        ledger.affords(32.0, 0.1, allotment)
        _ = ledger.spent, ledger.spent_fraction(allotment), ledger.spent, ledger.spent_fraction()
        for name, count in counts.items():
            learner.ledger.charge(name, "reconstruct" if name == "unlabeled" else "train", count)

    times: dict[str, list[float]] = {"update": [], "ledger": [], "data": [], "augment": []}
    for number in range(rounds + WARM_UP):
        key = (0, T, 0, number, 0)
        draws, drawing = _timed(sample, pools, counts, key)
        images, reading = _timed(
            lambda rows: [learner.loader.read(part) for part in rows], [draw.rows for draw in draws]
        )
        batch, augmenting = _timed(make_batch, draws, images, classes, config.augmentation, key)
        _, updating = _timed(update, batch)
        _, accounting = _timed(account_for)
        for name, value in zip(times, (updating, accounting, drawing + reading, augmenting), strict=True):
            times[name].append(value)
    return tuple(statistics.median(values[WARM_UP:]) for values in times.values())


def _timed(work: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    started = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - started
