"""`dietcl doctor`: check the installation by using each part of it once."""

import importlib
import importlib.metadata
import io
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from dietcl.cli.config_options import parse
from dietcl.errors import UserError, reason
from dietcl.files import default_cache
from dietcl.models.presets import MODELS
from dietcl.plural import plural
from dietcl.report.figure_style import cjk_fonts, figure_style
from dietcl.streams.decode import decode, formats
from dietcl.streams.sources.builtin.glyphs.fonts import faces

DESCRIPTION = """Check the installation, the device, precision, fonts and disk; exits with 1 if something is broken.

Examples:
  dietcl doctor
  dietcl doctor --json"""

# Distributions and the modules to import; dietcl._compat repairs the import of torchvision.
PACKAGES = {
    "torch": "torch",
    "torchvision": "dietcl._compat",
    "timm": "timm",
    "numpy": "numpy",
    "pyarrow": "pyarrow.parquet",
    "fsspec": "fsspec",
    "pillow": "PIL.Image",
    "simplejpeg": "simplejpeg",
    "opencv-python-headless": "cv2",
    "safetensors": "safetensors.torch",
    "matplotlib": "matplotlib.figure",
    "filelock": "filelock",
    "platformdirs": "platformdirs",
    "tyro": "tyro",
    "rich": "rich.console",
}
LEAST_DISK = 2**30


@dataclass(frozen=True, kw_only=True)
class Options:
    """Output format."""

    json: bool = False
    """Print a JSON list of objects."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    fine: bool
    detail: str


def main(arguments: list[str]) -> int:
    """Print every finding; return 1 if one of them is bad."""
    options = parse(Options(), arguments, "dietcl doctor", DESCRIPTION)
    findings = list(examine())
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.fine else 'BAD'}  {finding.what:<13}{finding.detail}")
    return 0 if all(finding.fine for finding in findings) else 1


def examine() -> Iterator[Finding]:
    """Run the checks one after the other; one that raises is a finding."""
    checks = (_python, _packages, _images, _network, _weights, _device, _precision, _fonts, _figures, _cache)
    for check in checks:
        what = check.__name__.removeprefix("_")
        try:
            yield Finding(what, True, check())
        except Exception as error:
            yield Finding(what, False, " ".join(str(error).split()) or type(error).__name__)


def _python() -> str:
    return sys.version.split()[0]


def _packages() -> str:
    versions, broken = [], []
    for package, module in PACKAGES.items():
        try:
            importlib.import_module(module)
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except Exception as error:  # a broken binary raises anything
            broken.append(f"{package} ({reason(error)})")
    if broken:
        raise UserError(f"cannot import {', '.join(broken)}; install again with: pip install --force-reinstall dietcl")
    return ", ".join(versions)


def _images() -> str:
    """Decode and resize a picture in each of the common formats."""
    color = (200, 120, 40)
    common = ("JPEG", "PNG", "WEBP")
    for name in common:
        stream = io.BytesIO()
        Image.new("RGB", (64, 48), color).save(stream, name, quality=95)
        small = cv2.resize(decode(stream.getvalue(), 16), (8, 8), interpolation=cv2.INTER_AREA)
        if small.shape != (8, 8, 3) or np.abs(small.astype(int) - color).max() > 8:
            raise UserError(f"a {name} image is decoded to wrong colors; reinstall simplejpeg, pillow and opencv")
    heic = "HEIC" if "HEIF" in formats() else "no HEIC (pip install 'dietcl[heic]')"
    return f"{', '.join(common)} decoded and resized; {heic}"


def _network() -> str:
    import torch

    from dietcl.models.network import build_network

    network = build_network(MODELS["micro"], 0)
    with torch.no_grad():
        features = network.features(torch.zeros(2, 3, 32, 32))
    if not bool(features.isfinite().all()):
        raise UserError("the micro encoder returns values that are not finite; reinstall torch")
    return f"micro encoder built and run, {sum(p.numel() for p in network.parameters()):,} parameters"


def _weights() -> str:
    from dietcl.models.checkpoints import load_weights, shipped
    from dietcl.models.network import build_network

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
    return f"{device}, {plural(torch.get_num_threads(), 'thread')}, about {rate:.0f} GFLOP/s in fp32"


def _precision() -> str:
    from dietcl.engine.device import cpu_has_bfloat16, pick_device, pick_precision

    device = pick_device()
    chosen = str(pick_precision("auto", device)).removeprefix("torch.")
    works = "works" if cpu_has_bfloat16() else "does not work"
    return f"{chosen} by default on {device}; bfloat16 {works} on the CPU"


def _fonts() -> str:
    return f"{plural(len(faces()), 'font face')} for the built-in streams"


def _figures() -> str:
    with figure_style():
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0, "text")
        figure.savefig(io.BytesIO(), format="png")
    found = cjk_fonts()
    return f"drawn; Chinese, Japanese and Korean text: {found[0] if found else 'no font, install Noto Sans CJK'}"


def _cache() -> str:
    folder = default_cache()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        raise UserError(f"{folder}: only {free / 2**20:.0f} MB are free; free some space or set DIETCL_CACHE")
    return f"{folder} is writable, {free / 2**30:.0f} GB free; runs go to {Path('runs').absolute()}"
