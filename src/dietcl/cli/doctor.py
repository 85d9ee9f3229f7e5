"""`dietcl doctor`: check the installation, the device, precision, fonts and disk."""

import importlib.metadata
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dietcl.cli.config_options import parse
from dietcl.errors import UserError
from dietcl.files import default_cache

DESCRIPTION = """Check the installation, the device, precision, fonts and disk; exits with 1 if something is broken.

Examples:
  dietcl doctor
  dietcl doctor --json"""

NEEDED = (
    *("torch", "torchvision", "timm", "numpy", "pyarrow", "fsspec", "pillow", "simplejpeg", "opencv-python-headless"),
    *("safetensors", "matplotlib", "tyro", "rich"),
)
LEAST_DISK = 2**30


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to print."""

    json: bool = False
    """Print a JSON list of objects."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    what: str
    fine: bool
    detail: str


def main(arguments: list[str]) -> int:
    """Print every finding; 1 if one of them is bad."""
    options = parse(Options(), arguments, "dietcl doctor", DESCRIPTION)
    findings = list(examine())
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.fine else 'BAD'}  {finding.what:<13}{finding.detail}")
    return 0 if all(finding.fine for finding in findings) else 1


def examine() -> Iterator[Finding]:
    """Check one thing after the other; what raises is a finding, not a crash."""
    checks: dict[str, Callable[[], str]] = {
        "python": _python,
        "packages": _packages,
        "network": _network,
        "weights": _weights,
        "device": _device,
        "precision": _precision,
        "fonts": _fonts,
        "cache": _cache,
    }
    for what, check in checks.items():
        try:
            yield Finding(what, True, check())
        except Exception as error:
            yield Finding(what, False, " ".join(str(error).split()) or type(error).__name__)


def _python() -> str:
    return sys.version.split()[0]


def _packages() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in NEEDED)


def _network() -> str:
    from dietcl.models.network import build_network
    from dietcl.models.presets import MODELS

    network = build_network(MODELS["micro"], 0)
    return f"micro encoder builds, {sum(p.numel() for p in network.parameters()):,} parameters"


def _weights() -> str:
    from dietcl.models.checkpoints import load_weights, shipped
    from dietcl.models.network import build_network
    from dietcl.models.presets import MODELS

    return f"shipped micro weights: {load_weights(build_network(MODELS['micro'], 0), shipped('micro'))}"


def _device() -> str:
    import torch

    from dietcl.engine.device import pick_device

    device = pick_device()
    x = torch.randn(512, 512, device=device)
    started = time.perf_counter()
    for _ in range(20):
        x = (x @ x).tanh()
    float(x.sum())
    rate = 20 * 2 * 512**3 / (time.perf_counter() - started) / 1e9
    return f"{device}, {torch.get_num_threads()} threads, about {rate:.0f} GFLOP/s in fp32"


def _precision() -> str:
    from dietcl.engine.device import cpu_has_bfloat16, pick_device, pick_precision

    device = pick_device()
    chosen = str(pick_precision("auto", device)).removeprefix("torch.")
    works = "works" if cpu_has_bfloat16() else "does not work"
    return f"{chosen} by default on {device}; bfloat16 {works} on the CPU"


def _fonts() -> str:
    from dietcl.streams.sources.builtin.glyphs.fonts import faces

    return f"{len(faces())} font faces for the built-in streams"


def _cache() -> str:
    folder = default_cache()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        raise UserError(f"{folder}: only {free / 2**20:.0f} MB are free; make room or set DIETCL_CACHE")
    return f"{folder} is writable, {free / 2**30:.0f} GB free; runs go to {Path('runs').absolute()}"
