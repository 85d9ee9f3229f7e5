"""`dietcl demo`: DietCL and Replay learn the built-in stream at the same budget."""

from dataclasses import dataclass, replace
from pathlib import Path

from dietcl.budget.budget import Budget
from dietcl.cli.config_options import parse
from dietcl.cli.train import parse_run
from dietcl.config import Evaluation

DESCRIPTION = """Learn the built-in stream with DietCL and with Replay at the same budget, and show the result.

Examples:
  dietcl demo
  dietcl demo --out /tmp/demo --budget 20"""

TEST_IMAGES = 1000  # half of them, so that most of the time goes into learning
METHODS = {
    "dietcl": ["--method", "dietcl"],
    "er-uniform": ["--method", "er", "--sampling", "uniform"],
    "er-balanced": ["--method", "er", "--sampling", "balanced"],
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the result goes, and how much to spend."""

    out: Path = Path("runs/demo")
    """Folder of the runs and the report; finished runs in it are not repeated."""
    budget: str = "36"
    """Budget per time step."""
    seed: int = 0
    """Seed of the stream, the draws and the weights."""
    threads: int | None = None
    """CPU threads (all cores by default)."""


def main(arguments: list[str]) -> int:
    """Run the methods, print the table and write the report."""
    options = parse(Options(), arguments, "dietcl demo", DESCRIPTION)
    from dietcl.cli.run_progress import carry_out, show
    from dietcl.files import make_folder
    from dietcl.report.page import accuracy_picture, write_report

    runs = []
    for name, method in METHODS.items():
        config, _ = parse_run([*method, "--budget", options.budget, "--seed", str(options.seed)])
        config = replace(
            config,
            recipe=replace(config.recipe, time_steps=20, label_rate=0.02),
            evaluation=Evaluation(test_images=TEST_IMAGES),
        )
        runs.append((config, options.out / name))
    make_folder(options.out)
    print(
        "Learning the built-in stream of drawn characters: 20 time steps, 2 % of the labels, "
        f"{_allowance(options.budget, config.training.batch)} at each time step.",
        flush=True,
    )
    carry_out(runs, device="auto", threads=options.threads, fresh=False)
    folders = [folder for _, folder in runs]
    show(folders)
    page = write_report(folders, options.out)
    print(f"report: {page}")
    print(f"picture: {accuracy_picture(options.out)}")
    return 0


def _allowance(text: str, batch: int) -> str:
    """Say in words what one time step may spend."""
    budget = Budget.parse(text)
    if budget.unit == "updates":
        return f"{budget} update{'' if budget.amount == 1 else 's'} of {batch} images"
    return f"{str(budget).replace('flops', ' FLOPs')} of computation"
