"""The device that computes."""

import torch

from dietcl.errors import UserError
from dietcl.parallel import cores


def pick_device(name: str = "auto", number: int | None = None) -> torch.device:
    """Return the asked device, or the best one that is there; of several GPUs the one of this number."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    kind, _, chosen = name.partition(":")
    if not available.get(kind, False) or (":" in name and not chosen.isdigit()):
        there = ", ".join(kind for kind, there in available.items() if there)
        raise UserError(f"--device {name}: not available here; use auto or one of {there}")
    return torch.device(name if number is None or name != "cuda" else f"cuda:{number}")


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads, or all cores that this process may use."""
    if threads is not None and threads < 1:
        raise UserError(f"--threads {threads}: give at least 1, or leave it out for all cores")
    torch.set_num_threads(threads or cores())
