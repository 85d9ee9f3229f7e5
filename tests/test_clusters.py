"""Runs on clusters: submitit with its local executor in the place of SLURM, and a Ray on this machine."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
from safetensors.numpy import load_file

from dietcl import clusters
from dietcl.clusters import on_ray, on_slurm, slurm_executor, steps_finished, work_pool
from dietcl.errors import UserError
from dietcl.process_pool import Outcome
from dietcl.report.runs import RunRecord
from helpers.runs import small
from helpers.tiny import tiny_config
from reproduction.run_cache import Cell, RunCache, folder_of, run_cells

LONG = ("--budget", "15", "--time-steps", "6")
local_executor = partial(slurm_executor, cluster="local")


@pytest.fixture(scope="module")
def connected() -> Iterator[None]:
    """Connect to a Ray of two cores that finds the functions of this file, and let jobs find them too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture
def there(connected, monkeypatch):
    """Let jobs run on this machine, and do not wait for them for long."""
    monkeypatch.setattr(clusters, "slurm_executor", local_executor)
    monkeypatch.setattr(clusters, "_LATE", 0.0)
    monkeypatch.setattr(clusters, "_GRACE", 1.0)
    monkeypatch.setattr(clusters, "_SECONDS", 0.2)


def do_all(
    on, work, items, folder, progress=lambda number, done: None, progress_of=lambda item: 0, jobs=None
) -> dict[int, Outcome]:
    """Do work on some items, and return what became of each."""
    if on == "slurm":
        outcomes = on_slurm(work, items, progress, executor=local_executor(folder, {}, jobs), progress_of=progress_of)
    else:
        outcomes = on_ray(work, items, progress, options={}, jobs=jobs, progress_of=progress_of, notify=print)
    return {outcome.number: outcome for outcome in outcomes}


def assert_same_bits(one: Path, other: Path) -> None:
    """Two runs counted the same and ended with the same weights."""
    mine, theirs = (
        {**np.load(folder / "counts.npz"), **load_file(folder / "model.safetensors")} for folder in (one, other)
    )
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def submitted(out: Path) -> list[str]:
    """Return the jobs that were ever submitted for a comparison."""
    return [path.name.removesuffix("_submitted.pkl") for path in out.glob(".jobs/*_submitted.pkl")]


@pytest.mark.long
def test_cells_of_a_study_count_the_same_wherever_they_are_carried_out(there, blobs, tmp_path):
    config = replace(tiny_config(blobs, "er", budget="2"), first_time_steps=2)
    cells = [Cell(f"seed {seed}", replace(config, seed=seed), str(seed)) for seed in (0, 1)]
    kept = {}
    for on in ("local", "slurm", "ray"):
        store, scratch = RunCache(tmp_path / f"{on}.jsonl"), tmp_path / on
        pool = work_pool(
            on,
            "",
            2,
            folder=scratch / ".jobs",
            local_jobs=1,
            progress_of=lambda cell, scratch=scratch: steps_finished(folder_of(cell, scratch)),
            notify=print,
        )
        run_cells(cells, store, scratch, pool, lambda done, total: None)
        kept[on] = sorted(store.path.read_text().splitlines())
    assert len(kept["local"]) == 2
    assert kept["slurm"] == kept["ray"] == kept["local"]


@pytest.mark.long
def test_runs_end_in_the_same_bits_wherever_they_are_carried_out(there, compare, dietcl, blobs, tmp_path):
    for method in ("er", "naive"):
        here = ["--method", method, "--device", "cpu", "--threads", "1", "--out", str(tmp_path / "here" / method)]
        assert dietcl("train", "--method", "dietcl", *small(blobs), *here).code == 0
    for on in ("local", "slurm", "ray"):
        result = compare(tmp_path / on, "--methods", "er,naive", "--on", on, "--jobs", "2")
        assert result.code == 0, result.err
        for method in ("er", "naive"):
            assert_same_bits(tmp_path / "here" / method, tmp_path / on / f"{method}-seed0")
    assert len(submitted(tmp_path / "slurm")) == 2

    again = compare(tmp_path / "slurm", "--methods", "er,naive", "--on", "slurm")
    assert again.code == 0
    assert "2 of 2 runs were finished before" in again.err
    assert len(submitted(tmp_path / "slurm")) == 2


@pytest.mark.long
@pytest.mark.parametrize("on", ["slurm", "ray"])
def test_a_run_that_fails_is_shown_with_its_log_and_stops_no_other(there, compare, tmp_path, on):
    (tmp_path / "er-seed0/.counts.npz.1").mkdir(parents=True)  # in the way of removing what a killed process left
    result = compare(tmp_path, "--methods", "er,ncm", "--on", on)
    log = tmp_path / "er-seed0.failed.log"
    assert result.code == 1
    assert "er, seed 0: IsADirectoryError" in result.err
    assert f"(log: {log})" in result.err
    assert "Traceback" in log.read_text()
    assert RunRecord.read(tmp_path / "ncm-seed0").finished
    if on == "slurm":
        job = next(job for job in submitted(tmp_path) if job in log.read_text())
        printed = tmp_path / f".jobs/{job}_0_log.out"
        assert str(printed) in log.read_text()
        assert "Job completed" in printed.read_text()


def _dies(item: int, report: object) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.long
@pytest.mark.parametrize(("on", "words"), [("slurm", "the job ended as FINISHED without"), ("ray", "left no result")])
def test_a_killed_job_takes_only_its_own_item_along(there, tmp_path, on, words):
    outcomes = do_all(on, _dies, [1, 2], tmp_path)
    assert [outcomes[number].value for number in range(2)] == [1, None]
    assert words in outcomes[1].failure


def _meets(item: Path, report: object) -> None:
    item.touch()
    while len(list(item.parent.glob("met*"))) < 2:
        time.sleep(0.05)


def _is_alone(item: Path, report: object) -> None:
    item.mkdir()
    time.sleep(0.2)
    item.rmdir()


@pytest.mark.long
def test_ray_has_as_many_under_way_as_wanted(there, tmp_path):
    two = do_all("ray", _meets, [tmp_path / "met0", tmp_path / "met1"], tmp_path, jobs=2)
    one = do_all("ray", _is_alone, [tmp_path / "alone"] * 3, tmp_path, jobs=1)
    assert not any(outcome.failure for outcome in (*two.values(), *one.values()))


def _waits(item: Path, report: object) -> str:
    """Be halfway until somebody has seen it."""
    item.write_text("0.5")
    while item.read_text() == "0.5":
        time.sleep(0.05)
    return item.read_text()


def _finished_steps(item: Path) -> float:
    return float(item.read_text() or 0) if item.exists() else 0


@pytest.mark.long
@pytest.mark.parametrize("on", ["slurm", "ray"])
def test_progress_is_read_from_the_shared_folder(there, tmp_path, on):
    def progress(number: int, done: float) -> None:
        if done == 0.5:
            (tmp_path / "item").write_text("0.75")

    outcomes = do_all(on, _waits, [tmp_path / "item"], tmp_path / "jobs", progress, _finished_steps)
    assert outcomes[0].value == "0.75"


def _sleeps(item: Path, report: object) -> None:
    item.write_text(str(os.getpid()))
    time.sleep(600)


@pytest.mark.long
@pytest.mark.parametrize("on", ["slurm", "ray"])
def test_ctrl_c_cancels_what_is_under_way(there, tmp_path, on):
    def progress(number: int, done: float) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do_all(on, _sleeps, [tmp_path / "item"], tmp_path / "jobs", progress, _finished_steps)
    process = int((tmp_path / "item").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.long
def test_a_preempted_run_goes_on_even_if_it_was_to_start_over(there, compare, dietcl, blobs, tmp_path):
    journal = tmp_path / "slurm/er-seed0/events.jsonl"
    before: list[str] = []

    def preempt() -> None:
        """Send the job what SLURM sends it, as soon as the first time step is learned and saved for certain."""
        while (text := journal.read_text() if journal.exists() else "").count('"step_end"') < 2:
            time.sleep(0.02)
        before.append(text[: text.index("\n", text.index('"step_end"'))])
        (controller,) = submitted(tmp_path / "slurm")
        (job,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        os.kill(int(job), signal.SIGUSR2)

    thread = threading.Thread(target=preempt, daemon=True)
    thread.start()
    result = compare(tmp_path / "slurm", *LONG, "--methods", "er", "--on", "slurm", "--fresh")
    assert result.code == 0, result.err
    thread.join()
    (job,) = submitted(tmp_path / "slurm")
    assert "Requeued job" in (tmp_path / f"slurm/.jobs/{job}_0_log.out").read_text()
    assert journal.read_text().startswith(before[0])  # with the seconds that it took
    here = ["--method", "er", "--device", "cpu", "--threads", "1", "--out", str(tmp_path / "here")]
    assert dietcl("train", "--method", "dietcl", *small(blobs, *LONG), *here).code == 0
    assert_same_bits(tmp_path / "slurm/er-seed0", tmp_path / "here")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cluster", "partition=gpu"], "--cluster partition=gpu: is for --on slurm and --on ray"),
        (["--on", "slurm", "--cluster", "gpu"], "'gpu' is not NAME=VALUE"),
        (["--on", "slurm", "--cluster", "partition="], "'partition=' is not NAME=VALUE"),
        (["--on", "slurm", "--cluster", "num_gpus=1"], "--on slurm has no num_gpus; choose from partition, account"),
        (["--on", "slurm", "--cluster", "qos=low,timeout_min=2h"], "timeout_min=2h: give a whole number above 0"),
        (["--on", "ray", "--cluster", "=3"], "'=3' is not NAME=VALUE"),
        (["--on", "ray", "--cluster", "num_gpus=-1"], "num_gpus=-1: give a number above 0"),
        (
            ["--on", "ray", "--cluster", "num_gpus=1.5"],
            "num_gpus=1.5: Ray gives out parts of one GPU, or complete ones",
        ),
        (["--on", "ray", "--cluster", "partition=gpu"], "choose from address, num_cpus, num_gpus"),
        (["--on", "slurm"], "sbatch not found"),
    ],
)
def test_wrong_input_gets_one_sentence(compare, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = compare(tmp_path / "out", "--methods", "ncm", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("on", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_named_with_its_extra(compare, tmp_path, monkeypatch, on, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = compare(tmp_path / "out", "--methods", "ncm", "--on", on)
    assert result.code == 2
    assert f'--on {on}: {package} is not installed; pip install "dietcl[{on}]"' in result.err
    assert not (tmp_path / "out").exists()


def test_sigterm_stays_ours_under_ray(monkeypatch):
    asked, before = [], signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    monkeypatch.setattr(ray, "init", lambda *a, **options: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    try:
        clusters._connect(ray, None)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [signal.SIGTERM]


def test_no_ray_where_it_was_said_to_be():
    with pytest.raises(UserError, match=r"no Ray is reached at 127.0.0.1:1 \(Connection refused\)"):
        clusters._connect(ray, "127.0.0.1:1")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put scripts in the place of the commands of SLURM."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def write(**commands: str) -> None:
        for name, text in commands.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    return write


def test_what_slurm_is_asked_for_and_what_it_refuses(compare, slurm, tmp_path):
    asked = tmp_path / "asked"
    slurm(srun="", sbatch=f'echo "$(< $1)" > {asked}; echo "no such partition" >&2; exit 1')
    options = ["--on", "slurm", "--cluster", "partition=gpuu,timeout_min=120,gpus_per_node=1", "--jobs", "2"]
    result = compare(tmp_path / "out", "--methods", "ncm", "--seeds", "3", *options)
    assert result.code == 2
    assert "--on slurm: the jobs were refused: no such partition" in result.err
    lines = asked.read_text().splitlines()
    for line in ("partition=gpuu", "time=120", "gpus-per-node=1", "array=0-2%2", "job-name=dietcl"):
        assert f"#SBATCH --{line}" in lines


def test_jobs_that_a_killed_command_left_are_not_doubled(compare, slurm, tmp_path):
    slurm(srun="", sbatch="exit 1", sacct='echo "JobID|State|NodeList"; echo "7_0|RUNNING|a"; echo "7_1|FAILED|b"')
    (tmp_path / "out/.jobs").mkdir(parents=True)
    for name in ("7_0_submitted.pkl", "7_1_submitted.pkl"):
        (tmp_path / "out/.jobs" / name).touch()
    result = compare(tmp_path / "out", "--methods", "ncm", "--on", "slurm")
    assert result.code == 2
    assert "jobs of an earlier command are still there" in result.err
    assert result.err.endswith("scancel 7_0\n")
