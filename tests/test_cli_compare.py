"""`dietcl compare` as a stranger uses it: one table, skipped runs, and a failure that stops nobody else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dietcl.methods import METHODS, describe
from dietcl.process_pool import in_processes
from dietcl.report.runs import RunRecord
from helpers.runs import small

COMPARED = ("naive", "er", "er:uniform", "ncm", "joint")


@pytest.fixture(scope="module")
def compared(blobs, tmp_path_factory) -> Path:
    """A folder of five methods, compared by a command in a process of its own."""
    out = tmp_path_factory.mktemp("compared") / "out"
    asked = ["--methods", ",".join(COMPARED), "--seeds", "2", "--jobs", "2", "--out", str(out), "--device", "cpu"]
    command = [sys.executable, "-m", "dietcl", "compare", *small(blobs), *asked]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (out / "table.txt").write_text(result.stdout)
    return out


def finished(folder: Path) -> dict[str, int]:
    """Return when each run of a folder ended."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/finished")}


@pytest.mark.long
def test_the_table_is_sorted_and_has_the_costs(compare, compared, monkeypatch):
    before = finished(compared)
    assert (compared / "report.html").is_file()
    assert (compared / "figures/accuracy_mean.png").stat().st_size > 1000
    monkeypatch.setattr("dietcl.process_pool._CONTEXT", None)  # as all is done, no process is to be started
    result = compare(compared, "--methods", ",".join(COMPARED), "--seeds", "2", "--jobs", "1", "--json")
    assert "10 of 10 runs were finished before" in result.err
    rows = json.loads(result.out)
    assert finished(compared) == before
    assert {row["label"] for row in rows} == set(COMPARED)
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
    lines = (compared / "table.txt").read_text().splitlines()
    printed = [line.split()[0] for line in lines if re.match(r"\s*(naive|er|ncm|joint)\b", line)]
    assert printed == [row["label"] for row in rows]


@pytest.mark.long
def test_finished_runs_are_not_repeated(compare, compared, tmp_path):
    shutil.copytree(compared / "naive-seed0", tmp_path / "naive-seed0")
    before = finished(tmp_path)
    result = compare(tmp_path, "--methods", "naive,ncm", "--jobs", "1")
    assert result.code == 0
    assert "1 of 2 runs were finished before" in result.err
    after = finished(tmp_path)
    assert after == before | {"ncm-seed0": after["ncm-seed0"]}
    assert compare(tmp_path, "--methods", "naive", "--fresh").code == 0
    assert finished(tmp_path)["naive-seed0"] > before["naive-seed0"]


@pytest.mark.long
def test_a_run_that_fails_is_named_and_stops_no_other(compare, compared, tmp_path):
    shutil.copytree(compared / "er-seed0", tmp_path / "er-seed0")
    (tmp_path / "er-seed0/finished").unlink()
    for path in (tmp_path / "er-seed0/checkpoints").glob("0*"):
        path.write_text("nothing")
    result = compare(tmp_path, "--methods", "er,naive", "--jobs", "1")
    assert result.code == 1
    assert "er, seed 0:" in result.err
    assert "er-seed0.failed.log" in result.err
    assert "none of the checkpoints is intact" in (tmp_path / "er-seed0.failed.log").read_text()
    assert "naive" in result.out
    assert RunRecord.read(tmp_path / "naive-seed0").finished
    assert compare(tmp_path, "--methods", "er", "--fresh").code == 0
    assert not (tmp_path / "er-seed0.failed.log").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "dietlc"], "did you mean dietcl"),
        (["--methods", "er:uniforn"], "no such variant"),
        (["--methods", ","], "name at least one"),
        (["--seeds", "0"], "--seeds 0: give at least 1"),
        (["--jobs", "0"], "--jobs 0: give at least 1"),
        (["--budget", "many"], '--budget "many"'),
        (["--device", "cuda:7", "--jobs", "2"], "--device cuda:7"),
    ],
)
def test_wrong_input_gets_one_sentence(compare, tmp_path, arguments, sentence):
    result = compare(tmp_path / "out", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_runs_of_another_configuration_are_refused_at_once(compare, compared):
    result = compare(compared, "--methods", "acm,ncm", "--preset", "micro", "--budget", "3")
    assert result.code == 2
    assert "ncm-seed0: holds a run with another budget" in result.err
    assert not (compared / "acm-seed0").exists()


def test_a_report_of_somebody_else_is_not_overwritten(compare, tmp_path):
    (tmp_path / "report.html").write_text("of last year")
    result = compare(tmp_path, "--methods", "ncm")
    assert result.code == 2
    assert "holds a report.html that is not about runs in this folder" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "of last year"


def test_tiny_gives_way_to_what_is_asked_for(compare, tmp_path):
    options = ("--tiny", "--time-steps", "1", "--methods", "ncm", "--preset", "micro", "--json")
    (row,) = json.loads(compare(tmp_path, *options).out)
    assert (row["budget"], row["due"]) == ("2 updates", 1)


@pytest.mark.long
def test_every_method_and_variant_survives_two_time_steps(dietcl, tmp_path):
    result = dietcl("compare", "--methods", "all", "--tiny", "--out", str(tmp_path), "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    names = {name for entry in describe() for name in (entry.name, *(f"{entry.name}:{v}" for v in entry.variants))}
    assert {row["label"] for row in rows} == names >= set(METHODS)
    assert all(row["complete"] and row["time_steps"] >= 2 and row["learned"] == 2 for row in rows)


# Processes.


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


def gone(group: int) -> bool:
    """Tell whether all processes of a group end within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def steps_done(folder: Path) -> int:
    """Return how many time steps all runs together have learned."""
    return sum(path.read_text().count('"step_end"') for path in folder.glob("*/events.jsonl"))


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_ctrl_c_leaves_runs_that_go_on(dietcl, blobs, tmp_path):
    settings = [*small(blobs, "--budget", "15", "--time-steps", "6"), "--methods", "er,naive", "--jobs", "2"]
    arguments = ["compare", *settings, "--out", str(tmp_path), "--device", "cpu"]
    # Started in the background a process may have been told to ignore Ctrl-C.
    (tmp_path / "script.py").write_text(
        "import signal\nfrom dietcl.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"if __name__ == '__main__':\n    raise SystemExit(main({arguments!r}))"
    )
    for is_whole_group in (True, False):
        before = steps_done(tmp_path)
        child = subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py")],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 120
        while steps_done(tmp_path) <= before and time.monotonic() < deadline:
            time.sleep(0.02)
        if is_whole_group:
            os.killpg(child.pid, signal.SIGINT)
        else:  # the parent alone, and as a batch queue does it
            child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=60)
        assert child.returncode == 75, said
        assert "run the same command to resume" in said
        assert "Traceback" not in said
        assert gone(child.pid)
    again = dietcl(*arguments)
    assert again.code == 0, again.err
    assert all(RunRecord.read(tmp_path / f"{method}-seed0").finished for method in ("er", "naive"))


def _dies(item: int, report: object) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_a_killed_process_takes_only_its_own_item_along():
    outcomes = {outcome.number: outcome for outcome in in_processes(_dies, [1, 2, 3, 4], 2)}
    assert [outcomes[number].value for number in range(4)] == [1, None, 3, 4]
    assert "ended with code -9" in outcomes[1].failure
