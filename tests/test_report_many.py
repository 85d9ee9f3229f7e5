"""Reports of many methods: what they cost, how their lines stay apart, and a method that is tested only at the end."""

import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from PIL import Image
from rich.console import Console

from dietcl.report.figures import _accuracy, _budget, write_figures
from dietcl.report.groups import entries_of, group_runs
from dietcl.report.page import write_report
from dietcl.report.panels import swatch
from dietcl.report.runs import RunRecord, read_runs
from dietcl.report.series import is_point, lone_points, name_colors, page_data, spending
from dietcl.report.style import (
    FEW,
    MATPLOTLIB,
)
from dietcl.report.tables import COLUMNS, cell, comparison_rows, cost_table, paired_rows, where_it_went
from helpers.fake_runs import STATE_BYTES, write_run

METHODS = ["dietcl", "er", "er_ace", "ewc", "mas", "gdumb", "l2p", "cassle", "dualnet", "ccic", "one_stage"]
METHODS += ["two_stage", "joint", "naive", "linear_probe", "ncm", "ranpac", "acm", "derpp", "fixmatch", "lwf"]
METHODS += ["other_a", "other_b", "other_c", "other_d"]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, ...]:
    folder = tmp_path_factory.mktemp("many")
    return read_runs([write_run(folder / method, method=method, time_steps=5) for method in METHODS])


@pytest.fixture(scope="module")
def page(many: tuple[RunRecord, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        # Only the accuracy figures are looked at here, and those of every run take half a minute.
        patch.setattr("dietcl.report.page.write_figures", lambda groups, folder: write_figures(groups[:1], folder))
        return write_report([run.path for run in many], out).read_text(encoding="utf-8")


def _row(runs: tuple[RunRecord, ...], method: str) -> dict[str, Any]:
    return next(row for row in comparison_rows(runs) if row["method"] == method)


def _printed(runs: tuple[RunRecord, ...], width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(cost_table(runs, console))
    return capture.get()


def test_rows_tell_what_was_spent_and_kept(many: tuple[RunRecord, ...]) -> None:
    row = _row(many, "dietcl")
    assert row["spent"] == pytest.approx((384 + 512 + 320) / 1280)
    assert row["state"] == pytest.approx(5 * STATE_BYTES / 1e6)
    assert list(row["purposes"]) == ["memory", "masked", "reconstruct"]
    assert row["purposes"] == pytest.approx({"memory": 512 / 1216, "masked": 384 / 1216, "reconstruct": 320 / 1216})
    assert _row(many, "joint")["spent"] == pytest.approx((round(6400 * 0.8) + round(6400 * 0.19)) / 6400)
    for row in comparison_rows(many):
        assert sum(row["purposes"].values()) == pytest.approx(1)
        assert "evaluation" not in row["purposes"]
        assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_costs_of_older_or_empty_runs_are_unknown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        event.pop("state_bytes", None)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    receipts = json.loads((folder / "receipts.json").read_text())
    (folder / "receipts.json").write_text(json.dumps(receipts | {"steps": []}))
    row = comparison_rows([RunRecord.read(folder)])[0]
    assert (row["state"], row["spent"], row["passes"], row["purposes"]) == (None, None, 0, {})
    (folder / "receipts.json").unlink()
    row = comparison_rows([RunRecord.read(folder)])[0]
    assert (row["spent"], row["passes"], row["purposes"]) == (None, None, {})
    assert where_it_went({}) == ["–"]


def test_shares_of_several_seeds_are_of_all_their_passes(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(seed), seed=seed, time_steps=2) for seed in (0, 1)]
    receipts = json.loads((folders[1] / "receipts.json").read_text())
    for step in receipts["steps"]:
        step["items"] = [item for item in step["items"] if item["purpose"] == "memory"]
    (folders[1] / "receipts.json").write_text(json.dumps(receipts))
    row = comparison_rows(read_runs(folders))[0]
    assert row["purposes"]["memory"] == pytest.approx(2 * 512 / (1216 + 512))


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"replay": 1.0}, "replay 100 %"),
        ({"memory": 0.52, "labeled": 0.31, "teacher": 0.17}, "memory 52, labeled 31, teacher 17 %"),
        ({"memory": 0.5, "labeled": 0.3, "teacher": 0.15, "query": 0.05}, "memory 50, labeled 30, teacher 15 %, …"),
        ({"features": 0.996, "solve": 0.004}, "features 100, solve <1 %"),
    ],
)
def test_the_largest_purposes_are_named(shares: dict[str, float], said: str) -> None:
    assert " ".join(where_it_went(shares)) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(1234.5, "1,234"), (12.3, "12"), (2.5, "2.5"), (0.0128, "0.013"), (0.0002, "<0.001"), (0.0, "0"), (None, "–")],
)
def test_small_amounts_keep_their_digits(value: float | None, said: str) -> None:
    state = next(column for column in COLUMNS if column.key == "state")
    assert cell({"state": value, "state_spread": None}, state) == said


def test_costs_show_no_spread(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / str(seed), seed=seed, time_steps=2) for seed in (0, 1)])
    row = comparison_rows(runs)[0]
    shown = {column.key: cell(row, column) for column in COLUMNS}
    assert shown["spent"] == "95.0"
    assert row["spent_spread"] == 0
    assert shown["forgetting"] == f"{100 * row['forgetting']:.1f} ± {100 * row['forgetting_spread']:.1f}"


def test_the_cost_table_fits_and_drops_whole_columns(many: tuple[RunRecord, ...]) -> None:
    for width, titles in {
        120: ["A(T)", "A", "Spent", "Time", "State"],
        100: ["A(T)", "A", "Spent", "Time", "State"],
        80: ["A(T)", "Spent", "Time", "State"],
        50: ["A(T)", "Spent"],
    }.items():
        text = _printed(many, width)
        assert all(len(line) <= width for line in text.splitlines())
        assert text.splitlines()[2].split() == titles
        assert ("Where it went" in text) == (width > 40)
        for row in comparison_rows(many):
            accuracy = f"{100 * row['final_mean']:.1f}±{100 * row['final_mean_spread']:.1f}"
            line = next(line for line in text.splitlines() if line.split()[:1] == [row["method"]])
            assert line.split()[1] == accuracy
            assert f" {100 * row['spent']:.1f} " in line
    wide = next(line for line in _printed(many, 120).splitlines() if line.split()[:1] == ["ranpac"])
    row = _row(many, "ranpac")
    assert "  labeled 51, solve 42, features 7 %, …  " in wide
    assert wide.split()[-2:] == ["12", "1.2"]
    assert wide.split()[2:4] == [f"{100 * row['average_mean']:.1f}", f"{100 * row['forgetting']:.1f}"]
    narrow = _printed(many, 100).splitlines()
    at = next(i for i, line in enumerate(narrow) if line.split()[:1] == ["ranpac"])
    assert "labeled 51, solve 42," in narrow[at]
    assert narrow[at + 1].strip() == "features 7 %, …"


def test_the_cost_table_counts_seeds_where_they_differ(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"er{seed}", method="er", seed=seed, time_steps=2) for seed in (0, 1)]
    folders.append(write_run(tmp_path / "[b]", time_steps=2))
    runs = read_runs(folders)
    text = _printed(runs, 100)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert (lines["er"][1], lines["dietcl"][1]) == ("2", "1")
    finals = [run.summary.final_mean for run in runs[:2]]
    assert lines["er"][2] == f"{100 * np.mean(finals):.1f}±{100 * np.std(finals, ddof=1):.1f}"


def test_the_legend_of_many_lines_stands_beside_them_in_their_order(many: tuple[RunRecord, ...]) -> None:
    groups = group_runs(many)
    with rc_context(MATPLOTLIB):
        figure, few = (_accuracy(some, "accuracy_pooled", "Pooled") for some in (groups, groups[:FEW]))
        figure.draw_without_rendering()
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend.get_window_extent().x0 > axes.get_window_extent().x1
    assert legend.get_window_extent().x1 < figure.bbox.x1
    assert figure.get_figheight() > few.get_figheight()
    finals = [(100 * run.summary.final_pooled, run.method) for run in many] + [(10.0, "chance")]
    finals.sort(key=lambda pair: -pair[0])
    texts = [text.get_text().replace("\u2007", " ") for text in legend.get_texts()]
    assert texts == [f"{final:4.1f}  {method}" for final, method in finals]
    assert len(axes.collections) == 0
    assert len(few.axes[0].collections) == FEW  # bands
    assert [text.get_text() for text in few.axes[0].get_legend().get_texts()] == [*METHODS[:FEW], "chance"]


def test_a_run_tested_at_the_end_is_a_diamond(many: tuple[RunRecord, ...], tmp_path: Path) -> None:
    joint = many[METHODS.index("joint")]
    assert [is_point(run) for run in many] == [run is joint for run in many]
    assert not is_point(RunRecord.read(write_run(tmp_path / "short", time_steps=1)))
    assert lone_points(np.array([math.nan, 1, math.nan, 1, 1, math.nan, 2])).nonzero()[0].tolist() == [1, 6]
    final = 100 * joint.summary.final_mean
    with rc_context(MATPLOTLIB):
        axes = _accuracy(group_runs(many), "accuracy_mean", "Mean").axes[0]
    (diamond,) = (line for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata()))
    assert (diamond.get_xdata().tolist(), diamond.get_ydata().tolist()) == ([5], pytest.approx([final]))
    handles = axes.get_legend().legend_handles
    place = next(i for i, text in enumerate(axes.get_legend().get_texts()) if text.get_text().endswith("joint"))
    assert [i for i, handle in enumerate(handles) if handle.get_marker() == "D"] == [place]
    assert swatch(entries_of(group_runs([joint]))[0]).endswith(' point"></span>')
    assert [group["point"] for group in page_data(group_runs(many))["groups"]].index(True) == 12


def test_a_run_tested_at_the_end_is_complete_and_has_no_average(many: tuple[RunRecord, ...]) -> None:
    joint = many[METHODS.index("joint")]
    row = _row(many, "joint")
    assert (joint.stopped, row["complete"], row["learned"], row["label"]) == (None, True, 5, "joint")
    assert row["final_mean"] == joint.summary.final_mean > 0
    unknown = ("average_mean", "average_pooled", "forgetting", "backward_transfer", "forward_transfer")
    assert [row[key] for key in unknown] == [None] * 5
    assert row["purposes"] == pytest.approx({"reconstruct": 5120 / 6336, "labeled": 1216 / 6336})
    data = page_data(group_runs(many))["runs"][12]
    assert [sum(value is not None for value in line) for line in data["matrix"]] == [0, 0, 0, 0, 5]
    assert (data["budget"]["t"], data["budget"]["budget"]) == ([5], [6400])
    spent = spending(joint)
    assert spent is not None
    with rc_context(MATPLOTLIB):
        axes = _budget(spent, "joint", name_colors([joint])).axes[0]
    assert axes.get_xlim() == pytest.approx((3.4, 6.6))
    assert axes.get_xticks().tolist() == [5]


def test_what_is_unknown_is_not_paired(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, time_steps=3)
        for method in ("er", "joint")
        for seed in (0, 1)
    ]
    rows = paired_rows(read_runs(folders))
    assert [row["measure"] for row in rows] == ["final_mean", "final_pooled"]
    assert all(math.isfinite(row[key]) for row in rows for key in ("difference", "low", "high"))
    text = write_report(folders, tmp_path / "out").read_text(encoding="utf-8")
    line = re.search(r'<th scope="row">er − joint</th><td>2</td>(.*?)</tr>', text)
    assert line is not None
    assert line[1].count("<td>") == 2


def test_the_pairs_of_many_methods_are_folded_but_for_the_first(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, time_steps=2)
        for method in METHODS[:8]
        for seed in (0, 1)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dietcl.report.page.write_figures", lambda groups, folder: [])
        text = write_report(folders, tmp_path / "out").read_text(encoding="utf-8")
    seen, folded = text[text.index("Differences, seed") :].split("Show 21 more pairs</summary>")
    assert re.findall(r'row">([^<]*) − ([^<]*)</th>', seen) == [("dietcl", other) for other in METHODS[1:8]]
    assert len(re.findall(r'row">[^<]* − [^<]*</th>', folded)) == 21
    assert "these are 28 pairs" in seen


def test_the_page_says_where_the_budget_went(many: tuple[RunRecord, ...], page: str) -> None:
    first, *_, line = re.finditer(
        r'<th scope="row"><span class="key[^>]*></span>ranpac</th>(.*?)</tr>', page, flags=re.DOTALL
    )
    # Six columns are in view, all of them on demand.
    assert len(re.findall("<td", first[1])) == 6
    assert "<summary>Show all 15 columns</summary>" in page[first.end() : line.start()]
    assert (
        line[1].rstrip().endswith("<span>labeled 51,</span> <span>solve 42,</span> <span>features 7 %, …</span></td>")
    )
    numbers = re.findall(r"<td>([^<]*)", line[1])
    # Spent, passes, seconds, wait (of which these runs tell nothing), state.
    assert numbers[-5:] == ["59.1", "3,780", "12", "–", "1.2"]
    titles = re.findall(r"<th[^>]*><abbr[^>]*>([^<]*)</abbr>", page)
    costs = ["Spent (%)", "Passes", "Time (s)", "Data wait (%)", "State (MB)", "Where it went"]
    assert titles[-6:] == costs


def test_the_page_of_many_methods_says_how_to_read_it(many: tuple[RunRecord, ...], page: str, tmp_path: Path) -> None:
    assert "25 methods on glyphs" in page
    assert "One standard error is shaded only where at most 6 lines share a chart" in page
    assert "A diamond was tested only once, after the last time step." in page
    assert page.index("<noscript><style>") > page.index(".legend {")  # or the legends would stay without JavaScript
    assert "ended after" not in page
    assert "NaN" not in re.sub(r'base64,[^"]*', "", page)
    few = write_report([many[0].path], tmp_path / "few").read_text(encoding="utf-8")
    assert "Shaded is one standard error, as the test images are a sample." in few
    assert "diamond was" not in few


def test_figures_on_the_page_are_in_few_colors(page: str) -> None:
    sources = re.findall(r'class="fallback" alt="[^"]*" src="data:image/png;base64,([^"]*)"', page)
    assert sources
    for source in sources:
        with Image.open(io.BytesIO(base64.b64decode(source))) as picture:
            assert (picture.format, picture.mode) == ("PNG", "P")
            colors = picture.convert("RGB").getcolors(128)
        assert colors is not None
        assert max(colors)[1] == (255, 255, 255)
