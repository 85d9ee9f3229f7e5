"""Figures and the page: right lines, nothing unescaped, words for what is missing."""

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dietcl.report.figures import _budget, _losses, _matrix, _within
from dietcl.report.page import accuracy_picture, write_report
from dietcl.report.runs import RunRecord, read_runs
from dietcl.report.series import ceiling, chosen_samples, loss_lines, name_colors, origin_lines, spending
from dietcl.report.tables import comparison_rows
from helpers.fake_runs import write_run

NASTY = "<script>alert(1)</script>"


def test_losses_are_averaged_within_time_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    losses = {1: [4.0, 2.0, math.nan, 1.0], 2: [3.0, 3.0]}
    lines = [
        json.dumps({"event": "update", "t": t, "phase": "joint", "spent": 32.0 * i, "loss": {"memory": value}})
        for t, values in losses.items()
        for i, value in enumerate(values, start=1)
    ]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    drawn = loss_lines(RunRecord.read(folder))
    assert drawn is not None
    assert drawn.lines["memory"] == pytest.approx([4, 2, math.nan, 1, 3, 3], nan_ok=True)
    assert drawn.x == pytest.approx([0.5 + 32 / 1216, 0.5 + 64 / 1216, 0.5 + 96 / 1216, 0.5 + 128 / 1216, *drawn.x[4:]])
    (folder / "receipts.json").unlink()
    drawn = loss_lines(RunRecord.read(folder))
    assert drawn is not None
    assert drawn.x == pytest.approx([0.75, 1, 1.25, 1.5, 2, 2.5])


def test_many_updates_become_a_few_hundred_points(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    events = [{"event": "update", "t": 1, "spent": i, "loss": {"a": float(i)}} for i in range(1, 5001)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    drawn = loss_lines(RunRecord.read(folder))
    assert drawn is not None
    assert len(drawn.x) == 400
    assert (np.diff(drawn.lines["a"]) > 0).all()


def test_spending_sums_to_the_budget_in_its_own_unit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3)
    spent = spending(RunRecord.read(folder))
    assert spent is not None
    assert list(spent.by_purpose) == ["masked", "memory", "reconstruct"]  # evaluation is free
    assert sum(spent.by_purpose.values()) + spent.unused == pytest.approx(spent.budget)
    receipts = json.loads((folder / "receipts.json").read_text())
    for step in receipts["steps"]:
        step |= {"budget": 10.0, "spent": 9.5, "unused": 0.5}
    (folder / "receipts.json").write_text(json.dumps(receipts | {"unit": "seconds"}))
    spent = spending(RunRecord.read(folder))
    assert spent is not None
    assert spent.by_purpose["memory"] == pytest.approx([9.5 * 512 / 1216] * 3)
    assert sum(spent.by_purpose.values()) + spent.unused == pytest.approx(spent.budget)


def test_curves_start_where_their_time_step_does(tmp_path: Path) -> None:
    run = RunRecord.read(write_run(tmp_path / "run", time_steps=5, curves=True))
    curves = origin_lines(run)
    assert curves is not None
    assert list(curves.lines) == ["1", "2", "3", "4", "5"]
    assert np.isnan(curves.lines["5"][curves.x <= 4.5]).all()
    assert not np.isnan(curves.lines["1"]).any()
    assert (np.diff(curves.x) > 0).all()
    with np.load(tmp_path / "run" / "counts.npz") as counts:
        without = {name: counts[name] * (np.arange(5) != 1) for name in counts.files}
    np.savez(tmp_path / "run" / "counts.npz", **without)
    curves = origin_lines(RunRecord.read(tmp_path / "run"))
    assert curves is not None
    assert list(curves.lines) == ["1", "3", "4", "5"]


def test_samples_are_spread_over_the_stream_and_the_scale_covers_all_runs(tmp_path: Path) -> None:
    run = RunRecord.read(write_run(tmp_path / "run", time_steps=30))
    chosen = chosen_samples(run)
    assert len(chosen) == 40
    assert [run.samples.t[chosen[0]], run.samples.t[chosen[-1]]] == [1, 30]
    best = float(np.nanmax(run.summary.accuracy))
    assert best <= ceiling([run]) < best + 0.1


class _Page(HTMLParser):
    """Collects what would fetch or run something, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts = 0
        self.sources: list[str] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.scripts += tag == "script"
        self.sources += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data")]
        assert not any(key.startswith("on") for key, _ in attrs)

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data)


def test_the_page_stands_alone_and_nothing_from_a_run_becomes_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3, labels=(NASTY, "b"), curves=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"method": f"{NASTY}'\"&"}))
    events = (folder / "events.jsonl").read_text().replace('"memory"', json.dumps(f"</script>{NASTY}"))
    (folder / "events.jsonl").write_text(events)
    page = write_report([folder], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    parsed = _Page(text)
    assert page == tmp_path / "out" / "report.html"
    assert parsed.scripts == 2  # the data and page.js
    assert all(source.startswith(("data:", "#")) for source in parsed.sources)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert NASTY not in text
    assert any(NASTY in words for words in parsed.words)


DATES = [f"2024-{month:02d}-01 to 2024-{month:02d}-28" for month in range(1, 7)]


def test_every_figure_of_a_run_has_the_users_dates(tmp_path: Path) -> None:
    run = RunRecord.read(write_run(tmp_path / "run", time_steps=6, curves=True))
    spent, losses, curves = spending(run), loss_lines(run), origin_lines(run)
    assert spent is not None
    assert losses is not None
    assert curves is not None
    colors = name_colors([run])
    drawn = [_budget(spent, "run", colors, DATES), _losses(losses, "run", colors, DATES), _within(curves, "run", DATES)]
    for figure in drawn:
        figure.draw_without_rendering()
        axis = figure.axes[0].xaxis
        assert axis.get_label_text().endswith(", by first date")
        assert "2024-\n04-01" in [label.get_text() for label in axis.get_ticklabels()]
        assert figure.legends[0].get_window_extent().y1 < axis.get_tightbbox().y0
    assert [text.get_text() for text in drawn[2].legends[0].get_texts()] == [date[:10] for date in DATES]


def test_dates_on_the_narrow_axis_of_a_matrix_do_not_meet(tmp_path: Path) -> None:
    run = RunRecord.read(write_run(tmp_path / "run", time_steps=40))
    figure = _matrix(run, "run", 1.0, [f"2024-01-01 to {t}" for t in range(40)])
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].xaxis.get_ticklabels() if label.get_text()]
    assert len(boxes) >= 3
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("time_steps", "ticks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (5, [1, 2, 3, 4, 5]), (12, [2, 4, 6, 8, 10, 12])]
)
def test_a_drawn_matrix_marks_whole_time_steps(tmp_path: Path, time_steps: int, ticks: list[int]) -> None:
    run = RunRecord.read(write_run(tmp_path / "run", time_steps=time_steps))
    axes = _matrix(run, "run", 1.0).axes[0]
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()[::-1])):
        assert [place for place in axis.get_majorticklocs() if low <= place <= high] == ticks


def test_transfer_is_shown_with_its_sign(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3)
    words = "".join(_Page(write_report([folder], tmp_path / "out").read_text(encoding="utf-8")).words)
    assert "Backward transfer" in words
    assert "Forward transfer" in words
    assert f"−{-100 * RunRecord.read(folder).summary.backward_transfer:.1f}" in words


def test_a_finished_run_without_test_images_is_not_called_interrupted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3, learned=0)
    (folder / "finished").touch()
    words = "".join(_Page(write_report([folder], tmp_path / "out").read_text(encoding="utf-8")).words)
    assert "No accuracy was measured: there were no test images." in words
    assert "interrupted" not in words


def test_the_table_names_stream_and_budget_where_they_differ(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / budget, time_steps=2, budget=budget) for budget in ("20", "2h")]
    alone, both = (_Page(write_report(some, tmp_path / "out").read_text()).words for some in (folders[:1], folders))
    assert "Stream" not in alone[: alone.index("A(T) mean")]
    assert "Budget" not in alone[alone.index("Method") : alone.index("A(T) mean")]
    assert both[both.index("Method") :][:2] == ["Method", "Budget"]
    assert both.count("20 updates") == 2  # in the short and in the whole table


def test_figures_are_pngs_and_equal_when_written_again(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "run", time_steps=3, curves=True),
        write_run(tmp_path / "er", method="er", time_steps=3),
    ]
    first = write_report(runs, tmp_path / "one").read_bytes()
    assert write_report(runs, tmp_path / "two").read_bytes() == first
    figures = sorted(path.name for path in (tmp_path / "one" / "figures").iterdir())
    kinds = ["budget", "losses", "matrix", "reconstructions", "samples"]
    each = [f"{kind}-0{i + 1}-{name}.png" for kind in kinds for i, name in enumerate(("dietcl", "er"))]
    assert figures == sorted(["accuracy_mean.png", "accuracy_pooled.png", "within-01-dietcl.png", *each])
    assert accuracy_picture(tmp_path / "one").is_file()
    for name in figures:
        with Image.open(tmp_path / "one" / "figures" / name) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 200


@pytest.mark.parametrize(
    ("learned", "stopped", "removed", "words"),
    [
        (
            2,
            "The loss became non-finite <here>.",
            (),
            "ended after 2 of 4 time steps: The loss became non-finite <here>.",
        ),
        (2, None, (), "it was interrupted or is still under way"),
        (0, None, ("counts.npz",), "No accuracy was measured: no run has finished its first time step."),
        (4, None, ("samples.npz",), "No sample images were kept for dietcl."),
        (4, None, ("events.jsonl",), "No losses were recorded for dietcl."),
        (4, None, ("receipts.json", "environment.json"), "No receipts were written for dietcl."),
    ],
)
def test_a_missing_part_is_said(
    tmp_path: Path, learned: int, stopped: str | None, removed: tuple[str, ...], words: str
) -> None:
    folder = write_run(tmp_path / "run", time_steps=4, learned=learned, stopped=stopped)
    for name in removed:
        (folder / name).unlink()
    parsed = _Page(write_report([folder], tmp_path / "out").read_text(encoding="utf-8"))
    assert words in "".join(parsed.words)


def test_a_bare_config_still_gives_a_page_and_a_table(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"method": "er"}')
    assert write_report([tmp_path / "run"], tmp_path / "out").is_file()
    row = comparison_rows(read_runs([tmp_path / "run"]))[0]
    assert (row["method"], row["final_mean"], row["passes"], row["seconds"]) == ("er", None, None, None)


def test_a_long_stream_shows_its_matrix_as_a_picture(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    count = np.tri(160, k=1, dtype=np.int64) * 4
    np.savez(folder / "counts.npz", correct=count // 2, count=count, loss_sum=count * 1.0)
    text = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert 'data-kind="matrix"' not in text
    assert 'alt="Accuracy matrix of dietcl"' in text


def test_reading_runs_loads_no_heavy_library() -> None:
    code = (
        "import sys, dietcl.report.runs; print([m for m in ('matplotlib', 'torch', 'PIL', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
