"""The processes that learn one run together, over plain torch.distributed; a process alone needs none of it.

Every process holds the complete state and takes every decision itself, from the same numbers; only the micro-batches of
updates and sweeps and the chunks of test images are shared out. What they yield is put together in its own order, so
that the number of processes changes the speed and nothing else.
"""

import datetime
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from dietcl.errors import Lost, UserError
from dietcl.launch import cores, is_restarted, ranks
from dietcl.plural import plural

Value = TypeVar("Value")
TIMEOUT = datetime.timedelta(minutes=30)  # a process that died is noticed at once; this is for one that hangs
_GONE = re.compile("connection (closed|reset|refused)|broken pipe|remote process exited", re.IGNORECASE)


@dataclass
class World:
    """This process among those that learn the same run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    gpu: int | None = None  # the number of this process's own GPU, if several processes have one each
    is_restarted: bool = False  # whether a launcher started the command again; always right in the first process
    was_asked: bool = False  # to stop
    _is_agreed: bool = False
    _now: float = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder."""
        return self.rank == 0

    @property
    def is_stopping(self) -> bool:
        """Whether a process was asked to stop and all of them know."""
        return self.was_asked if self.size == 1 else self._is_agreed

    def own_share(self, items: Iterable[Value]) -> Iterator[Value]:
        """Return the items of this process: every size-th one, from its rank on."""
        return islice(items, self.rank, None, self.size)

    def exchange(self, value: Value) -> list[Value]:
        """Return the values of all processes by rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        with self._naming_losses():
            dist.all_gather_object(found, (self.was_asked, value))
        self._is_agreed = any(asked for asked, _ in found)
        return [value for _, value in found]

    def share(self, value: Value) -> Value:
        """Return the first process's value."""
        if self.size == 1:
            return value
        found = [value]
        with self._naming_losses():
            dist.broadcast_object_list(found)
        return found[0]

    def first(self, work: Callable[[], Value]) -> Value:
        """Let the first process do the work and return its result in all of them; a UserError ends all of them."""
        if self.size == 1:
            return work()
        value: Any = None
        refusal: UserError | None = None
        if self.is_first:
            try:
                value = work()
            except UserError as error:
                refusal = error
        result: Value
        result, is_refused = self.share((value, refusal is not None))
        if is_refused:
            raise refusal or SystemExit(2)  # the first process prints the sentence
        return result

    @contextmanager
    def one_per_machine_first(self) -> Iterator[None]:
        """Let one process of each machine go first, so that the others find what it keeps."""
        if self.local_rank:
            self._meet()
        try:
            yield
        except UserError:
            if self.local_rank:
                raise SystemExit(2) from None  # the first one raised the same error
            raise
        finally:
            if not self.local_rank:
                self._meet()

    def sum(self, values: Tensor) -> None:
        """Replace values by their sum over all processes."""
        if self.size > 1:
            total = values.cpu() if values.device.type == "mps" else values  # mps has no all_reduce
            with self._naming_losses():
                dist.all_reduce(total)
            values.copy_(total)

    def require_equal(self, tensors: Mapping[str, Tensor]) -> None:
        """Stop if the processes' states have drifted apart, as they might on machines that round differently."""
        if self.size == 1:
            return
        first, *others = self.exchange({name: _checksum(value) for name, value in tensors.items()})
        for rank, other in enumerate(others, start=1):
            if different := [name for name in first if other.get(name) != first[name]]:
                advice = "start processes on machines of one kind only, and run the same command to resume"
                raise UserError(f"process {rank} has another {different[0]} than process 0; {advice}")

    def clock(self) -> float:
        """Return the time of the last tick, the same in all processes; alone, the time."""
        return time.monotonic() if self.size == 1 else self._now

    def tick(self) -> None:
        """Take the first process's time."""
        if self.size > 1:
            self._now = self.share(time.monotonic())

    def _meet(self) -> None:
        if self.size > 1:
            with self._naming_losses():
                dist.barrier()

    @contextmanager
    def _naming_losses(self) -> Iterator[None]:
        """Raise one sentence if another process has ended."""
        try:
            yield
        except RuntimeError as error:
            if not (gone := _GONE.search(str(error))):
                raise
            why = f"another one ended ({gone.group().lower()}); its own output has the reason"
            raise Lost(f"process {self.rank}: {why}; run the same command to resume") from None


def join(device: str) -> World:
    """Connect to the processes that torchrun or srun started with this one, if any."""
    rank, size, local_rank, local_size = ranks()
    if size == 1:
        return World(is_restarted=is_restarted())
    is_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    gpu = None
    if is_cuda:
        if ":" in device:
            raise UserError(f"--device {device}: each of {size} processes takes a GPU of its own; give --device cuda")
        # srun may have given each process a GPU that is the only one it sees.
        gpu = 0 if torch.cuda.device_count() == 1 and _is_of_srun() else local_rank
        if gpu >= torch.cuda.device_count():
            why = f"{local_size} processes share {plural(torch.cuda.device_count(), 'GPU')}"
            raise UserError(f"--device {device}: {why}; start one process for each GPU, or give --device cpu")
        torch.cuda.set_device(gpu)
    os.environ.setdefault("MASTER_ADDR", _first_host())
    os.environ.setdefault("MASTER_PORT", str(20_000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10_000))
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    store, _, _ = next(rendezvous("env://", rank, size, timeout=TIMEOUT))
    shared: Any = dist.PrefixStore(agree_on_prefix(store, rank, size), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=shared, rank=rank, world_size=size, timeout=TIMEOUT)
    has_started_before = rank == 0 and store.add("dietcl/starts", 1) > 1
    return World(rank, size, local_rank, local_size, gpu, is_restarted() or has_started_before)


def agree_on_prefix(store: Any, rank: int, size: int) -> str:
    """Return a prefix of keys in the store that all living processes agree on.

    After a restart torchrun may hand out the same store, which still has the addresses of dead processes, and its count
    of restarts differs between machines. So every process asks with a new word, and the first one answers all words,
    also those of dead processes, until each of the others has received the answer.
    """
    word = uuid.uuid4().hex
    if rank:
        store.set(f"dietcl/asked/{rank}", word)
        prefix: str = store.get(f"dietcl/answer/{word}").decode()
        store.set(f"{prefix}/received/{rank}", "")
        return prefix
    prefix, waiting = f"dietcl/{word}", set(range(1, size))
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while waiting:
        for other in waiting:
            if store.check([f"dietcl/asked/{other}"]):
                store.set(f"dietcl/answer/{store.get(f'dietcl/asked/{other}').decode()}", prefix)
        time.sleep(0.01)
        waiting = {other for other in waiting if not store.check([f"{prefix}/received/{other}"])}
        if time.monotonic() > deadline:
            raise UserError(f"{len(waiting)} of {size} processes did not start within {TIMEOUT}; start them all")
    return prefix


def leave(world: World) -> None:
    """Disconnect from the other processes."""
    if world.size > 1:
        dist.destroy_process_group()


def default_threads(world: World) -> int:
    """Return this process's share of the cores of its machine."""
    if world.size > 1 and _is_of_srun() and "SLURM_CPUS_PER_TASK" in os.environ:
        return int(os.environ["SLURM_CPUS_PER_TASK"])  # srun has divided the cores already
    return max(1, cores() // world.local_size)


def _is_of_srun() -> bool:
    """Tell whether srun itself started this process, and not torchrun within a job."""
    return "SLURM_PROCID" in os.environ and "LOCAL_WORLD_SIZE" not in os.environ


def _first_host() -> str:
    """Return the first of SLURM's nodes, such as node03 of `node[03-05,9],rack1`; this machine if there are none."""
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    found = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return found.group(1) + (found.group(2) or "") if found else "127.0.0.1"


def _checksum(value: Tensor) -> int:
    return zlib.crc32(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
