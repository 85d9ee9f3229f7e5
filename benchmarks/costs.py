"""What an image costs each method: arithmetic on paper against the receipts of a real run.

    python -m benchmarks.costs --preset small --jobs 2 --write docs/methods.md

The arithmetic knows the pools of a batch and the shapes of the modules; what is booked is read off the ledger around
every call of the method. Both are given in passes per image, by the `images` price list and by FLOPs.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.cost_oracle import ARITHMETIC, Drawn, Paper
from dietcl.cli.config_options import parse
from dietcl.config import Evaluation, RunConfig, preset
from dietcl.config_builder import method_options
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.loop import learn
from dietcl.engine.option_search import NullRecorder
from dietcl.errors import UserError
from dietcl.methods import METHODS
from dietcl.methods.base import Phase, Sweep, Term
from dietcl.models.net import Net
from dietcl.process_pool import in_processes
from dietcl.run import stream_of
from dietcl.streams.batch import Batch, Part
from dietcl.streams.options import Recipe
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs
from dietcl.streams.stream import TimeStep
from reproduction.show.table_formats import Sheet, put_between

TOLERANCE = 0.01
VARIANTS = ("linear_probe:sgd", "ranpac:frozen", "dietcl:labeled")  # those that cost otherwise than their method
MARK = "costs"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    preset: Literal["micro", "tiny", "small", "base"] = "micro"
    """Size of the network; small takes some ten minutes, base four times as long."""
    methods: str = "all"
    """Names with commas, or all."""
    jobs: int = 1
    """Methods at a time, one thread each."""
    write: Path | None = None
    """Put the table between the marks in this Markdown file."""


@dataclass
class Cost:
    """Images of one part of a method, and the passes that they should cost and did, by both price lists."""

    images: int = 0
    paper: tuple[float, float] = (0.0, 0.0)
    booked: tuple[float, float] = (0.0, 0.0)

    def add(self, images: int, paper: tuple[float, float], booked: tuple[float, float]) -> None:
        """Add a call."""
        self.images += images
        self.paper = (self.paper[0] + paper[0], self.paper[1] + paper[1])
        self.booked = (self.booked[0] + booked[0], self.booked[1] + booked[1])

    def agrees(self) -> bool:
        """Tell whether paper and receipts differ by no more than the tolerance."""
        pairs = zip(self.paper, self.booked, strict=True)
        return all(abs(paper - booked) <= TOLERANCE * max(paper, booked) for paper, booked in pairs)


# By part of a method, in the first time step or in a later one: the first has no memory and no teacher.
Costs = dict[tuple[str, bool], Cost]


class Watch:
    """Wraps a method for the engine, and compares what every call books with the arithmetic."""

    def __init__(self, learner: Learner) -> None:
        self.costs: Costs = {}
        self._learner, self._watched = learner, learner.method
        self._rules = ARITHMETIC[learner.config.method]
        self._t = self._swept = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    def begin_step(self, net: Net, step: TimeStep) -> None:
        self._t, self._swept = step.t, 0
        self._watched.begin_step(net, step)

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        unlabeled, labeled = (len(part or ()) for part in (batch.unlabeled, batch.labeled))
        memory = sum(len(part or ()) for part in (batch.memory, batch.larder))
        first = self._t == 1
        drawn = Drawn(unlabeled=unlabeled, labeled=labeled, memory=memory, key=batch.key, is_first=first)
        yield from self._measure(phase.name, drawn, lambda: list(self._watched.losses(net, phase, batch)))

    def gather(self, net: Net, sweep: Sweep, part: Part) -> Any:
        self._swept += len(part)
        drawn = Drawn(labeled=len(part), is_first=self._t == 1)
        return self._measure(sweep.name, drawn, lambda: self._watched.gather(net, sweep, part))

    def end_sweep(self, net: Net, step: TimeStep, sweep: Sweep) -> None:
        drawn = Drawn(unlabeled=self._swept, new_classes=len(step.classes), is_first=self._t == 1)
        self._measure(f"{sweep.name}, end", drawn, lambda: self._watched.end_sweep(net, step, sweep))

    def end_step(self, net: Net, step: TimeStep) -> None:
        labels = sum(len(past.labeled) for past in self._learner.stream.steps if past.t <= step.t)
        drawn = Drawn(memory=labels, labeled=len(step.labeled), is_first=self._t == 1)
        self._measure("end", drawn, lambda: self._watched.end_step(net, step))

    def _measure(self, part: str, drawn: Drawn, call: Callable[[], Any]) -> Any:
        before = self._spent()
        result = call()
        after = self._spent()
        booked = (after[0] - before[0], after[1] - before[1])
        if any(booked):
            images = drawn.memory if part == "end" else drawn.images
            by_images, by_flops = (self._rules[part].passes(self._paper(name), drawn) for name in ("images", "flops"))
            self.costs.setdefault((part, drawn.is_first), Cost()).add(images, (by_images, by_flops), booked)
        return result

    def _spent(self) -> tuple[float, float]:
        items = self._learner.ledger.state()["step"]["account"]["items"]
        flops = sum(item["flops"] for item in items)
        return sum(item["passes"] for item in items), flops / self._learner.ledger.pass_flops

    def _paper(self, accounting: str) -> Paper:
        learner = self._learner
        encoder = learner.network.tokens
        return Paper(
            accounting=accounting,
            cost=learner.ledger.cost,
            config=learner.config.method_config,
            classes=learner.net.classes,
            dim=encoder.dim,
            grid=encoder.grid,
            patch=encoder.patch,
        )


def measure(name: str, size: str) -> Costs:
    """Run a method for two time steps and return the costs of its parts."""
    config = _config(name, size)
    stream, index = stream_of(config)
    learner = assemble(config, stream, Equipment(index), NullRecorder())
    learner.method = watch = Watch(learner)  # type: ignore[assignment]
    for _ in learn(learner):
        pass
    return watch.costs


def _work(size: str, name: str, report: Callable[[float], None]) -> Costs:
    return measure(name, size)


def _config(name: str, size: str) -> RunConfig:
    sizes = preset(size)
    is_micro = size == "micro"
    batch = 12 if is_micro else 6
    options = method_options(name, sizes)
    if name.startswith("dietcl"):
        options = replace(options, threshold="80%")  # 400 updates would leave none of so few to the memory alone
    return RunConfig(
        method=name.partition(":")[0],
        method_config=options,
        stream="glyphs",
        source=Glyphs(classes=8, per_class=20, test_per_class=1),
        recipe=Recipe(recipe="class", time_steps=2, label_rate=0.15),
        model=sizes.model,
        weights=None,
        training=replace(sizes.training, batch=batch, micro_batch=batch),
        augmentation=replace(sizes.augmentation, flip=False),
        budget="24" if is_micro else "8",
        evaluation=Evaluation(test_images=1),
    )


def sheet(costs: dict[str, Costs], title: str) -> Sheet:
    """Return the table of all methods: a row for each of their parts, of later time steps where they have it."""
    rows = []
    for name, parts in costs.items():
        rules = ARITHMETIC[name.partition(":")[0]]
        for part in dict.fromkeys(part for part, _ in parts):
            cost = parts[part, (part, False) not in parts]
            pairs = zip(cost.paper, cost.booked, strict=True)
            numbers = [_number(value / cost.images) for pair in pairs for value in pair]
            rows.append((f"`{name}`", rules[part].what, rules[part].formula, *numbers))
    heads = ("method", "for each", "passes", "images: paper", "images: receipts", "FLOPs: paper", "FLOPs: receipts")
    return Sheet(title, heads, tuple(rows))


def _number(passes: float) -> str:
    return f"{passes:.3f}" if passes >= 0.01 else f"{passes:.2g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and tell by the exit code whether every part agrees."""
    options = parse(Options(), list(sys.argv[1:] if arguments is None else arguments), "costs", __doc__ or "")
    names = [*METHODS, *VARIANTS] if options.methods == "all" else options.methods.split(",")
    costs: dict[str, Costs] = {}
    for outcome in in_processes(partial(_work, options.preset), names, options.jobs):
        name = names[outcome.number]
        if outcome.value is None:
            raise UserError(f"{name}: {outcome.failure}")
        costs[name] = outcome.value
        print(f"{name}: {len(costs)} of {len(names)}", file=sys.stderr, flush=True)
    costs = {name: costs[name] for name in names}
    model = preset(options.preset).model
    table = sheet(costs, f"Passes per image at {model.encoder}, {model.image_size} px: arithmetic against receipts.")
    from rich.console import Console

    Console().print(table.table())
    if options.write is not None:
        put_between(options.write, {MARK: table.markdown()})
    differing = [f"{name}, {part}" for name, parts in costs.items() for (part, _), c in parts.items() if not c.agrees()]
    for line in differing:
        print(f"{line}: arithmetic and receipts differ by more than {TOLERANCE:.0%}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"costs: {error}", file=sys.stderr)
        raise SystemExit(2) from None
