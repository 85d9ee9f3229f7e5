"""The command: regenerate the paper's tables and figures on a stream, judge its claims, and sum up what was found."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dietcl import UserError
from dietcl.clusters import On, WorkPool, cluster_options, steps_finished, work_pool
from dietcl.files import disk_errors

if TYPE_CHECKING:
    from rich.console import Console

    from reproduction.study import Report

DESCRIPTION = """Regenerate a table or figure of the paper on a stream; counts, tables and pictures go to --out.

Examples:
  python -m reproduction table1 --stream glyphs
  python -m reproduction budget --stream cifar100 --data packs/ --seeds 3 --jobs 2
  python -m reproduction all --stream fruits360 --data packs/
  python -m reproduction table1 --stream yearbook --data packs/ --methods er,er:uniform,dietcl
  python -m reproduction ablation --stream cifar100@base --data packs/     (with the paper's encoder)
  python -m reproduction table1 --stream cloc --data cloc/manifest.parquet
  python -m reproduction methods --stream cifar100 --data packs/     (Larder, with seeds of its own)
  python -m reproduction claims --write docs/paper-claims.md     (from the counts in --out; runs nothing)
  python -m reproduction summary --write RESULTS.md     (Larder on every stream, from the counts in --out; runs nothing)

Suites: {suites}.
Streams: {streams}; @ and a preset after one is another size.

What --out holds is not run again, and what was stopped goes on when the same command is given again. Before the first
suite of a stream, rates are searched and the budget at which Replay peaks is found, both on other seeds and on training
images that are held out."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to reproduce, on which stream, and where it goes."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """A suite, all, claims or summary."""
    stream: str = "glyphs"
    """The stream to learn, at its own size or at that of a preset: STREAM@PRESET."""
    data: Path | None = None
    """Folder that holds the stream's pack, or its manifest (.parquet); glyphs needs none."""
    methods: str = "all"
    """Carry out these methods of the suite only (names with commas); its tables show all that were ever carried out."""
    seeds: int | None = None
    """Runs of each method (as many as the suite says); most suites of the paper give decisive methods two more."""
    jobs: int | None = None
    """Runs at a time, one thread each (as many as there are cores; on a cluster all)."""
    on: On = "local"
    """Where the runs are carried out: in processes on this machine, as jobs of SLURM, or as tasks of Ray."""
    cluster: str = ""
    """What each run gets there, with commas, as in `dietcl compare`."""
    out: Path = Path("results")
    """Where the counts, tables and pictures go, in a folder for each stream."""
    scratch: Path = Path("runs/reproduction")
    """Where unfinished runs lie."""
    write: Path | None = None
    """With claims and summary: put the tables between the marks in this Markdown file."""

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: give at least 1, or leave it out for as many as the suite says")
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs {self.jobs}: give at least 1, or leave it out for one a core")
        cluster_options(self.on, self.cluster)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 2 for what the user can mend, 130 after Ctrl-C."""
    try:
        return _reproduce(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reproduction: stopped", file=sys.stderr)
        return 130


def _reproduce(arguments: list[str]) -> int:
    """Carry out what is missing, then write and print the tables."""
    from reproduction.catalog import ALL_SUITES, suites_named
    from reproduction.datasets import DATASETS, dataset_named

    description = DESCRIPTION.format(suites=", ".join(ALL_SUITES), streams=", ".join(DATASETS))
    options = tyro.cli(Options, args=arguments, prog="python -m reproduction", description=description)
    if not options.name:
        raise UserError(f"name a suite ({', '.join(ALL_SUITES)}), all, claims or summary")
    if options.name in _FROM_COUNTS:
        _refuse_what_runs(options)
        return _FROM_COUNTS[options.name](options)
    if options.write is not None:
        raise UserError(f"--write {options.write}: goes with claims and summary; leave it out")
    dataset_named(options.stream)
    suites = suites_named(options.name, options.methods, options.stream)

    from reproduction.show.publish import publish
    from reproduction.study import Missing, Study

    console = _console()
    notify = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    folder, pool = options.out / options.stream, _pool(options, notify)
    with disk_errors(options.out), _bars() as report:
        study = Study(options.stream, options.out, options.scratch, options.data, pool, report, notify)
        for name, suite in suites.items():
            carried = study.measure(suite, options.seeds or suite.seeds)
            if not study.has_run:
                notify(
                    f"{name}: every run is in {folder} already, and none was carried out; another --out repeats them"
                )
            for result in (result for entry in carried for result in entry.results if result.failure):
                notify(f"left out: {result.key} diverged ({result.failure})")
            finished = Study(options.stream, options.out)  # which looks up, and searches nothing for what was not asked
            try:
                found, measured = finished.found(ALL_SUITES[name])
            except Missing:
                raise UserError(f"{name}: every run diverged, so that there is nothing to show") from None
            for sheet in publish(finished, name, found, measured, folder):
                console.print(sheet.table(), "")
            notify(f"page: {folder / name}.html")
    return 0


def _console() -> "Console":
    """Return where tables go: as wide as the terminal, and wide enough for all columns in a file or a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _pool(options: Options, notify: Callable[[str], None]) -> WorkPool:
    from reproduction.run_cache import folder_of

    return work_pool(
        options.on,
        options.cluster,
        options.jobs,
        folder=options.scratch / ".jobs",
        progress_of=lambda cell: steps_finished(folder_of(cell, options.scratch / options.stream)),
        notify=notify,
    )


def _refuse_what_runs(options: Options) -> None:
    for name in ("stream", "data", "methods", "seeds", "jobs", "on", "cluster", "scratch"):
        if getattr(options, name) != getattr(Options(), name):
            raise UserError(
                f"--{name} {getattr(options, name)}: {options.name} reads the counts in --out alone; leave it out"
            )


def _claims(options: Options) -> int:
    from reproduction.show.claim_tables import verdict_sheet, with_claims
    from reproduction.show.results import left_out, studies, write_claims

    found = studies(options.out)
    if not found:
        raise UserError(_no_counts(options.out))
    if options.write is not None:
        with disk_errors(options.write.parent):
            write_claims(options.write, options.out)
    _console().print(verdict_sheet(with_claims(found)).table(), "")
    for sentence in (sentence for study in found for sentence in left_out(study)):
        print(sentence, file=sys.stderr)
    if options.write is None:
        print(f"The differences on which they rest: {options.out}/STREAM/SUITE.md, or --write FILE.md for all of them.")
    else:
        print(f"written: {options.write}")
    return 0


def _summary(options: Options) -> int:
    from reproduction.show.summary import missing_words, summary_sheets, write_summary
    from reproduction.show.summary_data import sections

    found = sections(options.out)
    if not any(section.found for section in found):
        raise UserError(_no_counts(options.out, " of Larder beside others"))
    if options.write is not None:
        with disk_errors(options.write.parent):
            write_summary(options.write, options.out, found)
    for sheet in summary_sheets(found, options.out):
        _console().print(sheet.table(), "")
    for sentence in filter(None, map(missing_words, found)):
        print(sentence)
    if options.write is not None:
        print(f"written: {options.write}")
    return 0


def _no_counts(out: Path, what: str = "") -> str:
    return f"--out {out}: holds no counts{what}; give the folder that a suite wrote, or run one first"


_FROM_COUNTS: dict[str, Callable[[Options], int]] = {"claims": _claims, "summary": _summary}


@contextmanager
def _bars() -> Iterator["Report"]:
    """Show how far each stage is, as a bar, or as a line now and then where no terminal is watching."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"))
    bars = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    tasks: dict[str, TaskID] = {}
    said: dict[str, int] = {}

    def report(title: str, done: float, total: int) -> None:
        if title not in tasks:
            tasks[title] = bars.add_task(title, total=total)
        if not console.is_terminal and int(done) != said.get(title):
            said[title] = int(done)
            console.print(f"{title}: {said[title]} of {total}", soft_wrap=True, markup=False, highlight=False)
        bars.update(tasks[title], completed=done, total=total)

    with bars:
        yield report
