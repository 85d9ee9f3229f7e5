"""From run folders to tables: what is read, what is grouped, what is compared."""

import io
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dietcl.errors import UserError
from dietcl.metrics import paired_difference, summarize
from dietcl.report.groups import group_runs
from dietcl.report.page import write_report
from dietcl.report.runs import RunRecord, find_runs, read_runs
from dietcl.report.tables import comparison_rows, comparison_table, paired_rows
from helpers.fake_runs import write_run


def _change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two methods with three seeds each."""
    folder = tmp_path_factory.mktemp("sweep")
    return [
        write_run(folder / f"{method}-{seed}", method=method, seed=seed, time_steps=5)
        for method in ("dietcl", "er")
        for seed in range(3)
    ]


def test_a_run_folder_is_read_whole(tmp_path: Path) -> None:
    run = RunRecord.read(write_run(tmp_path / "run", seed=3, time_steps=5))
    with np.load(tmp_path / "run" / "counts.npz") as counts:
        expected = summarize(counts["correct"], counts["count"], counts["loss_sum"])
    assert run.summary.final_mean == expected.final_mean
    assert (run.method, run.stream, run.budget, run.seed) == ("dietcl", "glyphs", "20 updates", 3)
    assert run.stopped is None
    assert run.seconds == 5 * 2.5
    assert run.receipts is not None
    assert run.receipts.passes == 5 * (384 + 512 + 320)
    assert len(run.samples.label) == len(run.samples.images) == 10


@pytest.mark.parametrize(
    ("budget", "written"), [("1e3", "1000 updates"), ("2e15flops", "2e15flops"), ("120s", "2min"), ("odd", "odd")]
)
def test_stream_and_budget_are_named_for_readers(tmp_path: Path, budget: str, written: str) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    (folder / "config.json").write_text(json.dumps({"method": "er", "stream": "data/fruit.parquet", "budget": budget}))
    run = RunRecord.read(folder)
    assert (run.method, run.stream, run.budget, run.seed) == ("er", "fruit", written, None)
    _change(folder, stream="data/photos/manifest.parquet")
    assert RunRecord.read(folder).stream == "photos"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", r"config\.json: not valid JSON"),
        ("config.json", "[]", r"config\.json: not a JSON object"),
        ("receipts.json", '{"unit": "passes"}', r"receipts\.json: not the receipts of a run"),
        ("events.jsonl", '{"event": "update", "t": 1}\n', r"events\.jsonl: line 1 \(update\) lacks loss, spent"),
        ("events.jsonl", 'oops\n{"event": "step_end", "t": 1}\n', r"events\.jsonl: line 1 is not valid JSON"),
        ("counts.npz", "PK", r"counts\.npz: not a readable \.npz file"),
        ("samples.npz", "no zip", r"samples\.npz: not a readable \.npz file"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=message):
        RunRecord.read(folder)


def test_arrays_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    np.savez(folder / "counts.npz", correct=[[2]], count=[[1]], loss_sum=[[0.0]])
    with pytest.raises(UserError, match="correct must lie between 0 and count"):
        RunRecord.read(folder)
    np.savez(folder / "counts.npz", correct=[[1]])
    with pytest.raises(UserError, match="'count' is missing"):
        RunRecord.read(folder)
    folder = write_run(tmp_path / "other", time_steps=2)
    np.savez(folder / "samples.npz", images=np.zeros((2, 4, 4, 3), np.uint8), label=["a"], predicted=["a"], t=[1])
    with pytest.raises(UserError, match='"label" has 1 entries for 2 images'):
        RunRecord.read(folder)


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name at least one run folder"):
        write_report([], tmp_path / "out")
    with pytest.raises(UserError, match=r"missing: no such folder"):
        write_report([tmp_path / "missing"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: not a run folder"):
        write_report([tmp_path / "empty"], tmp_path / "out")
    (tmp_path / "empty" / "config.json").write_text('{"pretraining": {}}')
    with pytest.raises(UserError, match=r"empty: not a run folder, its config\.json names no method"):
        write_report([tmp_path / "empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_are_found_one_level_down_and_what_is_none_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", time_steps=2)
    inner = [write_run(tmp_path / "demo" / name, time_steps=2) for name in ("a", "b")]
    (tmp_path / "demo" / "figures").mkdir()
    write_run(tmp_path / "deep" / "down" / "run", time_steps=2)
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "config.json").write_text('{"model": {}, "pretraining": {}}')
    (tmp_path / "page.html").touch()
    found, others = find_runs([*sorted(tmp_path.iterdir()), inner[0]])
    assert found == [*inner, run]
    assert [path.name for path in others] == ["deep", "page.html", "pretrain"]


def test_a_finished_run_is_complete_even_if_nothing_could_be_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3, learned=0)
    assert RunRecord.read(folder).stopped is not None
    (folder / "finished").touch()
    assert RunRecord.read(folder).stopped is None
    assert comparison_rows([RunRecord.read(folder)])[0]["complete"] is True


def test_a_run_over_the_first_time_steps_is_complete_after_them(tmp_path: Path) -> None:
    short = RunRecord.read(write_run(tmp_path / "short", time_steps=5, learned=2, first_time_steps=2))
    cut = RunRecord.read(write_run(tmp_path / "cut", time_steps=5, learned=2, first_time_steps=3))
    long = RunRecord.read(write_run(tmp_path / "long", time_steps=5, first_time_steps=9))
    assert (short.stopped, short.due) == (None, 2)
    assert cut.stopped == "it was interrupted or is still under way"
    assert (long.stopped, long.due) == (None, 5)


def test_an_event_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    whole = RunRecord.read(folder).events
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "upd')
    assert RunRecord.read(folder).events == whole


def test_runs_that_differ_only_in_the_seed_form_a_group(sweep: list[Path]) -> None:
    groups = group_runs(read_runs([*sweep, sweep[0]]))
    assert [group.label for group in groups] == ["dietcl", "er"]
    assert [entry.label for entry in groups[1].entries] == ["er · seed 0", "er · seed 1", "er · seed 2"]


def test_labels_say_in_what_configurations_differ(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", method="er", time_steps=2, options={"memory": 9}),
        write_run(tmp_path / "b", method="er", time_steps=2, options={"sampling": "uniform"}),
        write_run(tmp_path / "f", method="er", time_steps=2),
        write_run(tmp_path / "c", time_steps=2),
        write_run(tmp_path / "d", time_steps=2, learned=1),
        write_run(tmp_path / "e", time_steps=2),
    ]
    groups = group_runs(read_runs(runs))
    labels = ["er (memory 9)", "er:uniform", "er (memory None)", "dietcl", "dietcl, 1 of 2 time steps"]
    assert [group.label for group in groups] == labels
    assert [entry.label for entry in groups[3].entries] == ["dietcl · c", "dietcl · e"]


def test_rows_hold_means_and_deviations_over_seeds(sweep: list[Path]) -> None:
    runs = read_runs(sweep)
    row = comparison_rows(runs)[0]
    finals = [run.summary.final_mean for run in runs[:3]]
    assert row["seeds"] == [0, 1, 2]
    assert row["spread"] == "standard deviation over seeds"
    assert row["final_mean"] == pytest.approx(statistics.fmean(finals))
    assert row["final_mean_spread"] == pytest.approx(statistics.stdev(finals))
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_a_single_run_shows_its_standard_error(sweep: list[Path]) -> None:
    runs = read_runs(sweep[:1])
    row = comparison_rows(runs)[0]
    assert row["spread"] == "standard error"
    assert row["final_pooled_spread"] == runs[0].summary.final_pooled_se
    assert row["forgetting_spread"] is None


def test_paired_rows_pair_by_seed(sweep: list[Path]) -> None:
    runs = read_runs([*sweep[:3], sweep[5], sweep[4]])  # er: seeds 2 and 1, in this order
    rows = paired_rows(runs)
    assert {row["measure"] for row in rows} == {"final_mean", "final_pooled", "average_mean", "average_pooled"}
    ours, theirs = ([run.summary.final_mean for run in pick] for pick in ((runs[1], runs[2]), (runs[4], runs[3])))
    first = rows[0]
    assert (first["a"], first["b"], first["seeds"]) == ("dietcl", "er", [1, 2])
    assert (first["difference"], first["low"], first["high"]) == pytest.approx(paired_difference(ours, theirs))
    assert paired_rows(runs[:1]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"stream_identity": "another"},
        {"stream_identity": None},
        {"budget": "21"},
        {"accounting": "flops"},
        {"training": {"batch": 8}},
    ],
)
def test_only_equal_streams_at_equal_expense_are_paired(tmp_path: Path, change: dict[str, Any]) -> None:
    ours = [write_run(tmp_path / f"a{seed}", seed=seed, time_steps=2) for seed in range(3)]
    theirs = [write_run(tmp_path / f"b{seed}", method="er", seed=seed, time_steps=2) for seed in range(3)]
    assert len(paired_rows(read_runs([*ours, *theirs]))) == 4
    if "stream_identity" in change:  # differs by seed, so that the other seeds still pair
        _change(theirs[1], **change)
        rows = paired_rows(read_runs([*ours, *theirs]))
        assert [row["seeds"] for row in rows] == [[0, 2]] * 4
    for folder in theirs:
        _change(folder, **change)
    assert paired_rows(read_runs([*ours, *theirs])) == []


def test_runs_that_measured_nothing_are_not_paired(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, time_steps=2, learned=0)
        for method in ("dietcl", "er")
        for seed in range(2)
    ]
    for folder in folders:
        (folder / "finished").touch()
    assert paired_rows(read_runs(folders)) == []


def test_rows_hold_transfer_and_the_terminal_table_still_fits(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / method, method=method) for method in ("dietcl", "er", "naive")]
    runs = read_runs(folders)
    for row, run in zip(comparison_rows(runs), runs, strict=True):
        assert row["backward_transfer"] == run.summary.backward_transfer < 0
        assert row["forward_transfer"] == run.summary.forward_transfer == 0
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison_table(runs, console))
    text = capture.get()
    assert "…" not in text
    assert f"{100 * runs[2].summary.final_pooled:.1f}±{100 * runs[2].summary.final_pooled_se:.1f}" in text


def test_the_terminal_table_shows_percent_and_escapes_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3)
    _change(folder, method="[red]odd[/red]", stream="data/[blue]/manifest.parquet", budget="[/b]")
    runs = read_runs([folder])
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison_table(runs, console))
    text = capture.get()
    assert "[red]odd[/red]" in text
    assert "[blue], 3 time steps of [/b]" in text
    assert f"{100 * runs[0].summary.final_mean:.1f}±{100 * runs[0].summary.final_mean_se:.1f}" in text


def test_the_terminal_table_drops_whole_columns_rather_than_digits(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "dietcl", method="dietcl")]
    folders += [write_run(tmp_path / f"er{seed}", method="er", seed=seed) for seed in range(3)]
    runs = read_runs(folders)
    for width in (50, 60, 72, 80, 100):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as capture:
            console.print(comparison_table(runs, console))
        text = capture.get()
        assert "…" not in text
        assert all(len(line) <= width for line in text.splitlines())
        assert ("24,320" in text) == ("Passes" in text)  # a number is there whole or not at all
        for row in comparison_rows(runs):
            assert f"{100 * row['final_pooled']:.1f}±{100 * row['final_pooled_spread']:.1f}" in text
        assert "one seed: standard error" in " ".join(text.split())
    assert "Time" in text


def test_the_realized_rate_is_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = RunRecord.read(folder)
    assert run.realized_rate == pytest.approx(40 / 2040)
    assert comparison_rows([run])[0]["realized_rate"] == pytest.approx(40 / 2040)
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison_table([run], console))
    assert "1.96% labeled" in capture.get()
    page = write_report([folder], tmp_path / "out").read_text()
    assert "2 % of the arriving images have a label" in page


def test_a_later_report_removes_the_figures_of_the_earlier_one(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / method, method=method) for method in ("dietcl", "er")]
    write_report(folders, tmp_path / "out")
    mine = tmp_path / "out/figures/mine.png"
    mine.write_bytes(b"")
    write_report(folders[:1], tmp_path / "out")
    assert mine.exists()
    assert not list((tmp_path / "out/figures").glob("*-02-*"))
    assert list((tmp_path / "out/figures").glob("matrix-01-*"))
