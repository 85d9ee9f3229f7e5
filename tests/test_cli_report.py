"""`dietcl report` in this process: what it finds, prints and refuses."""

import json
from pathlib import Path

import pytest

from dietcl.cli.main import main
from helpers.fake_runs import write_run

ODD = "[/b] [red]"  # a tag that closes nothing, which rich refuses, and one that it would swallow


def test_everything_in_a_folder_of_runs_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "run", time_steps=2)
    write_run(tmp_path / "runs" / "demo" / "er", method="er", time_steps=2)
    (tmp_path / "runs" / "pretrain").mkdir()
    (tmp_path / "runs" / "pretrain" / "config.json").write_text('{"pretraining": {}}')
    named = [str(path) for path in sorted((tmp_path / "runs").iterdir())]
    assert main(["report", *named, "--out", str(tmp_path / "out"), "--json"]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert [row["method"] for row in printed["runs"]] == ["er", "dietcl"]
    assert {"backward_transfer", "forward_transfer"} < printed["runs"][0].keys()
    assert err == f"dietcl report: left out, as not a run: {tmp_path / 'runs' / 'pretrain'}\n"
    assert main(["report", str(tmp_path / "runs" / "demo")]) == 0
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()


def test_no_run_at_all_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pretrain").mkdir()
    (tmp_path / "pretrain" / "config.json").write_text('{"pretraining": {}}')
    assert main(["report", str(tmp_path / "pretrain"), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "pretrain: not a run folder, its config.json names no method" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_brackets_in_names_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / ODD / "run", time_steps=2, stream="[red].parquet", labels=(ODD, "b"))
    page = tmp_path / ODD / "out" / "report.html"
    assert main(["report", str(folder), "--out", str(page.parent)]) == 0
    out = capsys.readouterr().out
    assert "[red], 2 time steps of 20 updates" in out
    assert f"report: {page}\n" in out
    assert page.is_file()


@pytest.mark.parametrize("below", ["", "further"])
def test_a_file_is_no_place_for_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str) -> None:
    (tmp_path / "file").touch()
    folder = write_run(tmp_path / "run", time_steps=2)
    assert main(["report", str(folder), "--out", str(tmp_path / "file" / below)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'file' / below}: " in said
    assert "choose another --out" in said
