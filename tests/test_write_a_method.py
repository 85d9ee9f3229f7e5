"""The page about writing a method is followed to the letter in a copy of the package."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/write-a-method.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.S)
CODE, LINE = (text for language, text in BLOCKS if language == "python")
(COMMANDS,) = (text for language, text in BLOCKS if not language)


def test_the_method_is_short():
    assert len(CODE.splitlines()) < 40


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (place,) = re.findall(r"Save this as `(.*?)`", PAGE)
    (folder / place).write_text(CODE)
    (table,) = re.findall(r"the table in `(.*?)`", PAGE)
    text = (folder / table).read_text()
    start = "METHODS: dict[str, str] = {\n"
    assert start in text
    (folder / table).write_text(text.replace(start, start + LINE))
    return folder


@pytest.mark.parametrize("command", COMMANDS.splitlines())
def test_every_command_of_the_page_works(copy, command):
    program, *arguments = shlex.split(command)
    assert program == "dietcl"
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "dietcl", *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "taught" in result.stdout or "taught" in " ".join(arguments)
