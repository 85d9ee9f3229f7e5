"""`dietcl compare` as a stranger uses it: one table, skipped runs, and a failure that stops nobody else."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dietcl.methods import METHODS, describe
from dietcl.parallel import in_processes
from dietcl.report.runs import read_run
from test_cli import dietcl, small


def compare(manifest: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return dietcl("compare", *small(manifest), "--out", str(out), "--device", "cpu", *more)


def test_the_table_is_sorted_and_has_the_costs(blobs, tmp_path):
    result = compare(
        blobs, tmp_path / "out", "--methods", "naive,er,er:uniform,ncm,joint", "--seeds", "2", "--jobs", "2"
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(
        compare(blobs, tmp_path / "out", "--methods", "naive,er,er:uniform,ncm,joint", "--seeds", "2", "--json").stdout
    )
    assert {row["label"] for row in rows} == {"naive", "er", "er:uniform", "ncm", "joint"}
    accuracies = [row["final_mean"] for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    for row in rows:
        assert len(row["runs"]) == 2
        assert 0 < row["spent"] <= 1
        assert sum(row["purposes"].values()) == pytest.approx(1)
        assert row["seconds"] > 0
        assert row["state"] is not None
    ncm = next(row for row in rows if row["label"] == "ncm")
    assert ncm["purposes"] == {"features": 1}
    printed = [line.split()[0] for line in result.stdout.splitlines() if re.match(r"\s*(naive|er|ncm|joint)\b", line)]
    assert printed == [row["label"] for row in rows]
    assert (tmp_path / "out/report.html").is_file()
    assert (tmp_path / "out/figures/accuracy_mean.png").is_file()


def test_finished_runs_are_not_repeated(blobs, tmp_path):
    compare(blobs, tmp_path, "--methods", "naive")
    before = (tmp_path / "naive-seed0/finished").stat().st_mtime_ns
    assert compare(blobs, tmp_path, "--methods", "naive,ncm").returncode == 0
    assert (tmp_path / "naive-seed0/finished").stat().st_mtime_ns == before
    assert compare(blobs, tmp_path, "--methods", "naive", "--fresh").returncode == 0
    assert (tmp_path / "naive-seed0/finished").stat().st_mtime_ns > before


def test_a_run_that_fails_is_named_and_stops_no_other(blobs, tmp_path):
    (tmp_path / "er-seed0").mkdir()
    (tmp_path / "er-seed0/config.json").write_text("not JSON")
    result = compare(blobs, tmp_path, "--methods", "er,naive")
    assert result.returncode == 1
    assert "er, seed 0:" in result.stderr
    assert "er-seed0.failed.log" in result.stderr
    assert "not readable as JSON" in (tmp_path / "er-seed0.failed.log").read_text()
    assert "naive" in result.stdout
    assert read_run(tmp_path / "naive-seed0").finished


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "dietlc"], "did you mean dietcl"),
        (["--methods", "er:uniforn"], "no such variant"),
        (["--methods", ","], "name at least one"),
        (["--seeds", "0"], "--seeds 0: give at least 1"),
        (["--jobs", "0"], "--jobs 0: give at least 1"),
        (["--budget", "many"], "--budget many"),
    ],
)
def test_wrong_input_gets_one_sentence(blobs, tmp_path, arguments, sentence):
    result = compare(blobs, tmp_path / "out", *arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_every_method_and_variant_survives_two_time_steps(tmp_path):
    result = dietcl("compare", "--methods", "all", "--tiny", "--out", str(tmp_path), "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    names = {name for entry in describe() for name in (entry.name, *(f"{entry.name}:{v}" for v in entry.variants))}
    assert {row["label"] for row in rows} == names >= set(METHODS)
    assert all(row["complete"] and row["time_steps"] >= 2 and row["learned"] == 2 for row in rows)


def _half(item: int, report: object) -> float:
    if item == 3:
        raise ValueError("three has no half")
    report(0.5)
    return item / 2


def test_processes_report_what_became_of_every_item():
    seen = []
    outcomes = {
        o.number: o for o in in_processes(_half, [1, 3, 5], 2, lambda number, done: seen.append((number, done)))
    }
    assert {number: outcome.value for number, outcome in outcomes.items()} == {0: 0.5, 1: None, 2: 2.5}
    assert "three has no half" in outcomes[1].failure
    assert sorted(seen) == [(0, 0.5), (2, 0.5)]


def test_ctrl_c_leaves_runs_that_go_on(blobs, tmp_path):
    import os
    import signal
    import time

    arguments = ["compare", *small(blobs, "--budget", "200"), "--out", str(tmp_path), "--methods", "er,naive"]
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"from dietcl.cli import main; raise SystemExit(main({arguments!r}))",
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    events = [tmp_path / name / "events.jsonl" for name in ("er-seed0", "naive-seed0")]
    deadline = time.monotonic() + 120
    while not any(path.exists() and "update" in path.read_text() for path in events) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
