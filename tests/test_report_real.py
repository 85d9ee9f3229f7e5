"""The report on runs that the engine itself made: two methods, two seeds each."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from matplotlib import rc_context

from dietcl.errors import UserError
from dietcl.execution import Execution
from dietcl.report.figures import _accuracy, _matrix
from dietcl.report.groups import group_runs
from dietcl.report.page import write_report
from dietcl.report.runs import RunRecord, read_runs
from dietcl.report.series import chance_line, page_data, shared_dates
from dietcl.report.stream_pictures import _Board, _contact_sheet, _find_arrivals, _label_rate
from dietcl.report.style import MATPLOTLIB
from dietcl.report.tables import comparison_rows, paired_rows
from dietcl.run import execute, stream_of
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import write_manifest
from dietcl.streams.stream import build_stream
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
            execute(config, made[-1], Execution(device="cpu"))
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


def test_the_classes_together_are_the_time_steps_together(folders: list[Path]) -> None:
    for run in read_runs(folders):
        rows, confusion = run.by_class(), run.confusion()
        assert sum(row.total for row in rows) == confusion.total == run.counts["count"][-1].sum() == 24
        assert sum(row.right for row in rows) == confusion.right == run.counts["correct"][-1].sum()
        assert confusion.right / confusion.total == run.accuracy
        assert sorted(row.name for row in rows) == sorted(run.classes) == [f"class {i}" for i in range(6)]


def test_a_run_of_the_version_before_is_reported_without_its_classes(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "run")
    (tmp_path / "run" / "confusion.npz").unlink()
    run = RunRecord.read(tmp_path / "run")
    assert run.accuracy == RunRecord.read(folders[0]).accuracy
    with pytest.raises(UserError, match=r"run: holds no counts by class.* made by an earlier version"):
        run.by_class()
    (run.path / "model.json").unlink()
    text = write_report([run.path], tmp_path / "out").read_text(encoding="utf-8")
    assert "This run was made by an earlier version and keeps no model." in text
    assert "dietcl predict" not in text


def test_the_page_shows_classes_mistakes_chance_and_the_model(folders: list[Path], tmp_path: Path) -> None:
    run, out = RunRecord.read(folders[0]), tmp_path / "reports" / "one"
    text = write_report([folders[0]], out).read_text(encoding="utf-8")
    says = f"After 3 time steps er classifies {100 * run.accuracy:.1f} % of 24 test images of 6 classes correctly, "
    assert says in text
    assert "Only 24 test images: an accuracy measured on so few is a rough guess" in text
    table = re.findall(r'<tr><th scope="row">(class \d)</th><td>(\d)</td><td>4</td>', text)
    assert table == [(row.name, str(row.right)) for row in run.by_class()]
    examples = run.samples.mistakes
    pairs = [*dict.fromkeys(zip(examples.label, examples.predicted, strict=True))]
    assert pairs == [(mistake.truth, mistake.predicted) for mistake in run.confusion().mistakes(8)]
    for mistake in run.confusion().mistakes(8):
        assert text.count(f'alt="{mistake.truth}, taken for {mistake.predicted}"') == min(6, mistake.count)
    assert chance_line([run]) == [1 / 2, 1 / 4, 1 / 6]
    weights = re.search(r'<a href="([^"]*)">model.safetensors</a>', text)
    assert weights is not None
    assert (out / unquote(weights[1])).samefile(folders[0] / "model.safetensors")
    assert f"dietcl predict {folders[0]} photo.jpg" in text


def test_a_stream_cut_by_time_shows_its_dates(blobs: Path, tmp_path: Path) -> None:
    day, columns = 86400.0, pq.read_table(blobs).to_pydict()
    columns["time"] = [1.7e9 + day * moment for moment in columns["time"]]
    shutil.copy(blobs.parent / "images.npy", tmp_path)
    manifest = write_manifest(tmp_path / "manifest.parquet", columns)
    config = tiny_config(manifest, "er", budget="1")
    recipe = replace(config.recipe, recipe="time")
    execute(replace(config, recipe=recipe), tmp_path / "run", Execution(device="cpu"))
    run = RunRecord.read(tmp_path / "run")
    # 120 training images in three time steps, one a day since 2023-11-14.
    dates = ["2023-11-14 to 2023-12-23", "2023-12-24 to 2024-02-01", "2024-02-02 to 2024-03-12"]
    assert shared_dates([run]) == dates
    assert page_data(group_runs([run]))["dates"] == dates
    with rc_context(MATPLOTLIB):
        figure = _accuracy(group_runs([run]), "accuracy_mean", "Mean")
        matrix = _matrix(run, "er", 1.0, shared_dates([run]))
        figure.draw_without_rendering()
        matrix.draw_without_rendering()
    for axis in (figure.axes[0].xaxis, matrix.axes[0].xaxis, matrix.axes[0].yaxis):
        date = "2023-\n12-24" if axis.axis_name == "x" else "2023-12-24"
        assert date in [label.get_text() for label in axis.get_ticklabels()]
    index = open_manifest(manifest)
    stream = build_stream("dated", index, recipe, 0)
    sheet = _contact_sheet(_Board(stream, index, 1), *_find_arrivals(stream, index), classes=6)
    assert {f"{date[:5]}\n{date[5:10]}" for date in dates} <= {text.get_text() for text in sheet.axes[0].texts}
    rates = _label_rate(stream, 0.2)
    rates.draw_without_rendering()
    assert "2023-\n12-24" in [label.get_text() for label in rates.axes[1].xaxis.get_ticklabels()]
    text = write_report([run.path], tmp_path / "out").read_text(encoding="utf-8")
    assert '<th>By first date</th><th title="2023-11-14 to 2023-12-23">2023-<br>11-14</th>' in text
    assert 'title="Time step 1 (2023-11-14 to 2023-12-23): class' in text


def test_the_page_says_so(folders: list[Path], blobs: Path, tmp_path: Path) -> None:
    text = write_report(folders, tmp_path).read_text(encoding="utf-8")
    assert f"er and naive on {blobs.parent.name}" in text
    assert "Differences, seed by seed" in text
    assert "standard deviation over seeds" in text
    assert "interrupted" not in text


def test_a_short_run_is_complete(blobs: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(blobs, "er", budget="1"), first_time_steps=2)
    execute(config, tmp_path / "run", Execution(device="cpu"))
    (tmp_path / "run" / "finished").unlink()  # as if stopped when all was measured
    run = RunRecord.read(tmp_path / "run")
    assert (run.due, run.stopped) == (2, None)


def test_a_run_over_the_union_of_all_time_steps_is_complete_with_one_row(blobs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "joint"
    execute(tiny_config(blobs, "joint", budget="2"), folder, Execution(device="cpu"))
    (folder / "finished").unlink()
    run = RunRecord.read(folder)
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


def test_chance_is_among_the_classes_that_were_learned(blobs: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(blobs, "ncm", budget="3"), first_time_steps=1)
    execute(config, tmp_path / "run", Execution(device="cpu"))
    confusion = RunRecord.read(tmp_path / "run").confusion()
    stream, _ = stream_of(config)
    assert confusion.answers == stream.steps[0].seen_classes < len(stream.classes)
    assert confusion.chance == 1 / stream.steps[0].seen_classes
