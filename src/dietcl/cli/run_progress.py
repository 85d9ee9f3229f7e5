"""Executes a run with a progress bar and shows its result; imports torch."""

import os
from pathlib import Path

from rich.console import Console

from dietcl.cli.progress import notify, progress_bar
from dietcl.config import RunConfig, stream_title
from dietcl.engine.device import set_threads
from dietcl.engine.distributed import World, default_threads
from dietcl.errors import NotFinite, Stopped, UserError
from dietcl.execution import Execution
from dietcl.plural import plural
from dietcl.report.runs import RunRecord
from dietcl.report.tables import comparison_table
from dietcl.run import execute
from dietcl.signals import STOPPED


def execute_with_progress(config: RunConfig, folder: Path, execution: Execution, world: World) -> None:
    """Execute a run with a progress bar; quiet when not in a terminal."""
    set_threads(execution.threads or default_threads(world))
    title = f"{config.method} on {stream_title(config.stream)}"
    total = config.first_time_steps or config.recipe.time_steps
    with progress_bar(title, "time steps", total, is_shown=world.is_first, transient=False) as update:

        def advance(t: int, fraction: float) -> None:
            # Time step 0 is what comes before the first: drawing the images, searching the threshold.
            update(max(0, t - 1) + fraction, title=title if t else f"{title}: preparing")

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
            notify(f"stopped; run the same command to resume from the last checkpoint in {folder}")
            raise SystemExit(130) from None
        update(total)


def show(folder: Path) -> None:
    """Print the result of a run as a table, and its folder."""
    console, run = Console(), RunRecord.read(folder)
    console.print(comparison_table([run], console))
    if run.receipts is not None and not run.receipts.passes:
        print(f"nothing was learned: --budget {run.budget} is less than one update")
    if run.receipts is not None and (read := run.receipts.features_read):
        print(f"cache: the features of {plural(read, 'image')} were read, not computed; the charges are the same")
    print(f"run: {folder}")
