"""Carrying out runs and showing them in the terminal, shared by the verbs."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dietcl.config import RunConfig, stream_title
from dietcl.engine.device import set_threads
from dietcl.engine.distributed import World, default_threads
from dietcl.errors import NotFinite, Stopped, UserError
from dietcl.execution import Execution
from dietcl.report.runs import RunRecord
from dietcl.report.tables import comparison_table
from dietcl.run import execute
from dietcl.signals import STOPPED


def carry_out(
    runs: Sequence[tuple[RunConfig, Path]],
    execution: Execution = Execution(),  # noqa: B008 (it is frozen)
    world: World | None = None,
) -> None:
    """Execute runs one after the other with a progress bar each; quiet when not a terminal."""
    world = world or World()
    set_threads(execution.threads or default_threads(world))
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("time step"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)

    def notify(sentence: str) -> None:
        console.print(sentence, soft_wrap=True, markup=False, highlight=False)

    with Progress(*columns, console=console, disable=not (console.is_terminal and world.is_first)) as bars:
        for config, folder in runs:
            title = f"{config.method} on {stream_title(config.stream)}"
            total = config.first_time_steps or config.recipe.time_steps
            bar = bars.add_task(title, total=total)

            def advance(t: int, fraction: float, bar: TaskID = bar, title: str = title) -> None:
                # Time step 0 is what comes before the first: drawing the images, searching the threshold.
                bars.update(bar, completed=max(0, t - 1) + fraction, description=title if t else f"{title}: preparing")

            try:
                execute(config, folder, execution, progress=advance, notify=notify, world=world)
            except NotFinite as stop:
                if not world.is_first:
                    raise SystemExit(2) from None  # all processes get the same error
                raise UserError(f"{folder}: {stop}") from None
            except Stopped as stop:
                if world.is_first:
                    notify(str(stop))
                # Launchers would take the code for a failure: torchrun starts over at once, srun ends the others.
                is_launched = world.size > 1 or "TORCHELASTIC_RUN_ID" in os.environ
                raise SystemExit(0 if is_launched else STOPPED) from None
            except KeyboardInterrupt:
                notify(f"stopped; the same command goes on from the last checkpoint in {folder}")
                raise SystemExit(130) from None
            bars.update(bar, completed=total)


def show(folders: Sequence[Path]) -> None:
    """Print the comparison table of runs and where they lie."""
    console = Console()
    runs = [RunRecord.read(folder) for folder in folders]
    console.print(comparison_table(runs, console))
    for run, folder in zip(runs, folders, strict=True):
        if run.receipts is not None and not run.receipts.passes:
            console.print(f"nothing was learned: --budget {run.budget} is less than one update", markup=False)
        console.print(f"run: {folder}", soft_wrap=True, markup=False)
