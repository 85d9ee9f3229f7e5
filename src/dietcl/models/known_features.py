"""Which features may be taken from the cache: those of the same weights, pooling, image size and arithmetic."""

import hashlib
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

import torch

from dietcl.files import default_cache
from dietcl.models.network import Network
from dietcl.models.presets import OWN_PATCHES
from dietcl.streams.feature_lookup import FeatureLookup
from dietcl.streams.lazy_images import View

_FORMAT = 1  # of the features; a change to how images are decoded or resized must raise it


def feature_folder() -> Path:
    """Return where this machine keeps features."""
    folder = default_cache() / "features"
    # Machines of a cluster share the cache folder, and a file that one removes ends another that has mapped it.
    is_cluster = any(name in os.environ for name in ("SLURM_JOB_ID", "RAY_RAYLET_PID"))
    return folder / socket.gethostname() if is_cluster else folder


def feature_lookup(network: Network, limit: int, precision: torch.dtype, view: View) -> FeatureLookup | None:
    """Return the cache of a frozen encoder's features; our own small encoders compute about as fast as it reads."""
    if network.config.encoder in OWN_PATCHES:
        return None
    return FeatureLookup(feature_folder(), _identity(network, precision, view), network.encoder.dim, limit, view)


def _identity(network: Network, precision: torch.dtype, view: View) -> str:
    """Return a hash of everything but the image that features depend on."""
    config, encoder = network.config, network.encoder
    facts = [config.encoder, config.pool, config.image_size, asdict(config.resizing), view, str(precision)]
    pixels = [list(network.pixel_mean), list(network.pixel_std)]
    found = hashlib.sha256(json.dumps([_FORMAT, *facts, *pixels]).encode())
    for name, value in encoder.state_dict().items():
        found.update(name.encode())
        found.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]
