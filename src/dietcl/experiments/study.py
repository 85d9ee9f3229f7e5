"""A study: the runs of one setup, each carried out once; what is searched first, and the regime that follows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dietcl.config import Evaluation, RunConfig, preset
from dietcl.errors import UserError
from dietcl.experiments import trials
from dietcl.experiments.cells import Cell, Result, Store, run_cells
from dietcl.experiments.setups import held_out, manifest_of, setup_named
from dietcl.experiments.suites import PAPER_RATE, PAPER_THRESHOLD, PAPER_UPDATES, Arm, Point
from dietcl.experiments.trials import SOLVED, TRIALS, Trial
from dietcl.files import digest
from dietcl.models.checkpoints import shipped
from dietcl.streams.manifest import read_facts
from dietcl.verbs.settings import method_defaults

REPLAY = "er:uniform"
FIRST_BUDGET, LAST_BUDGET = 10, 2560
Report = Callable[[str, int, int], None]  # what is being run, cells done, cells in all


class Study:
    """One setup; counts lie in the folder `out`, unfinished runs in `scratch`."""

    def __init__(
        self, name: str, out: Path, scratch: Path, data: Path | None, jobs: int, report: Report = lambda *told: None
    ) -> None:
        self.name, self.setup, self.data = name, setup_named(name), data
        self.cells = Store(out / name / "cells.jsonl")
        self.searched = Store(out / name / "search.jsonl")
        self._scratch, self._jobs, self._report = scratch / name, jobs, report
        self._chosen: dict[str, Trial] = {}

    @cached_property
    def manifest(self) -> Path:
        """The setup's manifest."""
        return manifest_of(self.name, self.data)

    @cached_property
    def batch(self) -> int:
        """Images of an update."""
        return preset(self.setup.preset).training.batch

    # The regime.

    def chosen(self, method: str) -> Trial | None:
        """Return the trial that won the search; None where there is none, at the paper's size or without rates."""
        if self.setup.updates is not None or method in SOLVED:
            return None
        if method not in self._chosen:
            self.search([method])
            scores = self.scores(method)
            self._chosen[method] = max(scores, key=scores.__getitem__)
        return self._chosen[method]

    def search(self, methods: Sequence[str]) -> None:
        """Carry out every trial of some methods."""
        cells = [
            cell
            for method in methods
            if method not in SOLVED
            for trial in TRIALS
            for cell in self._trial_cells(method, trial)
        ]
        self._run(cells, self.searched, f"{self.name}: search")

    def scores(self, method: str) -> dict[Trial, float]:
        """Return what every trial of a method scores, on held-out training images of other seeds."""
        return {trial: self._mean_final(self._trial_cells(method, trial)) for trial in TRIALS}

    @cached_property
    def peaks(self) -> dict[int, float]:
        """Replay's accuracy on the search seeds by budget, doubled until that gains less than its standard error."""
        scores: dict[int, float] = {}
        budget, best = FIRST_BUDGET, 0
        trial = self.chosen(REPLAY)
        while budget <= LAST_BUDGET:
            cells = [self._search_cell("peak", REPLAY, trial, budget, seed, None) for seed in trials.SEEDS]
            self._run(cells, self.searched, f"{self.name}: where Replay peaks, {budget} updates")
            scores[budget] = self._mean_final(cells)
            errors = [self.searched.result(cell).summary.final_pooled_se for cell in cells]
            # Of a difference of two means over the seeds, were their test images independent.
            error = float(np.sqrt(2 * np.sum(np.square(errors)))) / len(errors)
            if best and scores[budget] - scores[best] < error:
                return scores
            best, budget = budget, 2 * budget
        raise UserError(f"{self.name}: Replay still gains at {best} updates; raise LAST_BUDGET")

    @cached_property
    def peak(self) -> int:
        """S*: the budget from which on more of it brought Replay nothing."""
        return list(self.peaks)[-2]

    @cached_property
    def budget(self) -> int:
        """S: updates per time step in the paper's regime."""
        return self.setup.updates or round(self.peak * PAPER_UPDATES / PAPER_THRESHOLD)

    # Cells.

    def cell(self, arm: Arm, point: Point, seed: int) -> Cell:
        """Return the run of an arm at a point, scaled to this setup."""
        tuned_as = arm.tuned_as or arm.method
        scale = self.budget / PAPER_UPDATES
        updates = max(1, round(point.updates * scale))
        rate = self.setup.recipe.label_rate * point.label_rate / PAPER_RATE
        config = self._config(arm.method, self.chosen(tuned_as), updates, seed, self.manifest)
        own = config.method_config
        if hasattr(own, "threshold") and isinstance(own.threshold, str):
            own = replace(own, threshold=f"{max(1, round(point.threshold * scale))}")
        config = replace(
            config,
            method_config=replace(own, **arm.options),
            recipe=replace(config.recipe, label_rate=rate, time_steps=point.time_steps),
            accounting=point.accounting,
            evaluation=replace(config.evaluation, curves=point.curves),
            first_time_steps=point.first_time_steps,
        )
        options = "".join(f" {name}={value}" for name, value in sorted(arm.options.items()))
        where = f"S {updates}/B {point.threshold}/rate {rate:g}/T {point.time_steps}"
        if point.first_time_steps is not None:
            where += f"/first {point.first_time_steps}"
        if point.curves:
            where += f"/curves {point.curves}"
        if point.accounting != "images":
            where += f"/{point.accounting}"
        return self._portable(f"{arm.method}{options} as {tuned_as}/{where}/seed {seed}", config)

    def run(self, cells: Sequence[Cell], title: str) -> None:
        """Carry out what is not done yet."""
        self._run(cells, self.cells, f"{self.name}: {title}")

    def result(self, cell: Cell) -> Result:
        """Return what a finished cell measured."""
        return self.cells.result(cell)

    def _trial_cells(self, method: str, trial: Trial) -> list[Cell]:
        return [
            self._search_cell("trial", method, trial, trials.UPDATES, seed, trials.TIME_STEPS) for seed in trials.SEEDS
        ]

    def _search_cell(
        self, stage: str, method: str, trial: Trial | None, updates: int, seed: int, steps: int | None
    ) -> Cell:
        config = self._config(method, trial, updates, seed, held_out(self.manifest))
        key = f"{stage}/{method}/{updates} updates/{trial}/seed {seed}"
        return self._portable(key, replace(config, first_time_steps=steps))

    def _config(self, method: str, trial: Trial | None, updates: int, seed: int, manifest: Path) -> RunConfig:
        sizes, base = preset(self.setup.preset), method.partition(":")[0]
        own, training, augmentation = method_defaults(method, sizes), sizes.training, sizes.augmentation
        if trial is not None:
            own, training = replace(own, **trial.options(base)), trial.training(training)
        if not read_facts(manifest).mirror:
            augmentation = replace(augmentation, flip=False)
        return RunConfig(
            method=base,
            method_config=own,
            stream=str(manifest),
            source=None,
            recipe=self.setup.recipe,
            model=sizes.model,
            weights="shipped" if self.setup.updates is None else sizes.model.encoder,
            training=training,
            augmentation=augmentation,
            budget=str(updates),
            evaluation=Evaluation(test_images=self.setup.test_images),
            seed=seed,
        )

    def _portable(self, key: str, config: RunConfig) -> Cell:
        """Return a cell that is the same wherever the manifest lies, and another one with other first weights."""
        portable = replace(config, stream=self.name)
        if config.weights == "shipped":
            portable = replace(portable, weights=digest(shipped(config.model.encoder)))
        return Cell(key, config, portable.hash())

    def _run(self, cells: Sequence[Cell], store: Store, title: str) -> None:
        for done, total in run_cells(list(dict.fromkeys(cells)), store, self._scratch, self._jobs):
            self._report(title, done, total)

    def _mean_final(self, cells: Sequence[Cell]) -> float:
        """Return the mean A(T) over cells; a run that diverged scored nothing."""
        results = [self.searched.result(cell) for cell in cells]
        return float(np.mean([0.0 if result.failure else result.summary.final_pooled for result in results]))
