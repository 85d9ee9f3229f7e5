"""Every method on one stream under one budget, each at learning rates that were searched alike.

What is compared is fixed here before any of it is run. Every method with a learning rate gets the same five trials on
the first three time steps of other seeds, on other images of other characters; the comparison is `dietcl compare`'s, at
the rates that won.

    python -m dietcl.experiments.methods --jobs 2 --write docs/methods.md
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from dietcl.config import PRESETS
from dietcl.errors import UserError
from dietcl.experiments.cells import Cell, Result, Store, run_cells
from dietcl.experiments.show.sheets import Sheet, put_between
from dietcl.methods import every_method
from dietcl.parallel import in_processes
from dietcl.streams.sources.glyphs import Glyphs
from dietcl.verbs.options import parse
from dietcl.verbs.settings import method_defaults, run_config, shared_fields

SEEDS = (0, 1, 2)
SEARCH_SEEDS = (100, 101)
SEARCH_STEPS = 3
# These learn nothing by gradient, so that a rate is of no effect.
SOLVED = ("linear_probe", "ncm", "ranpac:frozen", "acm")
MEASURES = {
    "A(T) mean": "final_mean",
    "A mean": "average_mean",
    "current": "final_current",
    "old": "final_old_mean",
}
MARK = "methods"


@dataclass(frozen=True)
class Trial:
    """One point of the search: the rates of the encoder and of the head."""

    lr: float
    head_lr: float


# The rates of `micro`, and each of the two about three times lower and higher.
TRIALS = (Trial(4e-3, 6e-2), Trial(1.2e-3, 6e-2), Trial(1.2e-2, 6e-2), Trial(4e-3, 2e-2), Trial(4e-3, 2e-1))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run."""

    jobs: int = 2
    """Runs at a time, one thread each."""
    out: Path = Path("results/methods")
    """Where the counts and tables go; what is there is not run again."""
    scratch: Path = Path("runs/methods")
    """Where the run folders go."""
    write: Path | None = None
    """Put the tables between the marks in this Markdown file."""

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"--jobs {self.jobs}: give at least 1")


def main(arguments: Sequence[str] | None = None) -> None:
    """Search and compare; both tables are printed and kept as Markdown."""
    options = parse(Options(), list(sys.argv[1:] if arguments is None else arguments), "methods", __doc__ or "")
    study = Study(options)
    sheets = []
    for sheet in study.sheets():
        Console().print(sheet.table(), "")
        sheets.append(sheet.markdown())
        study.store.path.with_suffix(".md").write_text("\n".join(sheets))
    if options.write is not None:
        put_between(options.write, MARK, "\n".join(sheets))


class Study:
    """The runs, each carried out once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.store = Store(options.out / "glyphs.jsonl")

    def sheets(self) -> Iterator[Sheet]:
        """Run everything that is not done yet, and yield each table when it is complete."""
        scores = self.search()
        chosen = {method: max(tried, key=tried.__getitem__) for method, tried in scores.items()}
        results = self.compare(chosen | dict.fromkeys(SOLVED, TRIALS[0]))
        yield _result_sheet(results)
        yield _trial_sheet(scores, chosen)

    def search(self) -> dict[str, dict[Trial, float]]:
        """Return what every trial of each method scores after three time steps of the search seeds."""
        cells = {
            (method, trial): [self._cell("search", method, trial, seed, SEARCH_STEPS) for seed in SEARCH_SEEDS]
            for method in every_method()
            if method not in SOLVED
            for trial in TRIALS
        }
        self._run([cell for group in cells.values() for cell in group], "search")
        scores: dict[str, dict[Trial, float]] = {}
        for (method, trial), group in cells.items():
            results = [self.store.result(cell).summary.final_pooled for cell in group]
            scores.setdefault(method, {})[trial] = float(np.mean(results))
        return scores

    def compare(self, chosen: dict[str, Trial]) -> dict[str, list[Result]]:
        """Run every method on every seed at its rates."""
        cells = {
            method: [self._cell("comparison", method, chosen[method], seed) for seed in SEEDS]
            for method in every_method()
        }
        # Seed by seed, so that what is there when it is cut off compares all methods.
        self._run([cell for group in zip(*cells.values(), strict=True) for cell in group], "comparison")
        return {method: [self.store.result(cell) for cell in group] for method, group in cells.items()}

    def _cell(self, stage: str, method: str, trial: Trial, seed: int, steps: int | None = None) -> Cell:
        micro = PRESETS["micro"]
        # Search seeds take other images of other characters, so that nothing is chosen on a reported test image.
        shared = {name: default for name, _, default in shared_fields(micro, "glyphs")}
        shared["source"] = Glyphs(seed=seed if seed in SEARCH_SEEDS else 0)
        shared["training"] = replace(micro.training, lr=trial.lr, head_lr=trial.head_lr, lr_floor=trial.lr / 8)
        shared["first_time_steps"] = steps
        config = run_config("glyphs", method, method_defaults(method, micro), seed, shared)
        return Cell(f"{stage}/{method}/lr {trial.lr:g}, head {trial.head_lr:g}/seed {seed}", config, config.hash())

    def _run(self, cells: Sequence[Cell], title: str) -> None:
        def report(done: float, total: int) -> None:
            print(f"{title}: {done:.0f} of {total}", file=sys.stderr, flush=True)

        run_cells(cells, self.store, self.options.scratch, partial(in_processes, jobs=self.options.jobs), report)


def _result_sheet(results: dict[str, list[Result]]) -> Sheet:
    rows = []
    for method, runs in results.items():
        values = [[getattr(run.summary, field) for run in runs] for field in MEASURES.values()]
        values.append([run.facts["ridge"] for run in runs])
        rows.append((np.mean(values[0]), (f"`{method}`", *(_spread(value) for value in values))))
    micro = PRESETS["micro"]
    title = (
        f"`glyphs`, {micro.budget} updates of {micro.training.batch} images per time step, {len(SEEDS)} seeds: "
        "percent, mean ± standard deviation; the last column has the final encoder under a head solved from all labels."
    )
    ordered = tuple(row for _, row in sorted(rows, key=lambda entry: -entry[0]))
    return Sheet(title, ("method", *MEASURES, "ridge head"), ordered)


def _spread(values: Sequence[float]) -> str:
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


def _trial_sheet(scores: dict[str, dict[Trial, float]], chosen: dict[str, Trial]) -> Sheet:
    rows = tuple(
        (f"`{method}`", *(f"{100 * tried[trial]:.1f}{'*' if chosen[method] == trial else ''}" for trial in TRIALS))
        for method, tried in scores.items()
    )
    title = f"A({SEARCH_STEPS}) pooled in the search, percent, mean of {len(SEARCH_SEEDS)} other seeds (*: chosen)."
    return Sheet(title, ("encoder's rate / head's rate", *(f"{t.lr:g} / {t.head_lr:g}" for t in TRIALS)), rows)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"methods: {error}", file=sys.stderr)
        raise SystemExit(2) from None
