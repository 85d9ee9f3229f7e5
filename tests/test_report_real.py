"""The report on runs that the engine itself made: two methods, two seeds each."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dietcl.report import comparison_rows, paired_rows, read_run, read_runs, write_report
from dietcl.report.groups import group_runs
from dietcl.run import execute
from helpers.fake_runs import write_run
from helpers.tiny import tiny_config


@pytest.fixture(scope="module")
def folders(blobs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("runs")
    made = []
    for method in ("er", "naive"):
        for seed in (0, 1):
            made.append(home / f"{method}-{seed}")
            config = tiny_config(blobs, method, budget="2", seed=seed)
            execute(config, made[-1], device="cpu", progress=lambda t, fraction: None)
    return made


def test_seeds_are_grouped_with_their_spread_and_paired(folders: list[Path]) -> None:
    runs = read_runs(folders)
    assert len({run.config["stream_identity"] for run in runs}) == 2  # one of each seed
    groups = group_runs(runs)
    assert [[entry.label for entry in group.entries] for group in groups] == [
        ["er · seed 0", "er · seed 1"],
        ["naive · seed 0", "naive · seed 1"],
    ]
    for row in comparison_rows(runs):
        assert row["seeds"] == [0, 1]
        assert row["final_mean_spread"] is not None
    rows = paired_rows(runs)
    assert {(row["a"], row["b"], tuple(row["seeds"])) for row in rows} == {("er", "naive", (0, 1))}


def test_the_page_says_so(folders: list[Path], blobs: Path, tmp_path: Path) -> None:
    text = write_report(folders, tmp_path).read_text(encoding="utf-8")
    assert f"er and naive on {blobs.parent.name}" in text
    assert "Differences, seed by seed" in text
    assert "standard deviation over seeds" in text
    assert "interrupted" not in text


def test_a_short_run_is_complete(blobs: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(blobs, "er", budget="1"), first_time_steps=2)
    execute(config, tmp_path / "run", device="cpu", progress=lambda t, fraction: None)
    (tmp_path / "run" / "finished").unlink()  # as if stopped when all was measured
    run = read_run(tmp_path / "run")
    assert (run.due, run.stopped) == (2, None)


def test_a_run_over_the_union_of_all_time_steps_is_complete_with_one_row(blobs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "joint"
    execute(tiny_config(blobs, "joint", budget="2"), folder, device="cpu", progress=lambda t, fraction: None)
    (folder / "finished").unlink()
    run = read_run(folder)
    row = comparison_rows([run])[0]
    assert (run.stopped, row["complete"], row["learned"]) == (None, True, run.summary.time_steps)
    assert run.receipts is not None
    assert [(step.t, step.budget) for step in run.receipts.steps] == [(3, 3 * 24)]
    assert row["spent"] == run.receipts.steps[0].spent / 72
    assert row["state"] == run.of("step_end")[-1]["state_bytes"] / 1e6
    assert (row["final_mean"], row["average_mean"]) == (run.summary.final_mean, None)
    assert "A diamond was tested only once" in write_report([folder], tmp_path / "out").read_text(encoding="utf-8")


def test_made_up_runs_have_the_keys_of_real_ones(folders: list[Path], tmp_path: Path) -> None:
    real, made_up = (
        json.loads((folder / "config.json").read_text())
        for folder in (folders[0], write_run(tmp_path / "run", method="er", time_steps=2))
    )
    assert real.keys() == made_up.keys()
