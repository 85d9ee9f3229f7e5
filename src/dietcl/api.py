"""The public interface: open a stream, train on it, compare methods, load the model of a run and predict."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dietcl.checked_options import Count, Limit, check_options, check_value
from dietcl.config import RunConfig
from dietcl.config_builder import build_config, default_folder, default_preset
from dietcl.engine.device import set_threads
from dietcl.errors import UserError
from dietcl.execution import Execution, Precision
from dietcl.files import default_cache, digest
from dietcl.launch import cores
from dietcl.many_runs import by_accuracy, run_all, runs_due
from dietcl.methods import DEFAULT_METHOD, every_method
from dietcl.model import Model, load_model
from dietcl.models.checkpoints import shipped
from dietcl.plural import plural
from dietcl.process_pool import in_processes
from dietcl.report.page import write_report
from dietcl.report.runs import RunRecord
from dietcl.report.tables import comparison_rows
from dietcl.run import execute, stream_of
from dietcl.streams.index import open_manifest
from dietcl.streams.sources import SOURCES, Source
from dietcl.streams.sources.registry import READERS, Reader, prepare_in_cache, stream_name

_EXECUTION = {field.name for field in dataclasses.fields(Execution)}


@dataclass(frozen=True)
class TimeStepInfo:
    """How much arrives in one time step."""

    t: int
    labeled: int
    unlabeled: int
    test: int
    new_classes: tuple[str, ...]


@dataclass(frozen=True)
class StreamInfo:
    """A stream as it is cut into time steps; `train` learns it."""

    name: str
    options: dict[str, Any]
    classes: tuple[str, ...]
    steps: tuple[TimeStepInfo, ...]
    identity: str
    """The same for equal manifests that are cut alike, in any folder."""

    def __repr__(self) -> str:
        steps, images = plural(len(self.steps), "time step"), plural(self.images, "image")
        return f"StreamInfo({self.name}: {steps}, {images}, {plural(self.labels, 'label')})"

    @property
    def images(self) -> int:
        """Training images that arrive in all time steps."""
        return sum(step.labeled + step.unlabeled for step in self.steps)

    @property
    def labels(self) -> int:
        """Labels that are revealed in all time steps."""
        return sum(step.labeled for step in self.steps)

    @property
    def realized_rate(self) -> float:
        """Share of the arriving images whose label is revealed."""
        return self.labels / max(1, self.images)


@dataclass(frozen=True, eq=False)
class Run(RunRecord):
    """A run in its folder: what it measured, its report and its model."""

    def __repr__(self) -> str:
        state = f"{self.accuracy:.1%} accuracy" if self.finished else "not finished"
        return f"Run({self.path}: {self.config['method']}, seed {self.config['seed']}, {state})"

    def report(self, out: Path | str | None = None) -> Path:
        """Write the HTML page and figures, by default into the run's folder; returns the page's path."""
        return write_report([self.path], Path(out) if out is not None else self.path)

    def model(self, device: str = "auto") -> Model:
        """Load the run's model."""
        return load_model(self.path, device)


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods on one stream, the best method first, and what failed."""

    runs: tuple[Run, ...]
    failures: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain row per method with its measures, as means over seeds."""
        return comparison_rows(self.runs)

    def report(self, out: Path | str) -> Path:
        """Write one HTML page on all runs; returns its path."""
        return write_report([run.path for run in self.runs], Path(out))


def open_stream(source: str | Path, **options: Any) -> StreamInfo:
    """Open a built-in stream by name, a manifest, or a folder or table of images, which is prepared first.

    Options are those of `dietcl train --help` that cut a stream: recipe, time_steps, label_rate, cut, seed and others.
    """
    stream, _ = stream_of(build_config(name := stream_name(source), **options))
    steps = tuple(
        TimeStepInfo(step.t, len(step.labeled), len(step.unlabeled), len(test.rows), step.new_classes)
        for step, test in zip(stream.steps, stream.tests, strict=True)
    )
    return StreamInfo(name, options, stream.classes, steps, stream.identity)


def train(
    stream: StreamInfo | str | Path,
    method: str = DEFAULT_METHOD,
    *,
    preset: str = "",
    out: str | Path | None = None,
    progress: Callable[[int, float], None] = lambda t, fraction: None,
    notify: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> Run:
    """Learn a stream with METHOD or METHOD:VARIANT; a run that was stopped is resumed, a finished one returned.

    Options are those of `dietcl train --help` with underscores, such as budget="2h", lr=1e-3 or device="cpu".
    """
    execution = {name: options.pop(name) for name in _EXECUTION & options.keys()}
    return train_config(_config(stream, method, preset, options), out, progress=progress, notify=notify, **execution)


def train_config(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    progress: Callable[[int, float], None] = lambda t, fraction: None,
    notify: Callable[[str], None] = lambda sentence: None,
    **execution: Any,
) -> Run:
    """Carry out a configuration of `build_config`, or raise NotFinite if it diverges; options say how, not what."""
    check_options(Execution, execution)
    how = Execution(**execution)
    folder = default_folder(config) if out is None else Path(out)
    if how.threads is not None:
        set_threads(how.threads)
    execute(config, folder, how, progress=progress, notify=notify)
    return open_run(folder)


def compare(
    stream: StreamInfo | str | Path,
    methods: str | Sequence[str] | None = None,
    *,
    seeds: int = 1,
    preset: str = "",
    out: str | Path = "runs/compare",
    jobs: int | None = None,
    **options: Any,
) -> Comparison:
    """Learn a stream with one or several methods (all by default) and seeds, several runs at a time."""
    execution = Execution(**{name: options.pop(name) for name in _EXECUTION & options.keys()})
    names = every_method() if methods is None else [methods] if isinstance(methods, str) else list(methods)
    if not names:
        raise UserError("methods []: name at least one, or leave it out for all")
    if "seed" in options:
        raise UserError(f"seed {options['seed']}: a comparison takes seeds, a number of them from seed 0")
    check_value("seeds", Count, seeds)
    check_value("jobs", Limit, jobs)
    place = Path(out)
    if not preset and not options.get("encoder"):
        preset = default_preset(stream.name if isinstance(stream, StreamInfo) else stream_name(stream), *names)
    runs = [
        (_config(stream, name, preset, {**options, "seed": seed}), place / f"{name.replace(':', '-')}-seed{seed}")
        for name in names
        for seed in range(seeds)
    ]
    due = runs_due(runs, execution, place)
    pool = partial(in_processes, jobs=jobs or cores())
    ended = {folder: failure for (_, folder), failure in run_all(due, execution, place, pool)}
    failures = tuple(failure for failure in ended.values() if failure is not None)
    finished = [open_run(folder) for _, folder in runs if ended.get(folder) is None]
    return Comparison(tuple(by_accuracy(finished)), failures)


def load(
    run: str | Path, device: str = "auto", precision: Precision = "auto", cache_size: str = Execution.cache_size
) -> Model:
    """Load the model of a finished run, whatever its method."""
    return load_model(run, device, precision, cache_size)


def open_run(folder: str | Path) -> Run:
    """Open a run's folder, as `train` returned it."""
    return Run.read(Path(folder))


def reader(kind: str, **options: Any) -> Reader | Source:
    """Return what reads a kind of data (`dietcl data prepare --help` lists them) or a built-in stream, with options."""
    kinds: dict[str, type[Reader | Source]] = {**SOURCES, **READERS}
    if kind not in kinds:
        raise UserError(f"{kind}: no such kind of data; choose from {', '.join(kinds)}")
    check_options(kinds[kind], options)
    return kinds[kind](**options)


def prepare(
    data: str | Path,
    reader: Reader | Source | None = None,
    progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> Path:
    """Return the manifest of a file or folder of images, which is written to the cache folder unless it is there.

    Without a reader, the kind of data is recognized; the data of a built-in stream's reader is its name.
    """
    if isinstance(reader, Source):
        return reader.prepare(default_cache(), progress)
    return prepare_in_cache(Path(data), reader, progress)


def manifest_hash(manifest: str | Path) -> str:
    """Return an identifier of a manifest's rows, which does not depend on its folder."""
    return open_manifest(Path(manifest)).hash


def weights_identity(config: RunConfig) -> str | None:
    """Return what tells the initial weights of a configuration from others: a digest of shipped ones, else the name."""
    return digest(shipped(config.model.encoder)) if config.weights == "shipped" else config.weights


def _config(stream: StreamInfo | str | Path, method: str, preset: str, options: dict[str, Any]) -> RunConfig:
    if isinstance(stream, StreamInfo):
        return build_config(stream.name, method, preset, **{**stream.options, **options})
    return build_config(stream_name(stream), method, preset, **options)
