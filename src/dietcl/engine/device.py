"""The device that computes, and how precisely."""

import subprocess
import sys

import torch

from dietcl.errors import UserError
from dietcl.execution import Precision
from dietcl.launch import cores


def pick_device(name: str = "auto", number: int | None = None) -> torch.device:
    """Return the device of this name, or the best available one; of several GPUs the one with this number."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    kind, _, chosen = name.partition(":")
    if not available.get(kind, False) or (":" in name and not chosen.isdigit()):
        there = ", ".join(kind for kind, there in available.items() if there)
        raise UserError(f"--device {name}: not available on this machine; use auto or one of {there}")
    return torch.device(name if number is None or name != "cuda" else f"cuda:{number}")


# Run in a child process, because some CPUs announce bfloat16 and crash when they use it.
_TRIAL = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
with torch.autocast("cpu", torch.bfloat16):
    loss = layer(torch.randn(64, 64)).float().square().mean()
loss.backward()
print(bool(loss.isfinite()) and all(bool(p.grad.isfinite().all()) for p in layer.parameters()))
"""


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """Return what the network computes in; auto is bfloat16 on GPUs that have it, and float32 elsewhere."""
    if name == "float32" or (name == "auto" and device.type != "cuda"):
        return torch.float32
    if device.type == "cuda":
        works = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        works = device.type == "cpu" and cpu_has_bfloat16()
    if name == "bfloat16" and not works:
        raise UserError(f"--precision bfloat16: does not work on this {device.type}; use float32")
    return torch.bfloat16 if works else torch.float32


def cpu_has_bfloat16() -> bool:
    """Tell whether a network can learn in bfloat16 on this CPU; a child process tries it."""
    child = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=False)
    return child.returncode == 0 and child.stdout.strip() == "True"


def set_threads(threads: int | None) -> None:
    """Let torch use this many threads, or all cores that this process may use."""
    if threads is not None and threads < 1:
        raise UserError(f"--threads {threads}: give at least 1, or leave it out for all cores")
    torch.set_num_threads(threads or cores())
