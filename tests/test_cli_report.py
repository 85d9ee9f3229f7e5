"""`dietcl report` and `dietcl demo` in this process: what they find, print and refuse."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import dietcl.cli.run_progress
from dietcl.cli.main import main
from dietcl.config import RunConfig
from helpers.fake_runs import write_run

ODD = "[/b] [red]"  # a tag that closes nothing, which rich refuses, and one that it would swallow


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Let the demo's runs be made up, and return their configurations once it has started them."""
    seen = []

    def carry_out(runs: Sequence[tuple[RunConfig, Path]], **options: Any) -> None:
        for config, folder in runs:
            seen.append(config)
            changes = {"sampling": config.method_config.sampling} if config.method == "er" else {}
            write_run(folder, method=config.method, time_steps=2, options=changes)

    monkeypatch.setattr(dietcl.cli.run_progress, "carry_out", carry_out)
    return seen


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
    assert err == f"dietcl report: left out, as no run lies there: {tmp_path / 'runs' / 'pretrain'}\n"
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


def test_a_file_is_no_place_for_a_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configs: list[RunConfig]
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert not configs


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("30", "30 updates of 16 images at each time step."),
        ("1", "1 update of 16 images at each time step."),
        ("2h", "2h of computation at each time step."),
        ("2e12flops", "2e12 FLOPs of computation at each time step."),
    ],
)
def test_the_demo_says_what_it_does_and_where_its_picture_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configs: list[RunConfig], budget: str, words: str
) -> None:
    folder = tmp_path / ODD
    assert main(["demo", "--out", str(folder), "--budget", budget]) == 0
    out = capsys.readouterr().out
    assert f"20 time steps, 2 % of the labels, {words}" in out
    assert [config.method for config in configs] == ["dietcl", "er", "er"]
    assert [config.method_config.sampling for config in configs[1:]] == ["uniform", "balanced"]
    assert {(config.recipe.time_steps, config.recipe.label_rate) for config in configs} == {(20, 0.02)}
    assert {(config.training.batch, config.budget) for config in configs} == {(16, budget)}
    for title in ("report", "picture"):
        found = re.search(rf"^{title}: (.+)$", out, flags=re.MULTILINE)
        assert found is not None
        assert Path(found[1]).is_file()
