"""`dietcl demo`: Larder, DietCL and Replay learn the built-in stream at the same budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from pathlib import Path
from typing import Any

from dietcl.budget.budget import Budget
from dietcl.cli import compare
from dietcl.cli.config_options import parse
from dietcl.config import RunConfig
from dietcl.config_builder import build_config
from dietcl.metrics import Summary
from dietcl.report.runs import read_runs

DESCRIPTION = """Learn the built-in stream with Larder, DietCL and Replay at the same budget, and explain the result.

Examples:
  dietcl demo
  dietcl demo --out /tmp/demo --budget 20"""

# The first time steps of a whole stream: two cores finish them in four minutes.
TIME_STEPS, STREAM_TIME_STEPS, BUDGET = 8, 20, 200
# These rates won the search on this stream, for DietCL and Replay (results/glyphs/search.jsonl); Larder takes the same.
SETTING: dict[str, Any] = {
    "preset": "nano",
    "time_steps": STREAM_TIME_STEPS,
    "first_time_steps": TIME_STEPS,
    "label_rate": 0.02,
    "test_images": 2000,
    "lr": 0.0033,
    "head_lr": 0.15,
    "lr_floor": 0.0033 / 8,
}


@dataclass(frozen=True)
class Contestant:
    """A method that the demo shows."""

    title: str
    method: str
    """METHOD or METHOD:VARIANT."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, budget: str, seed: int) -> RunConfig:
        """Return the configuration of its run."""
        return build_config("glyphs", self.method, budget=budget, seed=seed, **SETTING, **self.options)


LARDER = Contestant("Larder", "larder")
OTHERS = (Contestant("DietCL", "dietcl", {"alpha": 1.6}), Contestant("ER uniform", "er:uniform"))
CONTESTANTS = (LARDER, *OTHERS)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The folder of the result, and how much to spend."""

    out: Path = Path("runs/demo")
    """Folder of the runs and the report; finished runs in it are not repeated."""
    budget: str = str(BUDGET)
    """Budget per time step."""
    seed: int = 0
    """Seed of the stream, the draws and the weights."""


def main(arguments: list[str]) -> int:
    """Run the methods, print the table, write the report and explain the result."""
    options = parse(Options(), arguments, "dietcl demo", DESCRIPTION)
    configs = [contestant.config(options.budget, options.seed) for contestant in CONTESTANTS]
    folders = [options.out / contestant.method.replace(":", "-") for contestant in CONTESTANTS]
    spending = _spending(options.budget, configs[0].training.batch)
    print(
        f"Learning the first {TIME_STEPS} of {STREAM_TIME_STEPS} time steps of the built-in stream of drawn "
        f"characters: 5 new characters and 2 % of the labels at each, {spending} at each time step.",
        flush=True,
    )
    # All at once: two cores are done with three processes sooner than with two and then one.
    runs = list(zip(configs, folders, strict=True))
    code = compare.compare_runs(runs, compare.Options(out=options.out, jobs=len(runs)))
    if code == 0:
        print(explanation([run.summary for run in read_runs(folders)], spending))
    return code


def explanation(summaries: Sequence[Summary], spending: str) -> str:
    """Explain the runs; summaries are in the order of CONTESTANTS."""
    pairs = zip(OTHERS, summaries[1:], strict=True)
    differences = [_difference(summaries[0], summary, other.title) for other, summary in pairs]
    return (
        f"After {TIME_STEPS} time steps Larder is {' and '.join(differences)}. "
        f"This is one seed, with {spending} at each time step; "
        "the errors count the test images, not what another seed would change. "
        "Replay and DietCL remember labeled images only; Larder also remembers unlabeled ones, "
        "with the labels that it guessed. RESULTS.md has whole streams and more seeds."
    )


def _difference(one: Summary, other: Summary, title: str) -> str:
    points = 100 * (one.final_pooled - other.final_pooled)
    # Both are tested on the same images; this is the error for different ones, which is rather too large.
    error = 100 * hypot(one.final_pooled_se, other.final_pooled_se)
    side = "above" if points >= 0 else "below"
    verdict = "more than two standard errors" if abs(points) > 2 * error else "within two standard errors"
    return f"{abs(points):.1f} ± {error:.1f} points {side} {title} ({verdict})"


def _spending(text: str, batch: int) -> str:
    """Return what one time step may spend, in words."""
    budget = Budget.parse(text)
    if budget.unit == "updates":
        return f"{budget} update{'' if budget.amount == 1 else 's'} of {batch} images"
    return f"{str(budget).replace('flops', ' FLOPs')} of computation"
