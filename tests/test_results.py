"""RESULTS.md and results/: every number is what the committed counts say, recomputed here by other means."""

import json
import re
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import pytest

from dietcl.experiments.show.results import studies, write_results
from dietcl.experiments.show.sheets import marks
from dietcl.experiments.study import Study
from dietcl.experiments.suites import FROZEN, SUITES, Point
from dietcl.parallel import in_processes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SETUPS = [study.name for study in studies(RESULTS)]


def counts(name: str) -> dict[str, dict]:
    """Return the committed lines of a setup by their keys."""
    lines = (json.loads(line) for line in (RESULTS / name / "cells.jsonl").read_text().splitlines())
    return {line["key"]: line for line in lines}


def final_accuracy(line: dict) -> float:
    """Return A(T) in percent: the mean over time steps of origin that have test images."""
    last = list(zip(line["correct"][-1], line["count"][-1], strict=True))
    return 100 * fmean(right / count for right, count in last if count)


def published(name: str) -> list[dict]:
    """Return every suite of a setup that has been written, as its JSON."""
    return [json.loads(path.read_text()) for path in (RESULTS / name / f"{s}.json" for s in SUITES) if path.is_file()]


def block(name: str) -> str:
    """Return what stands between marks in RESULTS.md."""
    begin, end = marks(name)
    return (ROOT / "RESULTS.md").read_text().partition(begin)[2].partition(end)[0]


def test_results_md_is_what_the_command_writes(tmp_path):
    copy = tmp_path / "RESULTS.md"
    copy.write_text((ROOT / "RESULTS.md").read_text())
    write_results(copy, RESULTS)
    assert copy.read_text() == (ROOT / "RESULTS.md").read_text()


@pytest.mark.parametrize("name", SETUPS)
def test_counts_are_counts(name):
    for line in counts(name).values():
        for right, count in zip(line["correct"], line["count"], strict=True):
            assert all(0 <= r <= c and isinstance(r, int) for r, c in zip(right, count, strict=True))


@pytest.mark.parametrize("name", SETUPS)
def test_every_published_accuracy_is_recomputed_from_the_counts(name):
    lines = counts(name)
    assert published(name)
    for suite in published(name):
        for row in suite["rows"]:
            assert row["keys"]
            for key, value in zip(row["keys"], row["A(T)"], strict=True):
                assert 100 * value == pytest.approx(final_accuracy(lines[key]), abs=1e-9), key


@pytest.mark.parametrize("name", SETUPS)
def test_every_final_accuracy_in_results_md_is_recomputed_from_the_counts(name):
    lines, text = counts(name), block(name)
    (table,) = (suite for suite in published(name) if suite["suite"] == "table1")
    for row in table["rows"]:
        values = [final_accuracy(lines[key]) for key in row["keys"]]
        wanted = f"| {row['arm']} | {fmean(values):.1f} ± {stdev(values):.1f} |"
        assert wanted in text, wanted
    rows = re.findall(r"^\| ([^|]+) \| \d+\.\d ± ", text, re.MULTILINE)
    assert {row["arm"] for row in table["rows"]} <= set(rows)


def test_a_cheap_cell_comes_out_to_the_digit_again(tmp_path):
    study = Study("glyphs", RESULTS)
    cell = study.cell(FROZEN, Point(), 0)
    again = Study("glyphs", tmp_path, tmp_path, carry=partial(in_processes, jobs=1))
    again._run([cell], again.cells, "again")
    (line,) = (json.loads(line) for line in again.cells.path.read_text().splitlines())
    kept = counts("glyphs")[cell.key]
    assert line["hash"] == kept["hash"]
    assert line["correct"] == kept["correct"]
    assert line["count"] == kept["count"]
    assert line["facts"]["ridge"] == kept["facts"]["ridge"]
