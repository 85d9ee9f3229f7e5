"""What preparations leave behind, and the command run in this process, for the tests of data."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from dietcl.cli.main import main
from dietcl.streams.quarantine import QUARANTINE
from dietcl.streams.sources.registry import Prepared


def quarantine(out: Path) -> list[list[str]]:
    """File, row and problem of everything that was left out."""
    with (out / QUARANTINE).open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["file", "row", "problem"]
    return lines


def rows(prepared: Prepared) -> dict[str, list[Any]]:
    """The columns of the manifest."""
    found: dict[str, list[Any]] = pq.read_table(prepared.manifest).to_pydict()
    return found


def dietcl(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """Run the command here; returns code, out and err."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    return SimpleNamespace(code=code, out=out, err=err, said=" ".join((out + err).split()))
