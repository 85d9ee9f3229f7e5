"""Every command of the README is run as a reader would type it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines()]
(PYTHON,) = (text for language, text in BLOCKS if language == "python")


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A folder with real JPEGs of two classes, one of them cut off, and two new ones."""
    folder = tmp_path_factory.mktemp("desk")
    generator = np.random.default_rng(0)
    for name, brightness in (("cat", 60), ("dog", 190)):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(20):
            pixels = generator.normal(brightness, 30, (48, 64, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.jpg")
    (folder / "new").mkdir()
    for number, name in ((1, "cat"), (2, "dog")):
        (folder / "photos" / name / "19.jpg").rename(folder / "new" / f"{number}.jpg")
    broken = folder / "photos" / "cat" / "7.jpg"
    broken.write_bytes(broken.read_bytes()[:500])
    return folder


def test_the_readme_names_two_commands_and_more():
    assert COMMANDS[:2] == ["make demo", "make test"]
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("make ")])
def test_make_knows_what_to_do(command):
    # Run dry, from nothing: `make test` would run this test again, and the demo's own verb is run below.
    arguments = [*shlex.split(command), "--dry-run", "--always-make"]
    plan = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ("dietcl demo" if "demo" in command else "pytest") in plan
    assert ("[dev]" in plan) == (command == "make test"), "the demo needs no development tools"


@pytest.mark.long
def test_the_other_commands_work_in_their_order(desk):
    for line in COMMANDS:
        if line.startswith("make "):
            continue
        program, *arguments = shlex.split(line)
        assert program == "dietcl"
        result = subprocess.run(
            [sys.executable, "-m", "dietcl", *arguments], cwd=desk, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
    assert (desk / "runs/photos/report.html").is_file()
    config = json.loads((desk / "runs/photos/config.json").read_text())
    assert (config["model"]["encoder"], config["weights"]) == ("lite", "shipped")  # with no option for it
    assert (desk / "demo/report.html").is_file()
    assert (desk / "shown/contact.png").is_file()
    assert "cat/7.jpg" in (desk / "data/photos/quarantine.csv").read_text()


@pytest.mark.long
def test_ten_lines_of_python_lead_from_a_folder_of_photos_to_predictions(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("DIETCL_CACHE", str(desk / "cache"))
    assert len([line for line in PYTHON.splitlines() if line]) <= 10
    exec(PYTHON, {})  # the README's own words
    *_, one, other = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in (one, other)] == ["cat", "dog"]
    assert all(float(line.split()[1]) > 0.6 for line in (one, other))
