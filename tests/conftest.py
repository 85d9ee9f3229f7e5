"""Shared fixtures: one torch thread, a cache of the session's own, the blob stream, a run on it, and commands."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dietcl.cli.main import main
from dietcl.config import RunConfig
from dietcl.streams import packer
from helpers.pack_sources import make_source
from helpers.runs import Said, outcome, run, small
from helpers.tiny import tiny_config, write_blobs

pytest_plugins = ["helpers.durations"]
torch.set_num_threads(1)
# Some virtual machines announce AMX and stop a process that uses it: without it, bfloat16 can be tested there, too.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Where there are as many workers as cores, each has its own, so that what it starts does not take two and get none.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    if int(os.environ["PYTEST_XDIST_WORKER_COUNT"]) >= len(cores):
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
# What a shell starts in the background ignores Ctrl-C, which some tests are about.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests away from the user's cache; rendered streams and costs are shared by all workers of this session."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ["DIETCL_CACHE"] = folder.name


@pytest.fixture(scope="session")
def cache() -> Path:
    """The cache of this session."""
    return Path(os.environ["DIETCL_CACHE"])


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


@pytest.fixture(scope="session")
def config(blobs: Path) -> RunConfig:
    """A run of three time steps of three updates, two of them joint."""
    return tiny_config(blobs, "dietcl", budget="3", threshold="2.0")


@pytest.fixture(scope="session")
def uninterrupted(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What that run leaves behind if nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    run(config, folder)
    return outcome(folder)


@pytest.fixture
def dietcl(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Carry out commands in this process, which has torch at hand; the runs get processes of their own all the same.

    Figures are drawn but not rendered, which takes longer than the runs: see test_cli_compare for real ones.
    """
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path: Image.new("RGB", (4, 3)).save(path))

    def command(*arguments: str) -> Said:
        code = main([*arguments])
        return Said(code, *capfd.readouterr())

    return command


@pytest.fixture
def compare(dietcl: Callable[..., Said], blobs: Path) -> Callable[..., Said]:
    """Compare methods on the blobs."""
    return lambda out, *more: dietcl("compare", *small(blobs), "--out", str(out), "--device", "cpu", *more)
