"""Many runs with one table at the end; a run that fails does not stop the others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from dietcl.clusters import WorkPool
from dietcl.config import RunConfig
from dietcl.errors import NotFinite, UserError
from dietcl.execution import Execution
from dietcl.files import make_folder
from dietcl.models.checkpoints import require_weights
from dietcl.report.groups import group_runs
from dietcl.report.runs import RunRecord
from dietcl.run import execute, stream_of
from dietcl.run_folder import identity, is_finished, refuse_another

Record = TypeVar("Record", bound=RunRecord)
PlannedRun = tuple[RunConfig, Path]


@dataclass(frozen=True)
class RunWork:
    """Carries out one run, in any process or on any machine."""

    execution: Execution

    def __call__(self, run: PlannedRun, report: Callable[[float], None]) -> bool:
        config, folder = run
        try:
            execute(config, folder, self.execution, progress=lambda t, fraction: report(max(0, t - 1) + fraction))
        except NotFinite as stop:
            raise UserError(str(stop)) from None
        return True


def runs_due(runs: Sequence[PlannedRun], execution: Execution, out: Path) -> list[PlannedRun]:
    """Return the runs that are not finished yet, after refusing any that cannot be started in its folder."""
    configs = (path.read_text(encoding="utf-8", errors="replace") for path in out.glob("*/config.json"))
    if (out / "report.html").exists() and not any("stream_identity" in config for config in configs):
        raise UserError(f"{out}: holds a report.html that is not about runs in this folder; choose another --out")
    # Weights and streams are found once, before several processes need them.
    for weights in {config.weights for config, folder in runs if execution.fresh or not is_finished(folder)}:
        require_weights(weights)
    streams = {config.seed: stream_of(config)[0] for config, _ in runs}
    if execution.fresh:
        return list(runs)
    precision = None if execution.precision == "auto" else execution.precision
    for config, folder in runs:
        refuse_another(identity(config, streams[config.seed], precision), folder)
    return [(config, folder) for config, folder in runs if not is_finished(folder)]


def run_all(
    runs: Sequence[PlannedRun],
    execution: Execution,
    out: Path,
    pool: WorkPool,
    progress: Callable[[int, float], None] = lambda number, time_steps: None,
) -> Iterator[tuple[PlannedRun, str | None]]:
    """Carry out runs; yields each as it ends, with a sentence if it failed (its log is beside its folder)."""
    make_folder(out)
    for outcome in pool(RunWork(execution), runs, progress=progress):
        config, folder = runs[outcome.number]
        log = folder.with_name(f"{folder.name}.failed.log")
        log.unlink(missing_ok=True)
        failure = None
        if outcome.failure is not None:
            with suppress(OSError):  # a full disk must not stop the others
                log.write_text(outcome.failure, encoding="utf-8")
            last = outcome.failure.strip().splitlines()[-1]
            failure = f"{config.method}, seed {config.seed}: {last} (log: {log})"
        yield (config, folder), failure


def by_accuracy(runs: Sequence[Record]) -> list[Record]:
    """Sort runs by their configuration's mean A(T), best first; seeds of one configuration stay together."""
    place: dict[RunRecord, tuple[float, int]] = {}
    for number, group in enumerate(group_runs(runs)):
        mean = fmean(run.summary.final_mean for run in group.runs)
        place |= dict.fromkeys(group.runs, (1.0 if isnan(mean) else -mean, number))
    return sorted(runs, key=lambda run: place[run])
