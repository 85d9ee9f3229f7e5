"""Carrying out runs and showing them in the terminal, shared by the verbs."""

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

from dietcl.config import RunConfig
from dietcl.engine.device import set_threads
from dietcl.engine.loop import NotFinite
from dietcl.errors import UserError
from dietcl.report.runs import read_run
from dietcl.report.tables import comparison_table
from dietcl.run import execute


def carry_out(
    runs: Sequence[tuple[RunConfig, Path]], *, device: str, threads: int | None, fresh: bool, title: str | None = None
) -> None:
    """Execute runs one after the other with a progress bar each; quiet when not a terminal."""
    set_threads(threads)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("time step"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for config, folder in runs:
            bar = bars.add_task(f"{config.method} on {Path(config.stream).stem}", total=config.recipe.time_steps)

            def advance(t: int, fraction: float, bar: TaskID = bar) -> None:
                bars.update(bar, completed=max(0, t - 1) + fraction)

            try:
                execute(config, folder, device=device, progress=advance, fresh=fresh)
            except NotFinite as stop:
                raise UserError(f"{folder}: {stop}") from None
            except KeyboardInterrupt:
                console.print(f"stopped; the same command goes on from the last finished time step in {folder}")
                raise SystemExit(130) from None
            bars.update(bar, completed=config.recipe.time_steps)


def show(folders: Sequence[Path]) -> None:
    """Print the comparison table of runs and where they lie."""
    console = Console()
    console.print(comparison_table([read_run(folder) for folder in folders]))
    for folder in folders:
        console.print(f"run: {folder}", soft_wrap=True)
