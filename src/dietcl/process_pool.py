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
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from dietcl.errors import Stopped, UserError

Item = TypeVar("Item")
Value = TypeVar("Value")
Progress = Callable[[int, float], None]
# Done with every item in another process; it may report its progress.
Work = Callable[[Item, Callable[[float], None]], Value]

# Spawned, because forked children inherit torch's thread pools in a state that may hang.
_CONTEXT = get_context("spawn")


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """The outcome of one item: a value, or why there is none."""

    number: int
    value: Value | None
    failure: str | None


def in_processes(
    work: Work[Item, Value], items: Sequence[Item], jobs: int, progress: Progress = lambda number, done: None
) -> Iterator[Outcome[Value]]:
    """Do the work on every item, several at a time, and yield the outcome of each as it finishes."""
    waiting = list(enumerate(items))[::-1]
    workers: dict[Connection, tuple[SpawnProcess, int]] = {}  # by pipe: a process, and the number of its item

    def give(pipe: Connection, process: SpawnProcess) -> None:
        number, item = waiting.pop()
        workers[pipe] = process, number
        pipe.send((number, item))

    def start() -> None:
        pipe, other = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(work, other), daemon=True)
        process.start()
        other.close()
        give(pipe, process)

    try:
        for _ in range(min(jobs, len(items))):
            start()
        while workers:
            for pipe in wait(list(workers)):
                assert isinstance(pipe, Connection)
                process, number = workers[pipe]
                try:
                    report = pipe.recv()
                except (EOFError, OSError):  # it was killed; the others go on
                    del workers[pipe]
                    process.join()
                    if waiting:
                        start()
                    why = f"its process ended with code {process.exitcode}, perhaps because memory ran out"
                    yield Outcome(number, None, f"{why}; run the same command to resume, if need be with fewer --jobs")
                    continue
                if isinstance(report, float):
                    progress(number, report)
                    continue
                if waiting:
                    give(pipe, process)
                else:
                    del workers[pipe]
                    pipe.close()
                yield report
    finally:
        for pipe, (process, _) in workers.items():
            process.terminate()
            pipe.close()  # a worker that saves its run first does not wait for another item afterwards
        for process, _ in workers.values():
            process.join()


def use_threads(threads: int) -> None:
    """Let this process compute with this many threads, also in libraries that it imports later."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)


def attempt(work: Work[Item, Value], item: Item, number: int, report: Callable[[float], None]) -> Outcome[Value]:
    """Do the work on one item; an error becomes a part of the outcome."""
    try:
        return Outcome(number, work(item, report), None)
    except (UserError, Stopped) as error:
        return Outcome(number, None, str(error))
    except Exception:
        return Outcome(number, None, traceback.format_exc())


def _serve(work: Any, pipe: Connection) -> None:
    """Work on what comes through the pipe until it is closed."""
    # The parent handles Ctrl-C and ends its workers: a run can be killed at any time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    use_threads(1)

    def tell(news: Any) -> None:
        with suppress(OSError):  # the parent no longer listens
            pipe.send(news)

    while True:
        try:
            number, item = pipe.recv()
        except (EOFError, OSError):
            return
        tell(attempt(work, item, number, lambda done: tell(float(done))))


def _follow_parent() -> None:
    """End this process when the parent has ended."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
