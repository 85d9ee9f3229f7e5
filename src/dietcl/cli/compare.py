"""`dietcl compare`: learn a stream with many methods under the same budget, and show one table."""

import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dietcl.cli.config_options import gather, parse, pick
from dietcl.cli.settings import FLAT, method_defaults, run_config, shared_fields
from dietcl.clusters import Carrier, On, carrier, cluster_options, steps_finished
from dietcl.config import Evaluation, RunConfig, preset
from dietcl.errors import UserError
from dietcl.methods import METHODS, every_method, method_config
from dietcl.process_pool import cores
from dietcl.signals import STOPPED
from dietcl.streams.recipes import BAD_SHARE

if TYPE_CHECKING:
    from rich.console import Console

    from dietcl.engine.device import Precision

Run = tuple[RunConfig, Path]

DESCRIPTION = """Learn a stream with many methods under the same budget; print one table, sorted by A(T), and a report.

Examples:
  dietcl compare --stream glyphs --methods all --seeds 1
  dietcl compare --methods dietcl,er,er:uniform,fixmatch --seeds 3 --budget 160 --out runs/four
  dietcl compare --methods all --tiny     (every method for two time steps: a smoke test)
  dietcl compare --stream photos/manifest.parquet --recipe time --methods dietcl,linear_probe
  dietcl compare --methods all --seeds 5 --on slurm --cluster partition=gpu,timeout_min=120,gpus_per_node=1
  dietcl compare --methods all --seeds 5 --on ray --cluster address=auto,num_gpus=0.5

Finished runs in --out are not repeated, and a run that fails does not stop the others. On a cluster every run is a job
or task of its own; its machines share this folder, --out and the cache. The options below are those of `dietcl train`
that all methods share; --stream and --preset decide which there are."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to compare, and where and how it is carried out."""

    methods: str = "all"
    """METHOD or METHOD:VARIANT, several of them with commas, or all."""
    seeds: int = 1
    """Runs of each method, with the seeds 0, 1, and so on."""
    tiny: bool = False
    """By default two time steps of three updates on a few test images: whether every method works at all."""
    jobs: int | None = None
    """Runs at a time, one thread each (as many as there are cores, or one on a GPU; on a cluster all)."""
    on: On = "local"
    """Where the runs are carried out: in processes on this machine, as jobs of SLURM, or as tasks of Ray."""
    cluster: str = ""
    """What each run gets there, with commas. slurm: partition, account, qos, constraint, gres, timeout_min (60),
    cpus_per_task (1), gpus_per_node (0), mem_gb. ray: address, num_cpus (1), num_gpus (0)."""
    out: Path = Path("runs/compare")
    """Folder of the runs and the report."""
    fresh: bool = False
    """Start over with runs that are there already."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What networks compute in; auto: bfloat16 on GPUs that have it, float32 elsewhere."""
    bad_images: float = BAD_SHARE
    """Share of the images that may turn out unreadable before a run stops; others stand in for them."""
    json: bool = False
    """Print the table as JSON."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: give at least 1")
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs {self.jobs}: give at least 1, or leave it out for one a core")
        cluster_options(self.on, self.cluster)
        if not 0 <= self.bad_images <= 1:
            raise UserError(f"--bad-images {self.bad_images}: give a share between 0 and 1")


def main(arguments: list[str]) -> int:
    """Carry out the runs, then print the table and write the report."""
    choices, rest = pick(arguments, stream="glyphs", preset="micro")
    sizes = preset(choices.preset)
    shared = shared_fields(sizes, choices.stream)
    if "--tiny" in rest:
        tiny = {"first_time_steps": 2, "budget": "3", "evaluation": Evaluation(test_images=200)}
        shared = [(name, kind, tiny.get(name, default)) for name, kind, default in shared]
    fields = (("options", Annotated[Options, FLAT], Options()), *shared)
    parsed = parse(gather(*fields), rest, "dietcl compare", DESCRIPTION)
    options: Options = parsed.options
    values = {name: getattr(parsed, name) for name, _, _ in shared}
    if options.tiny and values["first_time_steps"] is not None:
        values["first_time_steps"] = min(values["first_time_steps"], values["recipe"].time_steps)
    runs = [
        (
            run_config(choices.stream, method, method_defaults(method, sizes), seed, values),
            options.out / f"{method.replace(':', '-')}-seed{seed}",
        )
        for method in _methods(options.methods)
        for seed in range(options.seeds)
    ]
    return _compare(runs, options)


def _methods(text: str) -> list[str]:
    """Return the methods that are asked for; all are those of the registry and their variants."""
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


def _compare(runs: Sequence[Run], options: Options) -> int:
    from rich.console import Console

    from dietcl.files import make_folder
    from dietcl.report.page import accuracy_picture, write_report
    from dietcl.report.runs import read_run
    from dietcl.report.tables import comparison_rows, cost_table
    from dietcl.run import open_stream
    from dietcl.run_folder import identity, is_finished, refuse_another

    console = Console(stderr=True)
    _refuse_to_overwrite(options.out)
    do_all = _carrier(options, console)
    # Drawn once before several processes want it; and what cannot be started is refused before anything is.
    streams = {config.seed: open_stream(config)[0] for config, _ in runs}
    due = list(runs)
    if not options.fresh:
        precision = None if options.precision == "auto" else options.precision
        for config, folder in runs:
            refuse_another(identity(config, streams[config.seed], precision), folder)
        due = [(config, folder) for config, folder in runs if not is_finished(folder)]
    if len(due) < len(runs):
        console.print(f"{len(runs) - len(due)} of {len(runs)} runs were finished before", highlight=False)
    make_folder(options.out)
    failed = _carry_out(due, options, do_all, console) if due else set()
    finished = [folder for _, folder in runs if folder not in failed]
    if finished:
        ordered = _by_accuracy([read_run(folder) for folder in finished])
        page = write_report([run.path for run in ordered], options.out)
        if options.json:
            print(json.dumps(comparison_rows(ordered)))
        else:
            console = Console()
            console.print(cost_table(ordered, console))
            print(f"report: {page}\npicture: {accuracy_picture(options.out)}")
    return 1 if failed else 0


def _refuse_to_overwrite(out: Path) -> None:
    """Refuse a folder with a report that is somebody else's."""
    configs = (path.read_text(encoding="utf-8", errors="replace") for path in out.glob("*/config.json"))
    if (out / "report.html").exists() and not any("stream_identity" in config for config in configs):
        raise UserError(f"{out}: holds a report.html that is not about runs in this folder; choose another --out")


def _carrier(options: Options, console: "Console") -> Carrier:
    from dietcl.engine.device import pick_device

    is_local = options.on == "local"
    return carrier(
        options.on,
        options.cluster,
        options.jobs,
        folder=options.out / ".jobs",
        local_jobs=cores() if not is_local or pick_device(options.device).type == "cpu" else 1,
        reach=lambda run: steps_finished(run[1]),
        say=partial(console.print, markup=False, soft_wrap=True),
        # A requeued run must not start over.
        again=_Work(options.device, False, options.bad_images, options.precision),
    )


def _by_accuracy(runs: Sequence[Any]) -> list[Any]:
    """Sort runs by their configuration's mean A(T), best first; seeds of one configuration stay together."""
    from math import isnan
    from statistics import fmean

    from dietcl.report.groups import group_runs

    groups = [group.runs for group in group_runs(runs)]
    means = {group: fmean(run.summary.final_mean for run in group) for group in groups}
    groups.sort(key=lambda group: -1.0 if isnan(means[group]) else means[group], reverse=True)
    return [run for group in groups for run in group]


def _carry_out(runs: Sequence[Run], options: Options, do_all: Carrier, console: "Console") -> set[Path]:
    """Execute the runs and show how far they are; returns the folders of those that failed."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    failed: set[Path] = set()
    totals = [config.first_time_steps or config.recipe.time_steps for config, _ in runs]
    done = [0.0] * len(runs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("time steps"))
    clocks = (TimeElapsedColumn(), TimeRemainingColumn())
    bars = Progress(*columns, *clocks, console=console, disable=not console.is_terminal)
    with redirect_stdout(sys.stderr), bars:  # stdout is for the table, not for messages such as Ray's
        bar = bars.add_task(f"0 of {len(runs)} runs", total=sum(totals))

        def advance(number: int, completed: float) -> None:
            done[number] = completed
            bars.update(bar, completed=int(sum(done)))

        work = _Work(options.device, options.fresh, options.bad_images, options.precision)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the runs save themselves
        try:
            for finished, outcome in enumerate(do_all(work, runs, progress=advance), start=1):
                config, folder = runs[outcome.number]
                advance(outcome.number, totals[outcome.number])
                bars.update(bar, description=f"{finished} of {len(runs)} runs")
                log = folder.with_name(f"{folder.name}.failed.log")
                log.unlink(missing_ok=True)
                if outcome.failure is not None:
                    failed.add(folder)
                    with suppress(OSError):  # a full disk must not stop the others
                        log.write_text(outcome.failure, encoding="utf-8")
                    last = outcome.failure.strip().splitlines()[-1]
                    console.print(
                        f"{config.method}, seed {config.seed}: {last} (log: {log})", markup=False, soft_wrap=True
                    )
        except KeyboardInterrupt:
            console.print(f"stopped; the same command goes on in {options.out}", markup=False)
            raise SystemExit(STOPPED) from None
        finally:
            signal.signal(signal.SIGTERM, before)
    return failed


@dataclasses.dataclass(frozen=True)
class _Work:
    """One run, wherever it is carried out."""

    device: str
    fresh: bool
    bad_images: float
    precision: "Precision"

    def __call__(self, run: Run, report: Callable[[float], None]) -> bool:
        from dietcl.errors import NotFinite
        from dietcl.run import execute

        config, folder = run
        try:
            execute(
                config,
                folder,
                device=self.device,
                progress=lambda t, fraction: report(max(0, t - 1) + fraction),
                fresh=self.fresh,
                bad_share=self.bad_images,
                precision=self.precision,
            )
        except NotFinite as stop:
            raise UserError(str(stop)) from None
        return True
