"""Many runs at a time on a cluster whose machines share their folders: jobs of SLURM, or tasks of Ray."""

import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, Literal

from dietcl.errors import Stopped, UserError, reason
from dietcl.files import default_cache
from dietcl.launch import cores, is_restarted
from dietcl.process_pool import Item, Outcome, Progress, Value, Work, attempt, in_processes, use_threads
from dietcl.signals import STOPPED

On = Literal["local", "slurm", "ray"]
# Returns the progress of an item by its files in the shared folder: there is no pipe to another machine.
ProgressOf = Callable[[Item], float]
# Does the work on every item, reports progress, and yields the outcomes.
WorkPool = Callable[..., Iterator[Outcome[Any]]]

_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "slurm": {
        **dict.fromkeys(("partition", "account", "qos", "constraint", "gres"), str),
        **dict.fromkeys(("timeout_min", "cpus_per_task", "gpus_per_node"), int),
        "mem_gb": float,
    },
    "ray": {"address": str, "num_cpus": int, "num_gpus": float},
}
_SECONDS = 1.0  # between two checks of the jobs
_LATE = 15.0  # seconds within which the result of an ended job shows up in the shared folder
_GRACE = 30.0  # seconds that cancelled tasks have to save what they did
# An hour by default, as short jobs start early; a run that takes longer is resumed in the next hour.
_TIMEOUT_MIN, _TIMEOUTS = 60, 24
_LIVING = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED", "PREEMPTED")


def cluster_options(on: On, text: str) -> dict[str, Any]:
    """Parse the options of a cluster's jobs, such as partition=gpu,timeout_min=120."""
    kinds = _OPTIONS.get(on, {})
    if text and not kinds:
        raise UserError(f"--cluster {text}: is for --on slurm and --on ray")
    found: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        if not name or not value:
            raise UserError(f"--cluster {text}: {part!r} is not NAME=VALUE; several of these are parted by commas")
        if name not in kinds:
            raise UserError(f"--cluster {name}={value}: --on {on} has no {name}; choose from {', '.join(kinds)}")
        try:
            found[name] = kinds[name](value)
        except ValueError:
            found[name] = 0
        is_no_gpu = name == "num_gpus" and value == "0"
        if not isinstance(found[name], str) and not 0 < found[name] < inf and not is_no_gpu:
            kind = "whole number" if kinds[name] is int else "number"
            raise UserError(f"--cluster {name}={value}: give a {kind} above 0")
        if name == "num_gpus" and found[name] > 1 and not found[name].is_integer():
            raise UserError(f"--cluster {name}={value}: Ray gives out parts of one GPU, or complete ones")
    return found


def work_pool(
    on: On,
    cluster: str,
    jobs: int | None,
    *,
    folder: Path,
    local_jobs: int | None = None,
    progress_of: ProgressOf[Item],
    notify: Callable[[str], None],
    again: Work[Item, Value] | None = None,
) -> WorkPool:
    """Return a pool for this machine, SLURM or Ray; `local_jobs` run at a time on this machine without --jobs."""
    given = cluster_options(on, cluster)
    if on == "slurm":
        return partial(on_slurm, executor=slurm_executor(folder, given, jobs), progress_of=progress_of, again=again)
    if on == "ray":
        need("ray", "ray")
        return partial(on_ray, options=given, jobs=jobs, progress_of=progress_of, notify=notify)
    return partial(in_processes, jobs=jobs or local_jobs or cores())


def need(package: Literal["submitit", "ray"], on: On) -> Any:
    """Import a package that comes with an extra."""
    try:
        return import_module(package)
    except ImportError:
        raise UserError(f'--on {on}: {package} is not installed; pip install "dietcl[{on}]"') from None


def slurm_executor(folder: Path, options: Mapping[str, Any], jobs: int | None, cluster: str = "slurm") -> Any:
    """Return what submits jobs, of which `jobs` or all run at a time; its files and their output go to the folder."""
    submitit = need("submitit", "slurm")
    if cluster == "slurm":
        if not (shutil.which("sbatch") and shutil.which("srun")):
            raise UserError("--on slurm: sbatch not found; give the command on a machine of the cluster")
        _refuse_two_in_one_folder(folder, submitit.SlurmJob)
    executor = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=_TIMEOUTS)
    # Options that are numbers are submitit's own for every cluster; the others are SLURM's and need its prefix.
    own = {f"slurm_{name}" if isinstance(value, str) else name: value for name, value in options.items()}
    common = {"name": "dietcl", "timeout_min": _TIMEOUT_MIN, "slurm_array_parallelism": jobs or 100_000}
    executor.update_parameters(**(common | own))
    return executor


def on_slurm(
    work: Work[Item, Value],
    items: Sequence[Item],
    progress: Progress,
    *,
    executor: Any,
    progress_of: ProgressOf[Item],
    again: Work[Item, Value] | None = None,
) -> Iterator[Outcome[Value]]:
    """Do the work on every item in its own job, and yield each outcome; a job that is queued again does `again`."""
    threads = executor.parameters.get("cpus_per_task", 1)
    calls = [_Job(number, item, work, again or work, threads) for number, item in enumerate(items)]
    try:
        jobs = dict(enumerate(executor.submit_array(calls)))
    except RuntimeError as error:
        raise UserError(f"--on slurm: the jobs were refused: {reason(error)}") from None
    ended: dict[int, float] = {}
    try:
        while jobs:
            for number, job in list(jobs.items()):
                progress(number, progress_of(items[number]))
                if job.done():
                    age = time.monotonic() - ended.setdefault(number, time.monotonic())
                    if job.paths.result_pickle.exists() or age > _LATE:
                        del jobs[number]
                        yield _outcome(number, job)
            time.sleep(_SECONDS if jobs else 0)
    finally:
        for job in jobs.values():
            job.cancel(check=False)


def on_ray(
    work: Work[Item, Value],
    items: Sequence[Item],
    progress: Progress,
    *,
    options: Mapping[str, Any],
    jobs: int | None,
    progress_of: ProgressOf[Item],
    notify: Callable[[str], None],
) -> Iterator[Outcome[Value]]:
    """Do the work on every item in its own task, `jobs` or all at a time, and yield each outcome."""
    ray = need("ray", "ray")
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, options.get("address"))
    cpus, gpus = options.get("num_cpus", 1), options.get("num_gpus", 0.0)
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    if not any(has.get("CPU", 0) >= cpus and has.get("GPU", 0) >= gpus for has in machines):
        notify(f"no machine of Ray has num_cpus={cpus} and num_gpus={gpus:g}; the runs wait for one that has")
    # Without retries, as the run might have used up the machine's memory; run the same command to resume it.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_call)
    waiting = [_Job(number, item, work, work, cpus) for number, item in enumerate(items)][::-1]
    tasks: dict[Any, int] = {}
    try:
        while waiting or tasks:
            while waiting and len(tasks) < (jobs or len(items)):
                job = waiting.pop()
                tasks[task.remote(job)] = job.number
            for number in tasks.values():
                progress(number, progress_of(items[number]))
            for ended in ray.wait(list(tasks), timeout=_SECONDS)[0]:
                number = tasks.pop(ended)
                try:
                    outcome: Outcome[Value] = ray.get(ended)
                except ray.exceptions.RayError as error:
                    why = f"its task left no result ({type(error).__name__}); run the same command to resume"
                    outcome = Outcome(number, None, f"{error}\n{why}")
                yield outcome
    finally:
        for unfinished in tasks:
            ray.cancel(unfinished)  # like Ctrl-C, after which runs save themselves
        if tasks:
            ray.wait(list(tasks), num_returns=len(tasks), timeout=_GRACE)
        for unfinished in tasks:
            ray.cancel(unfinished, force=True)
        if is_ours:
            ray.shutdown()


@dataclass(frozen=True)
class _Job:
    """One item's work on another machine, where this machine's folder and cache are used."""

    number: int
    item: Any
    work: Work[Any, Any]
    again: Work[Any, Any]
    threads: int
    folder: Path = field(default_factory=Path.cwd)
    cache: Path = field(default_factory=lambda: default_cache().absolute())

    def __call__(self) -> Outcome[Any]:
        return attempt(self._do, self.item, self.number, lambda done: None)

    def _do(self, item: Any, report: Callable[[float], None]) -> Any:
        if not self.folder.is_dir():
            raise UserError(f"{self.folder}: is not there on {socket.gethostname()}; the cluster has to share it")
        os.chdir(self.folder)
        os.environ["DIETCL_CACHE"] = str(self.cache)
        use_threads(self.threads)
        # SLURM also queues jobs again itself, such as those of a machine that failed.
        try:
            return (self.again if is_restarted() else self.work)(item, report)
        except Stopped:
            if "SUBMITIT_EXECUTOR" in os.environ:
                # No result is left, so that the command waits until SLURM queues the job again.
                raise SystemExit(STOPPED) from None
            raise

    def checkpoint(self) -> Any:
        """Return what submitit queues when this job is interrupted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(replace(self, work=self.again))


def _call(job: _Job) -> Outcome[Any]:
    return job()


def _refuse_two_in_one_folder(folder: Path, job_class: Any) -> None:
    """Refuse to submit while jobs of a command that was killed go on: two of them must not write to one run."""
    jobs = [job_class(folder, path.name.removesuffix("_submitted.pkl")) for path in folder.glob("*_submitted.pkl")]
    unfinished = [job for job in jobs if not job.paths.result_pickle.exists()]
    if living := [job.job_id for job in unfinished if job.state in _LIVING]:
        advice = f"wait until they have ended, or cancel them: scancel {' '.join(sorted(living))}"
        raise UserError(f"{folder.parent}: jobs of an earlier command are still there; {advice}")


def _outcome(number: int, job: Any) -> Outcome[Any]:
    """Return the outcome of an ended job; a failure starts with the paths of its output and ends with the reason."""
    if not job.paths.result_pickle.exists():
        printed = (job.stderr() or "").strip()
        failure = f"{printed}\nthe job ended as {job.state} without a result; run the same command to resume"
    else:
        try:
            outcome: Outcome[Any] = job.result()
        except RuntimeError as error:
            failure = f"{error}\nthe job failed outside the run"
        else:
            if outcome.failure is None:
                return outcome
            failure = outcome.failure
    return Outcome(number, None, f"job {job.job_id}: {job.paths.stdout}, {job.paths.stderr}\n\n{failure}")


def steps_finished(folder: Path) -> float:
    """Return how many time steps the run in a folder has finished, according to its events."""
    try:
        return (folder / "events.jsonl").read_bytes().count(b'"step_end"')
    except OSError:
        return 0


def _connect(ray: Any, address: str | None) -> None:
    """Join the Ray cluster at an address, or the one that Ray finds, or start one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # unless the user wants them
    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself would try for minutes
        before = signal.getsignal(signal.SIGTERM)
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        signal.signal(signal.SIGTERM, before)  # Ray's own would end this process in a dump, and not save a run
    except (OSError, ImportError, RuntimeError, ValueError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "this machine"
        why = reason(error).partition(". ")[0]
        raise UserError(f"--on ray: no Ray is reached at {where} ({why}); give --cluster address=HOST:PORT") from None
