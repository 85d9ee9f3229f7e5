"""A study: the runs of one dataset, each carried out once; what is searched first, and the regime that follows."""

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from dietcl import PRESETS, UserError, hold_out, manifest_hash
from dietcl.clusters import WorkPool
from dietcl.files import locked, make_folder, write_json
from reproduction.configs import HELD_OUT, peak_cell, reported_cell, trial_cell
from reproduction.datasets import dataset_named, is_manifest, manifest_of
from reproduction.run_cache import Cell, Result, RunCache, run_cells
from reproduction.suites import ER_UNIFORM, PAPER_THRESHOLD, PAPER_UPDATES, Arm, Point, Suite
from reproduction.trials import SHORT_SEARCH, SOLVED, Choice, Search, Trial

FIRST_BUDGET = 10
LAST_BUDGET = 160
"""The largest S*, by what two cores can do: at 1.25 times as much, `table1` takes them two hours."""
MORE_SEEDS = 2
Report = Callable[[str, float, int], None]  # what is being run, how many cells of it are done, and how many there are


class Missing(Exception):
    """A run that is wanted was not carried out, and this study carries out none."""


@dataclass(frozen=True)
class Measured:
    """What came of an arm at a point, by seed."""

    arm: Arm
    point: Point
    results: tuple[Result, ...]


def _with_result(results: Sequence[Result]) -> tuple[Result, ...]:
    return tuple(result for result in results if not result.failure)


def _manifest_in(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())["manifest"]
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path}: is damaged; restore it, or choose another --out") from None


def seeds_of(suite: Suite, arm: Arm, seeds: int) -> int:
    """Return how many seeds an arm of a suite gets."""
    return seeds + MORE_SEEDS if suite.more_seeds and arm.is_decisive else seeds


class Study:
    """One dataset; counts are in the folder `out`, unfinished runs in `scratch`; without a pool it only looks up."""

    def __init__(
        self,
        name: str,
        out: Path,
        scratch: Path = Path(),
        data: Path | None = None,
        pool: WorkPool | None = None,
        report: Report = lambda *arguments: None,
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.name, self.dataset, self.data = name, dataset_named(name), data
        self.cells = RunCache(out / name / "cells.jsonl")
        self.searched = RunCache(out / name / "search.jsonl")
        self._scratch, self._pool, self._report, self._notify = scratch / name, pool, report, notify
        own = None if data is not None and is_manifest(data) else data  # a manifest is of this dataset alone
        self._sibling = partial(Study, out=out, scratch=scratch, data=own, pool=pool, report=report, notify=notify)
        self._chosen: dict[tuple[str, Search], Choice] = {}
        self.has_run = False
        """Whether the last suite needed anything that was not there."""

    @cached_property
    def batch(self) -> int:
        """Images of an update."""
        return PRESETS[self.dataset.preset].training.batch

    # The regime.

    @cached_property
    def searcher(self) -> "Study":
        """The study whose budget and rates this one has: itself, or that of the dataset that its own is like."""
        return self._sibling(self.dataset.like) if self.dataset.like else self

    def chosen(self, method: str, search: Search = SHORT_SEARCH) -> Trial | None:
        """Return the rates that a search found; None where there are none, at the paper's size or without rates."""
        if self.dataset.updates is not None or method in SOLVED:
            return None
        return self.choice(method, search).trial

    def choice(self, method: str, search: Search) -> Choice:
        """Return what the search of a method found."""
        if self.searcher is not self:
            return self.searcher.choice(method, search)
        if (method, search) not in self._chosen:
            self.search([method], search)
            self._chosen[method, search] = search.choose(self.scores(method, search))
        return self._chosen[method, search]

    def search(self, methods: Sequence[str], search: Search = SHORT_SEARCH) -> None:
        """Carry out every trial of some methods."""
        if self.searcher is not self:
            self.searcher.search(methods, search)
            return
        cells = [
            cell
            for method in methods
            if method not in SOLVED
            for trial in search.trials
            for cell in self._trial_cells(method, trial, search)
        ]
        self._run(cells, self.searched, f"{self.name}: search")

    def scores(self, method: str, search: Search = SHORT_SEARCH) -> dict[Trial, list[float]]:
        """Return what every trial of a method scores on held-out training images of other seeds, by seed."""
        return {trial: self._finals(self._trial_cells(method, trial, search)) for trial in search.trials}

    @cached_property
    def _doubling(self) -> tuple[dict[int, float], bool]:
        """Replay's accuracy on the search seeds by budget, and whether the last doubling gained its standard error."""
        scores: dict[int, float] = {}
        budget = best = FIRST_BUDGET
        trial = self.chosen(ER_UNIFORM.method)
        while True:
            cells = [peak_cell(self.name, ER_UNIFORM.method, trial, budget, seed) for seed in SHORT_SEARCH.seeds]
            self._run(cells, self.searched, f"{self.name}: where Replay peaks, {budget} updates")
            scores[budget] = float(np.mean(self._finals(cells)))
            # A run that diverged has no error.
            errors = np.nan_to_num([self.searched.result(cell).summary.final_pooled_se for cell in cells])
            # Of a difference of two means over the seeds, were their test images independent.
            error = float(np.sqrt(2 * np.sum(np.square(errors)))) / len(errors)
            gains = scores[budget] - scores[best] >= error
            if budget > FIRST_BUDGET and (not gains or best >= LAST_BUDGET):
                return scores, gains
            best, budget = budget, 2 * budget

    @property
    def peaks(self) -> dict[int, float]:
        """Replay's accuracy by budget, doubled until that gains less than its standard error, or past the last one."""
        return self._doubling[0]

    @property
    def still_gains(self) -> bool:
        """Whether Replay peaks beyond the last budget."""
        return self._doubling[1]

    @property
    def peak(self) -> int:
        """S*: the budget whose double gained Replay less than the standard error, or the last one; or a given one."""
        return self.dataset.peak or list(self.peaks)[-2]

    @cached_property
    def budget(self) -> int:
        """S: updates per time step in the paper's regime."""
        if self.searcher is not self:
            return self.searcher.budget
        return self.dataset.updates or round(self.peak * PAPER_UPDATES / PAPER_THRESHOLD)

    # The suites.

    def measure(self, suite: Suite, seeds: int) -> list[Measured]:
        """Carry out what a suite needs and is not done yet; returns every arm at every point, diverged runs too."""
        self.has_run = False
        self._tune(suite)
        grid = [
            (arm, point, [self.cell(arm, point, seed) for seed in point.protocol.seeds(seeds_of(suite, arm, seeds))])
            for arm in suite.arms
            for point in suite.points_of(arm)
        ]
        # Seed by seed, so that what is there when it is cut off compares all arms.
        cells = sorted((cell for _, _, group in grid for cell in group), key=lambda cell: cell.config.seed)
        self._run(cells, self.cells, f"{self.name}: {suite.title.lower()}")
        return [Measured(arm, point, tuple(map(self.cells.result, group))) for arm, point, group in grid]

    def found(self, suite: Suite) -> tuple[Suite, list[Measured]]:
        """Return a suite without the arms that have no result at some point, and what the others measured.

        All of them on the same seeds, unless the suite gives some more or a run diverged; raises Missing if there are
        none.
        """
        carried: list[Measured] = []
        for arm in suite.arms:
            with suppress(Missing):
                carried += [Measured(arm, point, self.finished(arm, point)) for point in suite.points_of(arm)]
        common = None if suite.more_seeds else min((len(entry.results) for entry in carried), default=None)
        measured = [replace(entry, results=_with_result(entry.results[:common])) for entry in carried]
        lacking = [entry.arm for entry in measured if not entry.results]
        measured = [entry for entry in measured if entry.arm not in lacking]
        if not measured:
            raise Missing(suite.title)
        arms = [entry.arm for entry in measured]
        return replace(suite, arms=tuple(arm for arm in suite.arms if arm in arms)), measured

    def finished(self, arm: Arm, point: Point) -> tuple[Result, ...]:
        """Return what an arm measured at a point, by seed, diverged runs too; raises Missing if nothing was measured.

        A seed counts only if all before it were carried out.
        """
        first = point.protocol.first_seed
        cells = (self.cell(arm, point, seed) for seed in itertools.count(first))
        found = tuple(map(self.cells.result, itertools.takewhile(self.cells.__contains__, cells)))
        if not _with_result(found):
            raise Missing(self.cell(arm, point, first).key)
        return found

    def _tune(self, suite: Suite) -> None:
        """Search the rates of all arms at once, which keeps every process busy."""
        if self.dataset.updates is not None:
            return
        if self.searcher.dataset.peak is None:
            self.search([ER_UNIFORM.method])  # on which the budget rests
        for search in dict.fromkeys(point.protocol.search for point in suite.points):
            self.search(list(dict.fromkeys(arm.rates_of for arm in suite.arms)), search)

    # Cells.

    def cell(self, arm: Arm, point: Point, seed: int) -> Cell:
        """Return the run of an arm at a point, scaled to this dataset."""
        trial = self.chosen(arm.rates_of, point.protocol.search)
        return reported_cell(self.name, arm, point, trial, self.budget, seed)

    def _trial_cells(self, method: str, trial: Trial, search: Search) -> list[Cell]:
        updates = self.budget if search.updates is None else search.updates
        return [trial_cell(self.name, method, trial, search, updates, seed) for seed in search.seeds]

    def _run(self, cells: Sequence[Cell], store: RunCache, title: str) -> None:
        waiting = [cell.key for cell in cells if cell not in store]
        if not waiting:
            return
        if self._pool is None:
            raise Missing(waiting[0])
        manifest = manifest_of(self.name, self.data)
        self._claim(manifest)
        where = {self.name: manifest}
        if any(cell.config.stream != self.name for cell in cells):
            where[f"{self.name}{HELD_OUT}"] = hold_out(manifest)
        ready = [
            replace(cell, config=replace(cell.config, stream=str(where[cell.config.stream])))
            for cell in {cell.key: cell for cell in cells}.values()
        ]
        make_folder(self._scratch, "choose another --scratch")
        self.has_run = True
        with locked(store.path.parent, self._notify):
            run_cells(ready, store, self._scratch, self._pool, lambda done, total: self._report(title, done, total))

    def _claim(self, manifest: Path) -> None:
        """Write down which images the counts are of; refuse others, whose counts must not be mixed with them."""
        path, found = self.cells.path.with_name("data.json"), manifest_hash(manifest)
        if not path.is_file():
            make_folder(path.parent)
            write_json(path, {"manifest": found})
        elif _manifest_in(path) != found:
            raise UserError(f"{path.parent}: holds runs on other images than {manifest}; choose another --out")

    def _finals(self, cells: Sequence[Cell]) -> list[float]:
        """Return A(T) of cells; a run that diverged scored nothing."""
        results = [self.searched.result(cell) for cell in cells]
        return [0.0 if result.failure else result.summary.final_pooled for result in results]
