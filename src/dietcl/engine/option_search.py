"""Cross-validation of an option on the first time steps (for DietCL's threshold: appendix B.3 of the paper)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dietcl.budget.budget import Budget
from dietcl.budget.receipts import Item
from dietcl.config import Evaluation, RunConfig
from dietcl.engine.learner import Equipment, assemble
from dietcl.engine.loop import advance
from dietcl.errors import UserError
from dietcl.methods.method_options import Search
from dietcl.metrics import summarize
from dietcl.rng import numpy_generator
from dietcl.streams.stream import Stream, TestStep

TIME_STEPS = 3
FOLDS = 2


@dataclass(frozen=True)
class Found:
    """The value that cross-validation chose, what each candidate scored, and what the search spent."""

    value: str
    scores: dict[str, float]
    spent: tuple[Item, ...]


@dataclass(frozen=True)
class Trial:
    """What one candidate scored on one fold, and what that spent."""

    score: float
    spent: tuple[Item, ...]


Trials = dict[str, Trial]


class NullRecorder:
    """A recorder that ignores everything."""

    def event(self, event: str, **fields: object) -> None:
        """Ignore an event."""

    def progress(self, t: int, fraction: float) -> None:
        """Ignore progress."""

    def notify(self, sentence: str) -> None:
        """Ignore a sentence."""


def choose_value(
    config: RunConfig,
    search: Search,
    stream: Stream,
    equipment: Equipment,
    progress: Callable[[float], None],
    trials: Trials | None = None,
    keep: Callable[[Trials], None] = lambda trials: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Found | None:
    """Try every candidate on held-out revealed labels of the first time steps and return the best.

    Earlier `trials` are not repeated. Returns None if the search was stopped; `keep` has received the finished trials.
    """
    folds = require_labels(config, search, stream)
    trials = dict(trials or {})
    # A small budget rounds several shares to one candidate.
    candidates = sorted({round(share * Budget.parse(config.budget).amount) for share in search.shares})
    due = {f"{candidate}, fold {n}": (candidate, fold) for candidate in candidates for n, fold in enumerate(folds)}
    for number, (key, (candidate, fold)) in enumerate(due.items(), start=1):
        if key not in trials:
            method_config = replace(config.method_config, **{search.option: str(candidate)})
            trial = replace(config, method_config=method_config, evaluation=Evaluation())
            learner = assemble(trial, fold, equipment, NullRecorder())
            for _ in advance(learner):
                if is_stopping():
                    return None
            counts = learner.counts
            score = summarize(counts.correct, counts.count, counts.loss_sum).final_pooled
            spent = tuple(item for receipt in learner.ledger.closed for item in receipt.items)
            trials[key] = Trial(float(score), spent)
            keep(trials)
        progress(number / len(due))
    scores: dict[int, float] = {}
    for key, (candidate, _) in due.items():
        scores[candidate] = scores.get(candidate, 0.0) + trials[key].score / FOLDS
    best = max(scores, key=lambda candidate: (scores[candidate], -candidate))
    spent = tuple(item for key in due for item in trials[key].spent)
    return Found(str(best), {str(candidate): score for candidate, score in scores.items()}, spent)


def require_labels(config: RunConfig, search: Search, stream: Stream) -> list[Stream]:
    """Return the folds of a search; raises if the budget or the labels do not allow one."""
    if Budget.parse(config.budget).unit != "updates":
        raise UserError(f"{search.flag} with --budget {config.budget}: give the budget in updates, such as 500")
    folds = [hold_out(stream, fold) for fold in range(FOLDS)]
    if not all(any(len(test.rows) for test in fold.tests) for fold in folds):
        why = f"the first {TIME_STEPS} time steps reveal too few labels to hold some out"
        raise UserError(f"{search.flag}: {why}; give a number of updates, such as 400")
    return folds


def hold_out(stream: Stream, fold: int) -> Stream:
    """Return the first time steps with every FOLDS-th revealed label kept back as the test images."""
    first = stream.steps[:TIME_STEPS]
    labels = np.concatenate([step.labels for step in first])
    # Split within each class, so that no class with two labels is held out completely.
    order = np.lexsort((numpy_generator(stream.seed, "folds").random(len(labels)), labels))
    held = np.isin(np.arange(len(labels)), order[fold::FOLDS])
    # A class without a label left to learn from is not tested.
    held &= np.isin(labels, labels[~held])
    parts = np.split(held, np.cumsum([len(step.labels) for step in first])[:-1])
    steps, tests = [], []
    for step, is_held in zip(first, parts, strict=True):
        steps.append(replace(step, labeled=step.labeled[~is_held], labels=step.labels[~is_held]))
        tests.append(TestStep(step.t, step.labeled[is_held], step.labels[is_held]))
    return replace(stream, steps=tuple(steps), tests=tuple(tests))
