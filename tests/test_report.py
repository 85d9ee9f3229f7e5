"""From run folders to tables, figures and the page: right values, nothing unescaped, words for what is missing."""

import io
import json
import math
import re
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dietcl.errors import UserError
from dietcl.metrics import paired_difference, summarize
from dietcl.report import comparison_rows, comparison_table, paired_rows, read_run, read_runs, write_report
from dietcl.report.groups import group_runs
from dietcl.report.series import ceiling, chosen_samples, loss_lines, origin_lines, spending
from fake_runs import write_run

NASTY = "<script>alert(1)</script>"


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
    run = read_run(write_run(tmp_path / "run", seed=3, time_steps=5))
    with np.load(tmp_path / "run" / "counts.npz") as counts:
        expected = summarize(counts["correct"], counts["count"], counts["loss_sum"])
    assert run.summary.final_mean == expected.final_mean
    assert (run.method, run.stream, run.budget, run.seed) == ("dietcl", "glyphs", "20 updates", 3)
    assert run.stopped is None
    assert run.seconds == 5 * 2.5
    assert run.receipts is not None
    assert run.receipts.passes == 5 * (384 + 512 + 320)
    assert run.samples is not None
    assert len(run.samples.label) == len(run.samples.images) == 10


@pytest.mark.parametrize(
    ("budget", "written"), [("1e3", "1000 updates"), ("2e15flops", "2e15flops"), ("120s", "2min"), ("odd", "odd")]
)
def test_stream_and_budget_are_named_for_readers(tmp_path: Path, budget: str, written: str) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    (folder / "config.json").write_text(json.dumps({"method": "er", "stream": "data/fruit.parquet", "budget": budget}))
    run = read_run(folder)
    assert (run.method, run.stream, run.budget, run.seed) == ("er", "fruit", written, None)


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
        read_run(folder)


def test_arrays_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    np.savez(folder / "counts.npz", correct=[[2]], count=[[1]], loss_sum=[[0.0]])
    with pytest.raises(UserError, match="correct must lie between 0 and count"):
        read_run(folder)
    np.savez(folder / "counts.npz", correct=[[1]])
    with pytest.raises(UserError, match="'count' is missing"):
        read_run(folder)
    folder = write_run(tmp_path / "other", time_steps=2)
    np.savez(folder / "samples.npz", images=np.zeros((2, 4, 4, 3), np.uint8), label=["a"], predicted=["a"], t=[1])
    with pytest.raises(UserError, match='"label" has 1 entries for 2 images'):
        read_run(folder)


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name at least one run folder"):
        write_report([], tmp_path / "out")
    with pytest.raises(UserError, match=r"missing: no such folder"):
        write_report([tmp_path / "missing"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: not a run folder"):
        write_report([tmp_path / "empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_event_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    whole = read_run(folder).events
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "upd')
    assert read_run(folder).events == whole


def test_runs_that_differ_only_in_the_seed_form_a_group(sweep: list[Path]) -> None:
    groups = group_runs(read_runs([*sweep, sweep[0]]))
    assert [group.label for group in groups] == ["dietcl", "er"]
    assert [entry.label for entry in groups[1].entries] == ["er · seed 0", "er · seed 1", "er · seed 2"]


def test_labels_say_in_what_configurations_differ(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", method="er", time_steps=2, options={"sampling": "uniform"}),
        write_run(tmp_path / "b", method="er", time_steps=2, options={"sampling": "balanced"}),
        write_run(tmp_path / "c", time_steps=2),
        write_run(tmp_path / "d", time_steps=2, learned=1),
        write_run(tmp_path / "e", time_steps=2),
    ]
    groups = group_runs(read_runs(runs))
    labels = ["er (sampling uniform)", "er (sampling balanced)", "dietcl", "dietcl to time step 1"]
    assert [group.label for group in groups] == labels
    assert [entry.label for entry in groups[2].entries] == ["dietcl · c", "dietcl · e"]


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


def test_the_terminal_table_shows_percent_and_escapes_markup(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"method": "[red]odd[/red]"}))
    runs = read_runs([folder])
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison_table(runs))
    text = capture.get()
    assert "[red]odd[/red]" in text
    assert f"{100 * runs[0].summary.final_mean:.1f}±{100 * runs[0].summary.final_mean_se:.1f}" in text


def test_losses_are_averaged_within_time_steps(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    losses = {1: [4.0, 2.0, math.nan, 1.0], 2: [3.0, 3.0]}
    lines = [
        json.dumps({"event": "update", "t": t, "phase": "joint", "spent": 32.0 * i, "loss": {"memory": value}})
        for t, values in losses.items()
        for i, value in enumerate(values, start=1)
    ]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    drawn = loss_lines(read_run(folder))
    assert drawn is not None
    assert drawn.lines["memory"] == pytest.approx([4, 2, math.nan, 1, 3, 3], nan_ok=True)
    assert drawn.x == pytest.approx([0.5 + 32 / 1216, 0.5 + 64 / 1216, 0.5 + 96 / 1216, 0.5 + 128 / 1216, *drawn.x[4:]])
    (folder / "receipts.json").unlink()
    drawn = loss_lines(read_run(folder))
    assert drawn is not None
    assert drawn.x == pytest.approx([0.75, 1, 1.25, 1.5, 2, 2.5])


def test_many_updates_become_a_few_hundred_points(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    events = [{"event": "update", "t": 1, "spent": i, "loss": {"a": float(i)}} for i in range(1, 5001)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    drawn = loss_lines(read_run(folder))
    assert drawn is not None
    assert len(drawn.x) == 400
    assert (np.diff(drawn.lines["a"]) > 0).all()


def test_spending_sums_to_the_budget_in_its_own_unit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=3)
    spent = spending(read_run(folder))
    assert spent is not None
    assert list(spent.by_purpose) == ["masked", "memory", "reconstruct"]  # evaluation is free
    assert sum(spent.by_purpose.values()) + spent.unused == pytest.approx(spent.budget)
    receipts = json.loads((folder / "receipts.json").read_text())
    for step in receipts["steps"]:
        step |= {"budget": 10.0, "spent": 9.5, "unused": 0.5}
    (folder / "receipts.json").write_text(json.dumps(receipts | {"unit": "seconds"}))
    spent = spending(read_run(folder))
    assert spent is not None
    assert spent.by_purpose["memory"] == pytest.approx([9.5 * 512 / 1216] * 3)
    assert sum(spent.by_purpose.values()) + spent.unused == pytest.approx(spent.budget)


def test_curves_start_where_their_time_step_does(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", time_steps=5, curves=True))
    curves = origin_lines(run)
    assert curves is not None
    assert list(curves.lines) == ["1", "2", "3", "4", "5"]
    assert np.isnan(curves.lines["5"][curves.x <= 4.5]).all()
    assert not np.isnan(curves.lines["1"]).any()
    assert (np.diff(curves.x) > 0).all()
    with np.load(tmp_path / "run" / "counts.npz") as counts:
        without = {name: counts[name] * (np.arange(5) != 1) for name in counts.files}
    np.savez(tmp_path / "run" / "counts.npz", **without)
    curves = origin_lines(read_run(tmp_path / "run"))
    assert curves is not None
    assert list(curves.lines) == ["1", "3", "4", "5"]


def test_samples_are_spread_over_the_stream_and_the_scale_covers_all_runs(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", time_steps=30))
    assert run.samples is not None
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
    (tmp_path / "run" / "config.json").write_text("{}")
    assert write_report([tmp_path / "run"], tmp_path / "out").is_file()
    row = comparison_rows(read_runs([tmp_path / "run"]))[0]
    assert (row["method"], row["final_mean"], row["passes"], row["seconds"]) == ("?", None, None, None)


def test_a_long_stream_shows_its_matrix_as_a_picture(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=2)
    count = np.tri(160, k=1, dtype=np.int64) * 4
    np.savez(folder / "counts.npz", correct=count // 2, count=count, loss_sum=count * 1.0)
    text = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert 'data-kind="matrix"' not in text
    assert 'alt="Accuracy matrix of dietcl"' in text


def test_importing_the_report_loads_no_heavy_library() -> None:
    code = "import sys, dietcl.report; print([m for m in ('matplotlib', 'torch', 'PIL', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
