"""The progress bar and the messages that verbs show on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_CONSOLE = Console(stderr=True)


def notify(sentence: str) -> None:
    """Print a sentence on standard error, above the progress bar if there is one."""
    _CONSOLE.print(sentence, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def progress_bar(
    title: str, unit: str, total: float | None = None, *, is_shown: bool = True, transient: bool = True
) -> Iterator[Callable[..., None]]:
    """Show a progress bar if standard error is a terminal; yields its update(completed, total=None, title=None)."""
    text, clocks = TextColumn("{task.description}", markup=False), (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(
        *(text, BarColumn(), MofNCompleteColumn(), TextColumn(unit), *clocks),
        console=_CONSOLE,
        transient=transient,
        disable=not (is_shown and _CONSOLE.is_terminal),
        redirect_stdout=sys.stdout.isatty(),  # results that go to a file or a pipe must not go to the console
    ) as bars:
        bar = bars.add_task(title, total=total)

        def update(completed: float, total: float | None = None, title: str | None = None) -> None:
            bars.update(bar, completed=completed, total=total, description=title)

        yield update
