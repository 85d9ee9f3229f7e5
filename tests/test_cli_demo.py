"""`dietcl demo`: its setting is that of the reproduction, and its explanation follows from the counts."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dietcl.cli import compare
from dietcl.cli.demo import BUDGET, CONTESTANTS, LARDER, STREAM_TIME_STEPS, TIME_STEPS, explanation
from dietcl.cli.main import main
from dietcl.config import RunConfig
from dietcl.metrics import Summary, summarize
from helpers.fake_runs import write_run
from reproduction.study import Study
from reproduction.suites import DIETCL, ER_UNIFORM, Point

ROOT = Path(__file__).parent.parent
ARMS = {"dietcl": DIETCL, "er:uniform": ER_UNIFORM}


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Let the demo's runs be made up, and return their configurations once it has started them."""
    seen = []

    def write_runs(runs: Sequence[tuple[RunConfig, Path]], *others: Any) -> set[Path]:
        for config, folder in runs:
            seen.append(config)
            changes = {"sampling": config.method_config.sampling} if config.method == "er" else {}
            write_run(folder, method=config.method, time_steps=2, options=changes)
        return set()

    monkeypatch.setattr(compare, "_execute_runs", write_runs)
    return seen


def of_100(correct: int) -> Summary:
    """Return the summary of a run that was tested once, on 100 images."""
    return summarize([[correct]], [[100]], [[0]])


@pytest.mark.parametrize("contestant", CONTESTANTS[1:], ids=lambda contestant: contestant.method)
def test_it_is_the_beginning_of_a_run_of_table_1(contestant) -> None:
    config = contestant.config(str(BUDGET), seed=0)
    expected = Study("glyphs", ROOT / "results").cell(ARMS[contestant.method], Point(), 0).config
    if contestant.method == "dietcl":
        assert config.method_config.threshold == "80%"
    threshold = str(round(0.8 * BUDGET))  # of no effect on Replay
    method_config = replace(config.method_config, threshold=threshold)
    assert replace(config, source=None, first_time_steps=None, method_config=method_config) == expected
    assert config.first_time_steps == TIME_STEPS


def test_larder_learns_the_same_stream_at_the_same_rates() -> None:
    larder, *others = (contestant.config(str(BUDGET), seed=0) for contestant in CONTESTANTS)
    assert LARDER.method == "larder"
    for other in others:
        assert replace(larder, method=other.method, method_config=other.method_config) == other


def test_the_readme_describes_this_demo() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"learns the first {TIME_STEPS} of {STREAM_TIME_STEPS} time steps" in text
    assert f"with {BUDGET} updates per time step" in text


def test_the_explanation_follows_from_the_counts() -> None:
    # The standard errors of 50, 20 and 40 of 100 are 5, 4 and 4.9 points; those of the differences 6.4 and 7.0.
    text = explanation([of_100(50), of_100(20), of_100(40)], "2h of computation")
    assert text.startswith(
        "After 8 time steps Larder is 30.0 ± 6.4 points above DietCL (more than two standard errors) "
        "and 10.0 ± 7.0 points above ER uniform (within two standard errors). "
        "This is one seed, with 2h of computation at each time step; "
    )
    assert "20.0 ± 6.3 points below DietCL (more than two standard errors)" in explanation(
        [of_100(20), of_100(40), of_100(20)], ""
    )


def test_a_file_is_no_place_for_a_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert "choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("30", "30 updates of 64 images at each time step."),
        ("1", "1 update of 64 images at each time step."),
        ("2h", "2h of computation at each time step."),
        ("2e12flops", "2e12 FLOPs of computation at each time step."),
    ],
)
def test_the_demo_says_what_it_does_and_where_its_picture_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], configs: list[RunConfig], budget: str, words: str
) -> None:
    folder = tmp_path / "[/b] [red]"  # a tag that closes nothing, which rich refuses, and one that it would swallow
    assert main(["demo", "--out", str(folder), "--budget", budget]) == 0
    out = capsys.readouterr().out
    assert f"5 new characters and 2 % of the labels at each, {words}" in out
    assert [config.method for config in configs] == ["larder", "dietcl", "er"]
    assert configs[2].method_config.sampling == "uniform"
    assert {config.budget for config in configs} == {budget}
    for title in ("report", "picture"):
        found = re.search(rf"^{title}: (.+)$", out, flags=re.MULTILINE)
        assert found is not None
        assert Path(found[1]).is_file()
    assert out.splitlines()[-1].startswith("After 8 time steps Larder is ")
