"""Many runs at a time on one machine: a process with one thread each, and none of them stops the others."""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

from dietcl.errors import UserError

Item = TypeVar("Item")
Value = TypeVar("Value")
Progress = Callable[[int, float], None]
# What is run in the processes: it gets an item and may report how far it is.
Work = Callable[[Item, Callable[[float], None]], Value]

_reports: Any = None  # in a worker: where to put (item, how far)


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What became of one item: a value, or why there is none."""

    number: int
    value: Value | None
    failure: str | None


def in_processes(
    work: Work[Item, Value], items: Sequence[Item], jobs: int, progress: Progress = lambda number, done: None
) -> Iterator[Outcome[Value]]:
    """Do the work on every item, several at a time, and yield what became of each as it finishes."""
    # Spawned, because forked children inherit torch's thread pools in a state that may hang.
    context = get_context("spawn")
    reports = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(reports, progress), daemon=True)
    listener.start()
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(reports,)) as pool:
            futures = [pool.submit(_do, work, item, number) for number, item in enumerate(items)]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BrokenProcessPool:
                raise UserError(
                    "a process was killed, most likely for want of memory; finished runs are kept, "
                    "so give the same command again with fewer --jobs"
                ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        reports.put(None)
        listener.join()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _listen(reports: Any, progress: Progress) -> None:
    while (report := reports.get()) is not None:
        progress(*report)


def _begin(reports: Any) -> None:
    global _reports
    _reports = reports
    # Ctrl-C reaches the whole group; a run can be killed at any time, so there is nothing to tidy up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def _do(work: Work[Item, Value], item: Item, number: int) -> Outcome[Value]:
    try:
        return Outcome(number, work(item, lambda done: _reports.put((number, done))), None)
    except UserError as error:
        return Outcome(number, None, str(error))
    except Exception:
        return Outcome(number, None, traceback.format_exc())
