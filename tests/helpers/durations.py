"""A pytest plugin that writes what every test file costs: `pytest --durations-file tests/durations.json`.

Seconds of processor time of this process and of the children it waited for, since machines are shared; short and long
tests apart.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_KEY = "processor seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--durations-file", type=Path, help="write the processor seconds of every test file there (JSON)")


def pytest_configure(config: pytest.Config) -> None:
    """Collect where the tests are reported, not in the workers."""
    if config.getoption("--durations-file") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config.getoption("--durations-file")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let the last report of a test tell what it cost."""
    item.user_properties.append((_KEY, _seconds()))
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Replace the start by the difference."""
    outcome = yield
    if call.when == "teardown":
        cost = _seconds() - dict(item.user_properties)[_KEY]
        kind = "long" if item.get_closest_marker("long") else "short"
        outcome.get_result().user_properties = [(_KEY, (kind, cost))]  # type: ignore[attr-defined]


class _Collector:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.costs: dict[str, Counter[str]] = {"short": Counter(), "long": Counter()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            kind, cost = dict(report.user_properties)[_KEY]
            self.costs[kind][Path(report.nodeid.partition("::")[0]).name] += cost

    def pytest_sessionfinish(self) -> None:
        """Add the files of this session to those that were measured before."""
        measured = json.loads(self.path.read_text()) if self.path.exists() else {}
        for kind, costs in self.costs.items():
            files = measured.get(kind, {}).get("files", {}) | {name: round(cost, 1) for name, cost in costs.items()}
            measured[kind] = {"total": round(sum(files.values())), "files": dict(Counter(files).most_common())}
        self.path.write_text(json.dumps(measured, indent=1) + "\n")


def _seconds() -> float:
    return sum(os.times()[:4])
