"""DietCL against both kinds of Replay in the paper's regime: 1.25 times the budget at which ER uniform peaks.

What is compared is fixed here before any of it is run. Learning rates and alpha are searched with the same number of
trials for every method on the first three time steps of other seeds, on other images of other characters.

    python -m dietcl.experiments.regime --stream glyphs --jobs 2
    python -m dietcl.experiments.regime --stream glyphs-drift --jobs 2
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from dietcl.config import PRESETS, RunConfig
from dietcl.errors import UserError
from dietcl.experiments.cells import Cell, Result, Store, run_cells
from dietcl.experiments.show.sheets import Sheet
from dietcl.methods import method_config
from dietcl.metrics import paired_difference
from dietcl.parallel import in_processes
from dietcl.streams.recipes import Recipe
from dietcl.streams.sources import SOURCES
from dietcl.verbs.options import parse

SEEDS = (0, 1, 2, 3, 4)
SEARCH_SEEDS = (100, 101)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "DietCL": ("dietcl", {}),
    "ER uniform": ("er", {"sampling": "uniform"}),
    "ER balanced": ("er", {"sampling": "balanced"}),
}
# What DietCL does without each of its parts, at its own rates: why it stands where it stands.
WITHOUT: dict[str, tuple[str, dict[str, Any]]] = {
    "DietCL, no reconstruction": ("dietcl", {"unlabeled": 0.0}),
    "DietCL, no masked loss": ("dietcl", {"labeled": 0.0}),
    "DietCL, no class mask": ("dietcl", {"mask_classes": False}),
}
RECIPES = {
    "glyphs": Recipe(recipe="class", time_steps=10, label_rate=0.02),
    "glyphs-drift": Recipe(recipe="time", time_steps=10, label_rate=0.02),
}
LR = (1e-3, 2e-3, 4e-3, 8e-3)
HEAD_LR = (2e-2, 6e-2, 2e-1)
ALPHA = (1.0, 5.0, 50.0)
SEARCH_BUDGET = 80
FIRST_BUDGET = 40
LAST_BUDGET = 1280
SEARCH_STEPS = 3
MEASURES = {
    "A(T) mean": "final_mean",
    "A(T) pooled": "final_pooled",
    "A mean": "average_mean",
    "A pooled": "average_pooled",
    "current": "final_current",
    "old": "final_old_mean",
}


@dataclass(frozen=True)
class Trial:
    """One point of the search; alpha is of no effect in Replay."""

    lr: float
    head_lr: float
    alpha: float


# Twelve trials for every method: all pairs of rates, with the values of alpha dealt over them so that each meets every
# rate of the encoder and of the head.
TRIALS = tuple(
    Trial(lr, head_lr, ALPHA[(i + j) % 3])
    for (i, lr), (j, head_lr) in itertools.product(enumerate(LR), enumerate(HEAD_LR))
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run."""

    stream: Literal["glyphs", "glyphs-drift"] = "glyphs"
    """The stream."""
    jobs: int = 2
    """Runs at a time, one thread each."""
    out: Path = Path("results/regime")
    """Where the counts and tables go; what is there is not run again."""
    scratch: Path = Path("runs/regime")
    """Where the run folders go."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"--jobs {self.jobs}: give at least 1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, find the peak and compare; every table is printed and kept as Markdown."""
    options = parse(Options(), list(sys.argv[1:] if arguments is None else arguments), "regime", __doc__ or "")
    sheets = []
    for sheet in Study(options).sheets():
        Console().print(sheet.table(), "")
        sheets.append(sheet.markdown())
        (options.out / f"{options.stream}.md").write_text("\n".join(sheets))


class Study:
    """The runs of one stream, each carried out once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.store = Store(options.out / f"{options.stream}.jsonl")

    def sheets(self) -> Iterator[Sheet]:
        """Run everything that is not done yet, and yield each table when it is complete."""
        scores = self.search()
        chosen = {method: max(tried, key=tried.__getitem__) for method, tried in scores.items()}
        yield _trial_sheet(scores, chosen)
        peak, best = self.peak(chosen["ER uniform"])
        yield _peak_sheet(peak, best)
        for label, budget in (("1.25 S*", round(1.25 * best)), ("S*/4", round(best / 4))):
            results = self.compare(budget, chosen, threshold=best)
            yield _result_sheet(f"{label}: {_regime(budget, results['DietCL'][0])}", results)
            yield _difference_sheet(results)
        starved = self.compare(round(best / 4), dict.fromkeys(WITHOUT, chosen["DietCL"]), threshold=best)
        yield _result_sheet("S*/4, without one part of DietCL; its share of the batch goes to the others.", starved)

    def search(self) -> dict[str, dict[Trial, float]]:
        """Return what every trial of each method scores after three time steps of the search seeds."""
        cells = {
            (method, trial): [
                self._cell("search", method, trial, SEARCH_BUDGET, seed, SEARCH_BUDGET * 4 // 5, SEARCH_STEPS)
                for seed in SEARCH_SEEDS
            ]
            for method in METHODS
            for trial in TRIALS
        }
        self._run([cell for group in cells.values() for cell in group], "search")
        return {method: {trial: self._mean_final(cells[method, trial]) for trial in TRIALS} for method in METHODS}

    def peak(self, trial: Trial) -> tuple[dict[int, float], int]:
        """Double ER uniform's budget on the search seeds until that gains less than its standard error.

        Returns the accuracy by budget, and the budget from which on more of it brought nothing.
        """
        scores: dict[int, float] = {}
        budget, best = FIRST_BUDGET, 0
        while budget <= LAST_BUDGET:
            cells = [self._cell("peak", "ER uniform", trial, budget, seed, threshold=0) for seed in SEARCH_SEEDS]
            self._run(cells, f"ER uniform at {budget} updates")
            scores[budget] = self._mean_final(cells)
            errors = [self.store.result(cell).summary.final_pooled_se for cell in cells]
            # Of a difference of two means over the seeds, were their test images independent.
            error = float(np.sqrt(2 * np.sum(np.square(errors)))) / len(errors)
            if best and scores[budget] - scores[best] < error:
                return scores, best
            best, budget = budget, 2 * budget
        raise UserError(f"ER uniform still gains at {best} updates: raise LAST_BUDGET")

    def compare(self, budget: int, chosen: dict[str, Trial], threshold: int) -> dict[str, list[Result]]:
        """Run every method that has rates on every seed."""
        cells = {
            method: [self._cell("comparison", method, trial, budget, seed, threshold) for seed in SEEDS]
            for method, trial in chosen.items()
        }
        self._run([cell for group in cells.values() for cell in group], f"comparison at {budget} updates")
        return {method: [self.store.result(cell) for cell in group] for method, group in cells.items()}

    def _cell(
        self,
        stage: str,
        method: str,
        trial: Trial,
        budget: int,
        seed: int,
        threshold: int,
        steps: int | None = None,
    ) -> Cell:
        name, fixed = (METHODS | WITHOUT)[method]
        own = {"alpha": trial.alpha, "threshold": str(threshold)} if name == "dietcl" else {}
        stream, micro = self.options.stream, PRESETS["micro"]
        # Search seeds take other images of other characters, so that nothing is chosen on a reported test image.
        source = SOURCES[stream](seed=seed if seed in SEARCH_SEEDS else 0)
        config = RunConfig(
            method=name,
            method_config=replace(method_config(name), **fixed, **own),
            stream=stream,
            source=source,
            recipe=RECIPES[stream],
            model=micro.model,
            weights="shipped",
            training=replace(micro.training, lr=trial.lr, head_lr=trial.head_lr, lr_floor=trial.lr / 8),
            augmentation=replace(micro.augmentation, flip=False),
            budget=str(budget),
            seed=seed,
            first_time_steps=steps,
        )
        rates = f"lr {trial.lr:g}, head {trial.head_lr:g}" + (f", alpha {trial.alpha:g}" if own else "")
        return Cell(f"{stage}/{method}/{budget} updates/{rates}/seed {seed}", config, config.hash())

    def _run(self, cells: Sequence[Cell], title: str) -> None:
        def report(done: float, total: int) -> None:
            print(f"{title}: {done:.0f} of {total}", file=sys.stderr, flush=True)

        carry = partial(in_processes, jobs=self.options.jobs)
        run_cells(cells, self.store, self.options.scratch / self.options.stream, carry, report)

    def _mean_final(self, cells: Sequence[Cell]) -> float:
        return float(np.mean([self.store.result(cell).summary.final_pooled for cell in cells]))


def _trial_sheet(scores: dict[str, dict[Trial, float]], chosen: dict[str, Trial]) -> Sheet:
    rows = []
    for trial in TRIALS:
        cells = [f"{tried[trial]:.1%}{'*' if chosen[method] == trial else ''}" for method, tried in scores.items()]
        rows.append((f"{trial.lr:g}", f"{trial.head_lr:g}", f"{trial.alpha:g}", *cells))
    title = f"Search, A({SEARCH_STEPS}) pooled at {SEARCH_BUDGET} updates, other seeds (*: chosen; alpha: DietCL only)."
    return Sheet(title, ("lr", "head lr", "alpha", *scores), tuple(rows))


def _peak_sheet(peak: dict[int, float], best: int) -> Sheet:
    rows = [(f"{budget}{' = S*' if budget == best else ''}", f"{score:.1%}") for budget, score in peak.items()]
    return Sheet("ER uniform by budget, other seeds.", ("updates per time step", "A(T) pooled"), tuple(rows))


def _regime(budget: int, result: Result) -> str:
    passes = budget * PRESETS["micro"].training.batch
    facts = result.facts
    return (
        f"{budget} updates per time step, {len(SEEDS)} seeds, mean ± standard deviation. "
        f"Passes per current label S·b/n_t = {passes / facts['labels_per_step']:.1f}, "
        f"per remembered label S·b/Σn = {passes / facts['labels']:.2f}, "
        f"per arriving image S·b/N_t = {passes / facts['arriving_per_step']:.2f}."
    )


def _result_sheet(title: str, results: dict[str, list[Result]]) -> Sheet:
    rows = []
    for method, runs in results.items():
        values = [[getattr(run.summary, field) for run in runs] for field in MEASURES.values()]
        values.append([run.facts["ridge"] for run in runs])
        rows.append((method, *(f"{100 * np.mean(v):.2f} ± {100 * np.std(v, ddof=1):.2f}" for v in values)))
    # The last column has the final encoder under a head solved from the same labels: features apart from the head.
    return Sheet(title, ("percent", *MEASURES, "ridge head"), tuple(rows))


def _difference_sheet(results: dict[str, list[Result]]) -> Sheet:
    fields = {title: field for title, field in MEASURES.items() if title.startswith("A")}
    rows = []
    for method in results.keys() - {"DietCL"}:
        cells = []
        for field in fields.values():
            pair = ([getattr(run.summary, field) for run in results[name]] for name in ("DietCL", method))
            mean, low, high = paired_difference(*pair)
            cells.append(f"{100 * mean:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]")
        rows.append((f"DietCL less {method}", *cells))
    return Sheet("Paired by seed, 95 % interval.", ("points", *fields), tuple(sorted(rows)))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"regime: {error}", file=sys.stderr)
        raise SystemExit(2) from None
