"""How SIGTERM and Ctrl-C ask a run to stop after its update."""

import signal
import threading
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
    """Let SIGTERM and the first Ctrl-C ask for a stop; the second Ctrl-C ends the process as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        if not world.was_asked:
            notify("stopping after this update; Ctrl-C (once more) stops at once")
        world.was_asked = True
        # SIGTERM may come several times, such as from a job scheduler and from a parent process that it stopped, too.
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # the parent handles it
            signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
