"""The launch environment: which cores this process may use, and its rank as torchrun or srun set it."""

import os
import re


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ranks() -> tuple[int, int, int, int]:
    """Return rank, size, local rank and local size from the environment that torchrun or srun sets."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if all(name in os.environ for name in names):
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
        return rank, size, local_rank, local_size
    # Only steps that srun started have these; a batch script itself has a number of tasks, too, but is one process.
    if "SLURM_STEP_NUM_TASKS" in os.environ and "SLURM_PROCID" in os.environ:
        size = int(os.environ["SLURM_STEP_NUM_TASKS"])
        first = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        local_size = int(first.group()) if first else size
        return int(os.environ["SLURM_PROCID"]), size, int(os.environ.get("SLURM_LOCALID", "0")), local_size
    return 0, 1, 0, 1


def is_restarted() -> bool:
    """Tell whether torchrun or SLURM started this command again after it had failed or was preempted."""
    return any(int(os.environ.get(name) or 0) > 0 for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
