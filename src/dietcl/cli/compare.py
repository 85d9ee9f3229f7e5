"""`dietcl compare`: learn a stream with many methods under the same budget, and show one table."""

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console

from dietcl.checked_options import CheckedOptions, Count, Limit, Share, Valid
from dietcl.cli.config_options import flat, gather, parse, pick, pick_stream, shared_fields, with_values
from dietcl.cli.progress import notify, progress_bar
from dietcl.clusters import On, cluster_options, steps_finished, work_pool
from dietcl.config import Evaluation, RunConfig
from dietcl.config_builder import default_config, default_preset
from dietcl.errors import UserError
from dietcl.execution import SIZE_ADVICE, Execution, Precision, is_size
from dietcl.launch import cores
from dietcl.methods import METHODS, every_method, method_config
from dietcl.report.runs import RunRecord
from dietcl.report.tables import comparison_rows, cost_table
from dietcl.signals import STOPPED
from dietcl.streams.options import BAD_SHARE

PlannedRun = tuple[RunConfig, Path]

DESCRIPTION = """Learn a stream with many methods under the same budget; print one table, sorted by A(T), and a report.

Examples:
  dietcl compare --stream glyphs --methods all --seeds 1
  dietcl compare --methods dietcl,er,er:uniform,fixmatch --seeds 3 --budget 160 --out runs/four
  dietcl compare --stream photos --methods linear_probe,ncm,acm,ranpac:frozen --encoder lite
  dietcl compare --methods all --tiny     (every method for two time steps: a smoke test)
  dietcl compare --stream photos/manifest.parquet --recipe time --methods dietcl,linear_probe
  dietcl compare --methods all --seeds 5 --on slurm --cluster partition=gpu,timeout_min=120,gpus_per_node=1
  dietcl compare --methods all --seeds 5 --on ray --cluster address=auto,num_gpus=0.5

Finished runs in --out are not repeated, and a run that fails does not stop the others. On a cluster every run is a job
or task of its own; its machines share this folder, --out and the cache. The options below are those of `dietcl train`
that all methods share; --stream, --preset and --encoder decide their defaults."""


@dataclass(frozen=True, kw_only=True)
class Options(CheckedOptions):
    """What to compare, and where and how the runs are executed."""

    methods: str = "all"
    """METHOD or METHOD:VARIANT, several of them with commas, or all."""
    seeds: Count = 1
    """Runs of each method, with the seeds 0, 1, and so on."""
    tiny: bool = False
    """By default two time steps of three updates on a few test images: whether every method works at all."""
    jobs: Limit = None
    """Runs at a time, one thread each (as many as there are cores, or one on a GPU; on a cluster all)."""
    on: On = "local"
    """Where the runs are executed: in processes on this machine, as jobs of SLURM, or as tasks of Ray."""
    cluster: str = ""
    """What each run gets there, with commas. slurm: partition, account, qos, constraint, gres, timeout_min (60),
    cpus_per_task (1), gpus_per_node (0), mem_gb. ray: address, num_cpus (1), num_gpus (0)."""
    out: Path = Path("runs/compare")
    """Folder of the runs and the report."""
    fresh: bool = False
    """Start over with runs that are there already."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: Precision = "auto"
    """What networks compute in; auto: bfloat16 on GPUs that have it, float32 elsewhere."""
    bad_images: Share = BAD_SHARE
    """Share of the images that may turn out unreadable before a run stops; they are replaced by others."""
    cache_size: Annotated[str, Valid(is_size, SIZE_ADVICE)] = Execution.cache_size
    """Features of images that a frozen encoder computed, kept on disk for all runs; the oldest make room."""
    json: bool = False
    """Print the table as JSON."""

    def __post_init__(self) -> None:
        super().__post_init__()
        cluster_options(self.on, self.cluster)

    def execution(self, fresh: bool) -> Execution:
        """Return how each run is executed."""
        shared = {name: getattr(self, name) for name in ("device", "precision", "bad_images", "cache_size")}
        return Execution(**shared, fresh=fresh)


def main(arguments: list[str]) -> int:
    """Execute the runs, then print the table and write the report."""
    choices, rest = pick(arguments, stream="glyphs", preset="", encoder="")
    stream, methods = pick_stream(choices.stream), _methods(pick(rest, methods=Options.methods)[0].methods)
    size = choices.preset or ("" if choices.encoder else default_preset(stream, *methods))
    shared = shared_fields(default_config(stream, methods[0], size, choices.encoder))
    if "--tiny" in rest:
        tiny = {"first_time_steps": 2, "budget": "3", "evaluation": Evaluation(test_images=200)}
        shared = [(name, kind, tiny.get(name, default)) for name, kind, default in shared]
    parsed = parse(gather(flat("options", Options()), *shared), rest, "dietcl compare", DESCRIPTION)
    options: Options = parsed.options
    values = {name: getattr(parsed, name) for name, _, _ in shared}
    runs = []
    for method in methods:
        config = with_values(default_config(stream, method, size, choices.encoder), **values)
        if options.tiny and config.first_time_steps is not None:
            config = replace(config, first_time_steps=min(config.first_time_steps, config.recipe.time_steps))
        name = method.replace(":", "-")
        runs += [(replace(config, seed=s), options.out / f"{name}-seed{s}") for s in range(options.seeds)]
    return compare_runs(runs, options)


def _methods(text: str) -> list[str]:
    """Return the methods that --methods names; all: those of the registry and their variants."""
    if text == "all":
        return every_method()
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--methods {text!r}: name at least one of {', '.join(METHODS)}, or all")
    for name in names:
        try:
            method_config(name)
        except UserError as error:
            raise UserError(f"{str(error).replace('--method ', '--methods ', 1)} (or all, alone)") from None
    return list(dict.fromkeys(names))


def compare_runs(runs: Sequence[PlannedRun], options: Options) -> int:
    """Execute the runs that are not finished, print the table and write the report; returns 1 if a run failed."""
    from dietcl.many_runs import by_accuracy, runs_due
    from dietcl.report.page import accuracy_picture, write_report

    due = runs_due(runs, options.execution(options.fresh), options.out)
    if len(due) < len(runs):
        notify(f"{len(runs) - len(due)} of {len(runs)} runs were finished before")
    failed = _execute_runs(due, options) if due else set()
    finished = [folder for _, folder in runs if folder not in failed]
    if finished:
        ordered = by_accuracy([RunRecord.read(folder) for folder in finished])
        page = write_report([run.path for run in ordered], options.out)
        if options.json:
            print(json.dumps(comparison_rows(ordered)))
        else:
            console = Console()
            console.print(cost_table(ordered, console))
            print(f"report: {page}\npicture: {accuracy_picture(options.out)}")
    return 1 if failed else 0


def _execute_runs(runs: Sequence[PlannedRun], options: Options) -> set[Path]:
    """Execute the runs with a progress bar; returns the folders of those that failed."""
    from dietcl.engine.device import pick_device
    from dietcl.many_runs import RunWork, run_all

    pool = work_pool(
        options.on,
        options.cluster,
        options.jobs,
        folder=options.out / ".jobs",
        local_jobs=cores() if options.on != "local" or pick_device(options.device).type == "cpu" else 1,
        progress_of=lambda run: steps_finished(run[1]),
        notify=notify,
        again=RunWork(options.execution(fresh=False)),  # a requeued run must not start over
    )
    failed: set[Path] = set()
    totals = {folder: config.first_time_steps or config.recipe.time_steps for config, folder in runs}
    done = dict.fromkeys(totals, 0.0)
    bar = progress_bar(f"0 of {len(runs)} runs", "time steps", sum(totals.values()), transient=False)
    with redirect_stdout(sys.stderr), bar as update:  # stdout is for the table, not for messages such as Ray's

        def advance(number: int, completed: float) -> None:
            done[runs[number][1]] = completed
            update(sum(done.values()))

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the runs save themselves
        try:
            ended = run_all(runs, options.execution(options.fresh), options.out, pool, advance)
            for number, ((_, folder), failure) in enumerate(ended, start=1):
                done[folder] = totals[folder]
                update(sum(done.values()), title=f"{number} of {len(runs)} runs")
                if failure is not None:
                    failed.add(folder)
                    notify(failure)
        except KeyboardInterrupt:
            notify(f"stopped; run the same command to resume in {options.out}")
            raise SystemExit(STOPPED) from None
        finally:
            signal.signal(signal.SIGTERM, before)
    return failed
