"""Cross-validation of DietCL's threshold on the first time steps (appendix B.3 of the paper)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dietcl.budget.accounts import Item
from dietcl.budget.budget import Budget
from dietcl.config import Evaluation, RunConfig
from dietcl.engine.learner import Equipment, assemble
from dietcl.engine.loop import advance
from dietcl.errors import UserError
from dietcl.metrics import summarize
from dietcl.rng import numpy_generator
from dietcl.streams.stream import Stream, TestStep

TIME_STEPS = 3
FOLDS = 2
SHARES = (0.6, 0.7, 0.8, 0.9)  # of the budget: the paper tried 300, 350, 400 and 450 of 500 updates


@dataclass(frozen=True)
class Found:
    """The threshold that cross-validation chose, what each candidate scored, and what the search spent."""

    threshold: str
    scores: dict[str, float]
    spent: tuple[Item, ...]


@dataclass(frozen=True)
class Trial:
    """What one candidate scored on one fold, and what that spent."""

    score: float
    spent: tuple[Item, ...]


Trials = dict[str, Trial]


class Silent:
    """A witness that takes no notes."""

    def event(self, event: str, **fields: object) -> None:
        """Ignore an event."""

    def progress(self, t: int, fraction: float) -> None:
        """Ignore progress."""

    def say(self, sentence: str) -> None:
        """Ignore a sentence."""


def choose_threshold(
    config: RunConfig,
    stream: Stream,
    equipment: Equipment,
    progress: Callable[[float], None],
    trials: Trials | None = None,
    keep: Callable[[Trials], None] = lambda trials: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Found | None:
    """Try every candidate on held-out revealed labels of the first time steps and return the best.

    Trials that were made before are not made again; None if it was asked to stop, when `keep` has got those made.
    """
    folds = require_labels(config, stream)
    trials = dict(trials or {})
    # A small budget rounds several shares to one candidate.
    candidates = sorted({round(share * Budget.parse(config.budget).amount) for share in SHARES})
    due = {f"{candidate}, fold {n}": (candidate, fold) for candidate in candidates for n, fold in enumerate(folds)}
    for number, (key, (candidate, fold)) in enumerate(due.items(), start=1):
        if key not in trials:
            method_config = replace(config.method_config, threshold=str(candidate))
            trial = replace(config, method_config=method_config, evaluation=Evaluation())
            learner = assemble(trial, fold, equipment, Silent())
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


def require_labels(config: RunConfig, stream: Stream) -> list[Stream]:
    """Return the folds of a search, or refuse one that cannot be made."""
    if Budget.parse(config.budget).unit != "updates":
        raise UserError(f"--threshold auto with --budget {config.budget}: give the budget in updates, such as 500")
    folds = [hold_out(stream, fold) for fold in range(FOLDS)]
    if not all(any(len(test.rows) for test in fold.tests) for fold in folds):
        raise UserError(
            f"--threshold auto: the first {TIME_STEPS} time steps reveal too few labels to hold some out; "
            "give a number of updates, such as 400"
        )
    return folds


def hold_out(stream: Stream, fold: int) -> Stream:
    """Return the first time steps with every FOLDS-th revealed label kept back as the test images."""
    first = stream.steps[:TIME_STEPS]
    labels = np.concatenate([step.labels for step in first])
    # Dealt within each class, so that none is held out whole while it has two labels.
    order = np.lexsort((numpy_generator(stream.seed, "folds").random(len(labels)), labels))
    held = np.zeros(len(labels), np.bool_)
    held[order[fold::FOLDS]] = True
    # A class without a label left to learn from would only test what nobody could know.
    held &= np.isin(labels, labels[~held])
    parts = np.split(held, np.cumsum([len(step.labels) for step in first])[:-1])
    steps, tests = [], []
    for step, mine in zip(first, parts, strict=True):
        steps.append(replace(step, labeled=step.labeled[~mine], labels=step.labels[~mine]))
        tests.append(TestStep(step.t, step.labeled[mine], step.labels[mine]))
    return replace(stream, steps=tuple(steps), tests=tuple(tests))
