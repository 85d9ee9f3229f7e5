"""The page about the Python interface is followed to the letter, on a small folder of JPEGs."""

import re
from pathlib import Path

import pytest
from PIL import Image

from helpers.photos import photo

PAGE = (Path(__file__).parent.parent / "docs/api.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for number in range(60):
        place = tmp_path / "photos" / ("cat", "dog", "owl")[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number, 3)).save(place / f"{number}.jpg")
    (tmp_path / "new").mkdir()
    for number in (1, 2):
        Image.fromarray(photo(60 + number, 3)).save(tmp_path / f"new/{number}.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_runs_in_the_order_of_the_page(folder, capsys):
    names: dict[str, object] = {"__name__": "__main__"}
    printed = []
    for block in BLOCKS:
        exec(block, names)
        printed.append(capsys.readouterr().out)
    first, streams, _, compared, models, methods = printed
    assert re.search(r"new/2.jpg (cat|dog|owl) \d+%", first)
    assert "2 time steps" in streams
    assert compared.endswith("()\n")
    assert "new/missing.jpg cannot be read" in models
    assert "linear_probe Fits" in methods
    assert (folder / "runs/probe/report.html").is_file()


def test_predictions_take_ten_lines():
    assert len([line for line in BLOCKS[0].splitlines() if line]) <= 10
