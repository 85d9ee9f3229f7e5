"""Groups runs that differ in nothing but the seed, and gives every run a label that tells it from the others."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dietcl.methods import METHODS, method_class, method_config
from dietcl.report.runs import Run

_OF_ONE_RUN = {"seed", "hash", "stream_identity"}


@dataclass(frozen=True, eq=False)
class Entry:
    """A run with its label and the place of its group."""

    run: Run
    label: str
    place: int


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds."""

    label: str
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(entry.run for entry in self.entries)


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Group runs by configuration, in the order of first appearance."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(_identity(run), []).append(run)
    sets = list(members.values())
    labels = _labels([group[0] for group in sets])
    groups = []
    for place, (label, group) in enumerate(zip(labels, sets, strict=True)):
        named = zip(group, _run_labels(label, group), strict=True)
        groups.append(Group(label=label, entries=tuple(Entry(run, own, place) for run, own in named)))
    return tuple(groups)


def entries_of(groups: Sequence[Group]) -> list[Entry]:
    """Return the runs of all groups in the order in which they are shown."""
    return [entry for group in groups for entry in group.entries]


def _identity(run: Run) -> str:
    # A run that stopped early is no further seed of those that did not: its A(T) is of another T.
    progress = [run.summary.learned, run.summary.time_steps]
    return json.dumps([dict(_leaves(run.config)), progress], sort_keys=True, default=str)


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values of everything that makes two configurations differ."""
    for key, part in value.items():
        if not prefix and key in _OF_ONE_RUN:
            continue
        if isinstance(part, dict):
            yield from _leaves(part, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", part


def _labels(runs: list[Run]) -> list[str]:
    labels = [_method_name(run) for run in runs]
    labels = [
        label if run.stopped is None else f"{label}, {run.summary.learned} of {run.due} time steps"
        for label, run in zip(labels, runs, strict=True)
    ]
    if len({run.stream for run in runs}) > 1:
        labels = [f"{label} on {run.stream}" for label, run in zip(labels, runs, strict=True)]
    if len({run.budget for run in runs}) > 1:
        labels = [f"{label}, {run.budget}" for label, run in zip(labels, runs, strict=True)]
    return [
        f"{label} ({_difference(run, [other for other, its in zip(runs, labels, strict=True) if its == label])})"
        if labels.count(label) > 1
        else label
        for label, run in zip(labels, runs, strict=True)
    ]


def _method_name(run: Run) -> str:
    """Return METHOD, or METHOD:VARIANT if the run has all that sets a variant apart from the method's defaults."""
    if run.method not in METHODS:
        return run.method
    options = run.config.get("method_config") or {}
    default = vars(method_config(run.method))
    for variant, named in method_class(run.method).variants.items():
        own = {name: value for name, value in vars(named).items() if value != default[name]}
        if own.items() <= options.items():
            return f"{run.method}:{variant}"
    return run.method


def _difference(run: Run, alike: list[Run]) -> str:
    """Say in what a run's configuration differs from those that share its label."""
    own = dict(_leaves(run.config))
    others = [dict(_leaves(other.config)) for other in alike]
    keys = [key for key in own if any(other.get(key) != own[key] for other in others)]
    told = {tuple(str(other.get(key)) for key in keys[:3]) for other in others}
    if not keys or len(told) < len(others):
        return run.name
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {_brief(own[key])}" for key in keys[:3])


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _run_labels(label: str, runs: list[Run]) -> tuple[str, ...]:
    if len(runs) == 1:
        return (label,)
    seeds = [run.seed for run in runs]
    return tuple(
        f"{label} · seed {run.seed}" if seeds.count(run.seed) == 1 and run.seed is not None else f"{label} · {run.name}"
        for run in runs
    )
