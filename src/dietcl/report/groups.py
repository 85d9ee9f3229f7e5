"""Groups runs that differ in nothing but the seed, and gives every run a label of its own."""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dietcl.methods import METHODS, method_config
from dietcl.report.runs import RunRecord
from dietcl.report.style import LINES, METHOD_LOOKS, PALETTE, Look

_OF_ONE_RUN = {"seed", "hash", "stream_identity"}
_LOOKS = [Look(color, line) for line in reversed(range(len(LINES))) for color in range(len(PALETTE))]


@dataclass(frozen=True, eq=False)
class Entry:
    """A run with its label and the place of its group."""

    run: RunRecord
    label: str
    place: int
    look: Look


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds."""

    label: str
    look: Look
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(entry.run for entry in self.entries)


def group_runs(runs: Sequence[RunRecord]) -> tuple[Group, ...]:
    """Group runs by configuration, in the order of first appearance."""
    members: dict[str, list[RunRecord]] = {}
    for run in runs:
        # A run that stopped early is not another seed of those that did not: its A(T) is of another T.
        identity = [dict(_leaves(run.config)), run.summary.learned, run.summary.time_steps]
        members.setdefault(json.dumps(identity, sort_keys=True, default=str), []).append(run)
    sets = list(members.values())
    labels = _labels([group[0] for group in sets])
    looks = _looks([_method_name(group[0]) for group in sets], list(members))
    groups = []
    for place, (label, own_look, group) in enumerate(zip(labels, looks, sets, strict=True)):
        seeds = [run.seed for run in group]
        entries = []
        for run in group:
            name = f"seed {run.seed}" if seeds.count(run.seed) == 1 and run.seed is not None else run.name
            entries.append(Entry(run, f"{label} · {name}" if len(group) > 1 else label, place, own_look))
        groups.append(Group(label, own_look, tuple(entries)))
    return tuple(groups)


def entries_of(groups: Sequence[Group]) -> list[Entry]:
    """Return the runs of all groups in the order in which they are shown."""
    return [entry for group in groups for entry in group.entries]


def _looks(methods: Sequence[str], identities: Sequence[str]) -> list[Look]:
    """Give METHOD:VARIANT the look that it has in every report, and what has none of its own one that is free."""
    taken = {METHOD_LOOKS[method] for method in methods if method in METHOD_LOOKS}
    found: dict[str, Look] = {}
    before = ""
    # Sorted, as the order of the runs must not matter.
    for method, identity in sorted(zip(methods, identities, strict=True)):
        own = METHOD_LOOKS.get(method) or Look(zlib.crc32(method.encode()) % len(PALETTE), len(LINES) - 1)
        found[identity] = own
        if method == before or method not in METHOD_LOOKS:
            # A further configuration of a method keeps its colour while a line pattern is free.
            part = "color" if method == before else "pattern"
            order = sorted(_LOOKS, key=lambda look: (look != own, getattr(look, part) != getattr(own, part)))
            found[identity] = next((free for free in order if free not in taken), own)
            taken.add(found[identity])
        before = method
    return [found[identity] for identity in identities]


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values of everything that makes two configurations differ."""
    for key, part in value.items():
        if isinstance(part, dict):
            yield from _leaves(part, f"{prefix}{key}.")
        elif prefix or key not in _OF_ONE_RUN:
            yield f"{prefix}{key}", part


def _labels(runs: list[RunRecord]) -> list[str]:
    sharing: dict[str, list[RunRecord]] = {}
    labels = {}
    for run in runs:
        label = _method_name(run)
        label += "" if run.stopped is None else f", {run.summary.learned} of {run.due} time steps"
        label += f" on {run.stream}" if len({other.stream for other in runs}) > 1 else ""
        label += f", {run.budget}" if len({other.budget for other in runs}) > 1 else ""
        sharing.setdefault(label, []).append(run)
        labels[run] = label
    alike = {run: sharing[label] for run, label in labels.items()}
    return [f"{labels[run]} ({_difference(run, alike[run])})" if len(alike[run]) > 1 else labels[run] for run in runs]


def _method_name(run: RunRecord) -> str:
    """Return METHOD, or METHOD:VARIANT if the run has all options in which a variant differs from the defaults."""
    options = run.config.get("method_config") or {}
    for variant, named in METHODS[run.method].variants.items() if run.method in METHODS else ():
        own = vars(named).items() - vars(method_config(run.method)).items()
        if own <= options.items():
            return f"{run.method}:{variant}"
    return run.method


def _difference(run: RunRecord, alike: list[RunRecord]) -> str:
    """Return in what a run's configuration differs from those that share its label."""
    own = dict(_leaves(run.config))
    others = [dict(_leaves(other.config)) for other in alike]
    keys = [key for key in own if any(other.get(key) != own[key] for other in others)][:3]
    if len({tuple(str(other.get(key)) for key in keys) for other in others}) < len(others):
        return run.name
    values = {key: f"{own[key]:.3g}" if isinstance(own[key], float) else own[key] for key in keys}
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in values.items())
