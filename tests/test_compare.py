"""`dietcl compare` as a stranger uses it: one table, skipped runs, and a failure that stops nobody else."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dietcl.methods import METHODS, describe
from dietcl.parallel import in_processes
from dietcl.report.runs import read_run
from test_cli import dietcl, small


def compare(manifest: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return dietcl("compare", *small(manifest), "--out", str(out), "--device", "cpu", *more)


def test_the_table_is_sorted_and_has_the_costs(blobs, tmp_path):
    asked = ("--methods", "naive,er,er:uniform,ncm,joint", "--seeds", "2", "--jobs", "2")
    result = compare(blobs, tmp_path / "out", *asked)
    assert result.returncode == 0, result.stderr
    rows = json.loads(compare(blobs, tmp_path / "out", *asked, "--json").stdout)
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
    compare(blobs, tmp_path, "--methods", "er")
    (tmp_path / "er-seed0/finished").unlink()
    (tmp_path / "er-seed0/checkpoint/progress.json").write_text("not JSON")
    result = compare(blobs, tmp_path, "--methods", "er,naive")
    assert result.returncode == 1
    assert "er, seed 0:" in result.stderr
    assert "er-seed0.failed.log" in result.stderr
    assert "the checkpoint is damaged" in (tmp_path / "er-seed0.failed.log").read_text()
    assert "naive" in result.stdout
    assert read_run(tmp_path / "naive-seed0").finished
    assert compare(blobs, tmp_path, "--methods", "er,naive", "--fresh").returncode == 0
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


def gone(group: int) -> bool:
    """Tell whether all processes of a group end within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
@pytest.mark.parametrize("whom", ["the whole group", "the parent alone"])
def test_ctrl_c_leaves_runs_that_go_on(blobs, tmp_path, whom):
    arguments = ["compare", *small(blobs, "--budget", "60"), "--out", str(tmp_path), "--methods", "er,naive"]
    # Started in the background a process may have been told to ignore Ctrl-C.
    (tmp_path / "script.py").write_text(
        "import signal\nfrom dietcl.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"if __name__ == '__main__':\n    raise SystemExit(main({arguments!r}))"
    )
    child = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    events = [tmp_path / name / "events.jsonl" for name in ("er-seed0", "naive-seed0")]
    deadline = time.monotonic() + 120
    while not any(path.exists() and "step_end" in path.read_text() for path in events) and time.monotonic() < deadline:
        time.sleep(0.05)
    if whom == "the parent alone":
        child.send_signal(signal.SIGINT)
    else:
        os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert gone(child.pid)
    again = dietcl(*arguments)
    assert again.returncode == 0, again.stderr
    assert all(read_run(tmp_path / f"{method}-seed0").finished for method in ("er", "naive"))


def _dies(item: int, report: object) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_a_killed_process_takes_only_its_own_item_along():
    outcomes = {outcome.number: outcome for outcome in in_processes(_dies, [1, 2, 3, 4], 2)}
    assert [outcomes[number].value for number in range(4)] == [1, None, 3, 4]
    assert "ended with code -9" in outcomes[1].failure


def test_a_device_that_is_not_there_is_refused_at_once(blobs, tmp_path):
    result = dietcl("compare", *small(blobs), "--out", str(tmp_path / "out"), "--device", "cuda:7")
    assert result.returncode == 2
    assert "--device cuda:7" in result.stderr
    assert not (tmp_path / "out").exists()


def test_runs_of_another_configuration_are_refused_at_once(blobs, tmp_path):
    compare(blobs, tmp_path, "--methods", "ncm")
    result = compare(blobs, tmp_path, "--methods", "acm,ncm", "--budget", "3")
    assert result.returncode == 2
    assert "ncm-seed0: holds a run with another budget" in result.stderr
    assert not (tmp_path / "acm-seed0").exists()


def test_tiny_gives_way_to_what_is_asked_for(blobs, tmp_path):
    arguments = ("--tiny", "--time-steps", "1", "--methods", "ncm", "--json")
    (row,) = json.loads(dietcl("compare", *small(blobs), "--out", str(tmp_path), *arguments).stdout)
    assert (row["budget"], row["due"]) == ("2 updates", 1)
