"""Shared fixtures: one torch thread, a cache of the session's own, and the blob stream."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dietcl.streams import packer
from packs import make_source
from tiny import write_blobs

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache() -> Iterator[Path]:
    """Keep tests away from the user's cache; rendered streams and costs are shared within the session."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DIETCL_CACHE"] = folder
        yield Path(folder)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Put back the thread that a command of this process may have multiplied: others round otherwise."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of the blob stream."""
    return write_blobs(tmp_path_factory.mktemp("blobs"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "SHARD", 7)
    monkeypatch.setattr(packer, "_AT_ONCE", 3)
