"""Many runs at a time on one machine: a process with one thread each, and none of them stops the others."""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from dietcl.errors import Stopped, UserError

Item = TypeVar("Item")
Value = TypeVar("Value")
Progress = Callable[[int, float], None]
# What is done with every item, elsewhere: it gets the item and may report how far it is.
Work = Callable[[Item, Callable[[float], None]], Value]

# Spawned, because forked children inherit torch's thread pools in a state that may hang.
_CONTEXT = get_context("spawn")


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What became of one item: a value, or why there is none."""

    number: int
    value: Value | None
    failure: str | None


class _Worker:
    """A process, the pipe that leads to it, and the item that it works on."""

    def __init__(self, work: Any) -> None:
        self.pipe, other = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(work, other), daemon=True)
        self.process.start()
        other.close()
        self.number = -1

    def give(self, number: int, item: Any) -> None:
        """Hand over an item."""
        self.number = number
        self.pipe.send((number, item))


def in_processes(
    work: Work[Item, Value], items: Sequence[Item], jobs: int, progress: Progress = lambda number, done: None
) -> Iterator[Outcome[Value]]:
    """Do the work on every item, several at a time, and yield what became of each as it finishes."""
    waiting = list(enumerate(items))[::-1]
    workers: dict[Connection, _Worker] = {}

    def employ() -> None:
        if waiting:
            worker = _Worker(work)
            workers[worker.pipe] = worker
            worker.give(*waiting.pop())

    try:
        for _ in range(min(jobs, len(items))):
            employ()
        while workers:
            for pipe in wait(list(workers)):
                assert isinstance(pipe, Connection)
                worker = workers[pipe]
                try:
                    report = pipe.recv()
                except (EOFError, OSError):  # it was killed, which must not take the others along
                    del workers[pipe]
                    worker.process.join()
                    employ()
                    why = f"its process ended with code {worker.process.exitcode}, perhaps for want of memory"
                    yield Outcome(worker.number, None, f"{why}; the same command goes on, if need be with fewer --jobs")
                    continue
                if isinstance(report, float):
                    progress(worker.number, report)
                    continue
                if waiting:
                    worker.give(*waiting.pop())
                else:
                    del workers[pipe]
                    pipe.close()
                yield report
    finally:
        for worker in workers.values():
            worker.process.terminate()
            worker.pipe.close()  # whoever saves a run before it ends does not wait for another item afterwards
        for worker in workers.values():
            worker.process.join()


def use_threads(threads: int) -> None:
    """Let this process compute with so many threads; what it imports afterwards reads it from the environment."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)


def attempt(work: Work[Item, Value], item: Item, number: int, report: Callable[[float], None]) -> Outcome[Value]:
    """Do the work on one item; whatever it raises becomes a part of the outcome."""
    try:
        return Outcome(number, work(item, report), None)
    except (UserError, Stopped) as error:
        return Outcome(number, None, str(error))
    except Exception:
        return Outcome(number, None, traceback.format_exc())


def _serve(work: Any, pipe: Connection) -> None:
    """Work on what comes through the pipe until it is closed."""
    # Ctrl-C is the parent's business, which ends its workers: a run can be killed at any time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    use_threads(1)

    def tell(news: Any) -> None:
        with suppress(OSError):  # the parent has lost interest
            pipe.send(news)

    while True:
        try:
            number, item = pipe.recv()
        except (EOFError, OSError):
            return
        tell(attempt(work, item, number, lambda done: tell(float(done))))


def _follow_parent() -> None:
    """End this process when the parent has ended in whatever way."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
