"""When a run saves itself, and how it is asked to stop: by SIGTERM, Ctrl-C or a time limit, after its update."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from dietcl.budget.budget import Budget
from dietcl.errors import UserError

if TYPE_CHECKING:
    from dietcl.engine.distributed import World

STOPPED = 75  # exit code of a run that saved itself: EX_TEMPFAIL of sysexits.h, "try again later"


@dataclass(frozen=True, kw_only=True)
class Saving:
    """When a run is saved besides the end of every time step, and when it stops."""

    every: int = 100
    """Updates between checkpoints."""
    minutes: float = 10.0
    """Minutes between checkpoints; whatever comes first counts."""
    keep: int = 2
    """Checkpoints that are kept."""
    stop_after: float | None = None
    """Seconds after which the run saves itself and stops."""


def seconds(text: str) -> float:
    """Return the time limit that --stop-after gives, such as 2h."""
    try:
        limit = Budget.parse(text)
    except UserError:
        limit = None
    if limit is None or limit.unit != "seconds":
        raise UserError(f"--stop-after {text}: give a time such as 2h, 15min, 90s or 1h30min")
    return limit.amount


@contextmanager
def listening(world: "World", say: Callable[[str], None]) -> Iterator[None]:
    """Take SIGTERM and the first Ctrl-C for a wish to stop; the second Ctrl-C ends the process as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        if not world.was_asked:
            say("stopping after this update; Ctrl-C (once more) stops at once")
        world.was_asked = True
        # SIGTERM may come again and again, from whoever stops the process and from its parent, who was stopped, too.
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # somebody else takes care of it
            signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Timer:
    """A time limit, counted from its making."""

    def __init__(self, limit: float | None) -> None:
        self._end = None if limit is None else time.monotonic() + limit

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end
