"""What the summary is of: Larder beside other methods on every stream, as far as there are counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reproduction.catalog import ALL_SUITES
from reproduction.datasets import dataset_named
from reproduction.larder_suites import FROZEN_ARMS, FROZEN_STREAMS, LARDER
from reproduction.study import Measured, Missing, Study
from reproduction.suites import DIETCL, ER, ER_ACE, ER_UNIFORM, FIXMATCH, FROZEN, RANPAC, Arm, Suite

LEARNED_STREAMS = ("cifar100", "glyphs", "fruits360", "yearbook")
PLACED = ("larder-regimes", "larder-label-rate", "larder-stream-length")
"""Suites of several points, of which the summary tells Larder's place alone."""
LEARNED_ARMS = (LARDER, DIETCL, ER_UNIFORM, ER, ER_ACE, FIXMATCH, FROZEN, RANPAC)


@dataclass(frozen=True)
class Compared:
    """What all arms of a suite measured on a stream, Larder among them."""

    stream: str
    suite: Suite
    measured: tuple[Measured, ...]

    @property
    def title(self) -> str:
        """The stream's name for readers."""
        return dataset_named(self.stream).title

    @property
    def leader(self) -> Measured:
        """What Larder measured."""
        return next(entry for entry in self.measured if entry.arm == LARDER)

    def of(self, arm: Arm) -> Measured | None:
        """Return what an arm measured, if it was run."""
        return next((entry for entry in self.measured if entry.arm == arm), None)


@dataclass(frozen=True)
class Section:
    """A suite on the streams that it is for, and the arms of it that the summary shows."""

    name: str
    arms: tuple[Arm, ...]
    found: tuple[Compared, ...]
    missing: tuple[str, ...]
    """Titles of the streams without counts."""


def sections(out: Path) -> list[Section]:
    """Return what the summary shows of the counts in a folder."""
    return [
        _section("methods", LEARNED_STREAMS, LEARNED_ARMS, out),
        _section("larder-frozen", FROZEN_STREAMS, FROZEN_ARMS, out),
    ]


def placed(out: Path) -> list[Compared]:
    """Return what the suites of `PLACED` measured on every stream."""
    return [compared for name in PLACED for stream in LEARNED_STREAMS for compared in _compared(name, stream, out)]


def _section(name: str, streams: tuple[str, ...], arms: tuple[Arm, ...], out: Path) -> Section:
    found = {compared.stream: compared for stream in streams for compared in _compared(name, stream, out)}
    missing = tuple(dataset_named(stream).title for stream in streams if stream not in found)
    return Section(name, arms, tuple(found.values()), missing)


def _compared(name: str, stream: str, out: Path) -> Iterator[Compared]:
    """Yield what a suite measured on a stream if Larder and another arm have counts."""
    study = Study(stream, out)
    if not study.cells.path.is_file():
        return
    try:
        suite, measured = study.found(ALL_SUITES[name])
    except Missing:
        return
    if LARDER in suite.arms and len(suite.arms) > 1:
        yield Compared(stream, suite, tuple(measured))
