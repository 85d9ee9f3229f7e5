"""The page about writing a method is followed to the letter, in a file outside the package."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dietcl
from dietcl.cli.main import main
from dietcl.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/write-a-method.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.S)
(CODE,) = (text for language, text in BLOCKS if language == "python")
COMMANDS = {
    line.split()[2]: shlex.split(line) for language, text in BLOCKS if not language for line in text.splitlines()
}


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Iterator[Path]:
    (name,) = re.findall(r"Save this as `(.*?)`", PAGE)
    path = tmp_path_factory.mktemp("own") / name
    path.write_text(CODE)
    known = dict(METHODS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    yield path
    METHODS.clear()
    METHODS.update(known)


def test_the_method_is_short():
    assert len(CODE.splitlines()) < 50
    assert list(COMMANDS) == ["methods", "train", "compare"]


@pytest.mark.parametrize("verb", ["methods", "train"])
def test_the_file_adds_its_method_to_the_command(script, verb, capsys, monkeypatch):
    python, name, *arguments = COMMANDS[verb]
    assert (python, name) == ("python", script.name)
    monkeypatch.chdir(script.parent)
    assert main(arguments) == 0
    assert "taught_re" in capsys.readouterr().out
    if verb == "train":
        (run,) = Path("runs").iterdir()
        (prediction,) = dietcl.load(run).predict([np.zeros((32, 32, 3), np.uint8)])
        assert isinstance(prediction, dietcl.Prediction)


@pytest.mark.long
def test_the_processes_of_a_comparison_know_it_too(script):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *COMMANDS["compare"][1:]]
    result = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "taught_replay" in result.stdout
