"""The device that computes."""

import os

import torch

from dietcl.errors import UserError


def pick_device(name: str = "auto") -> torch.device:
    """Return the asked device, or the best one that is there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind = name.partition(":")[0]
    if not available.get(kind, False):
        there = ", ".join(kind for kind, there in available.items() if there)
        raise UserError(f"--device {name}: not available here; use auto or one of {there}")
    return torch.device(name)


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads, or all cores that this process may use."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads or 1)
