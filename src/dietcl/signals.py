"""How a run is asked to stop after its update: by SIGTERM, by Ctrl-C or by a time limit."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

STOPPED = 75  # exit code of a run that saved itself: EX_TEMPFAIL of sysexits.h, "try again later"


class Stoppable(Protocol):
    """Whatever can be asked to stop."""

    was_asked: bool


@contextmanager
def listening(world: Stoppable, notify: Callable[[str], None]) -> Iterator[None]:
    """Take SIGTERM and the first Ctrl-C for a wish to stop; the second Ctrl-C ends the process as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        if not world.was_asked:
            notify("stopping after this update; Ctrl-C (once more) stops at once")
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
