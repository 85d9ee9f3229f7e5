"""Counts by true and predicted class: accuracy by class and the most frequent mistakes, worked out by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.report.confusion import ClassRow, Confusion, Examples, Mistake
from dietcl.report.evaluation import score_sentence, write_evaluation
from dietcl.report.run_files import read_confusion

# true, predicted, count; -1 is a class never revealed, or no answer
CELLS = [(-1, 0, 2), (0, 0, 3), (0, 1, 1), (1, 0, 5), (1, 1, 1), (1, 2, 6), (2, -1, 2), (2, 1, 2)]


@pytest.fixture
def confusion() -> Confusion:
    return Confusion(("ant", "bee", "cat"), *np.array(CELLS, np.int64).T)


def test_rows_by_class_begin_with_the_worst(confusion: Confusion) -> None:
    assert confusion.by_class() == [
        ClassRow("cat", 0, 4, Mistake("cat", "no answer", 2)),
        ClassRow("never revealed", 0, 2, Mistake("never revealed", "ant", 2)),
        ClassRow("bee", 1, 12, Mistake("bee", "cat", 6)),
        ClassRow("ant", 3, 4, Mistake("ant", "bee", 1)),
    ]
    assert [row.accuracy for row in confusion.by_class()] == [0, 0, 1 / 12, 3 / 4]
    assert (confusion.right, confusion.total) == (4, 22)


def test_mistakes_begin_with_the_most_frequent(confusion: Confusion) -> None:
    assert confusion.mistakes(2) == [Mistake("bee", "cat", 6), Mistake("bee", "ant", 5)]
    assert [mistake.count for mistake in confusion.mistakes()] == [6, 5, 2, 2, 2, 1]


def test_the_matrix_has_true_classes_as_rows(confusion: Confusion) -> None:
    assert confusion.matrix().tolist() == [[3, 1, 0, 0], [5, 1, 6, 0], [0, 2, 0, 2], [2, 0, 0, 0]]
    assert confusion.labels == ("ant", "bee", "cat", "never revealed / no answer")


@pytest.mark.parametrize(
    ("accuracy", "images", "classes", "sentence"),
    [
        (0.512, 2000, 100, "51.2 % of 2,000 test images of 100 classes correctly, 51 times chance"),
        (0.5, 1, 3, "50.0 % of 1 test image of 3 classes correctly, 1.5 times chance"),
        (0.01, 10, 100, "1.0 % of 10 test images of 100 classes correctly, no more than by chance"),
        (1.0, 10, 1, "100.0 % of 10 test images of 1 class correctly, no more than by chance"),
        (0.25, 8, None, "25.0 % of 8 test images correctly"),
    ],
)
def test_a_score_is_compared_with_chance(accuracy: float, images: int, classes: int | None, sentence: str) -> None:
    assert score_sentence(accuracy, images, classes) == sentence


def test_an_evaluation_is_a_page_and_its_numbers(confusion: Confusion, tmp_path: Path) -> None:
    images = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
    examples = Examples(images, ("bee", "<cat>"), ("cat", "bee"))
    nasty = replace(confusion, classes=("ant", "bee", "<cat>"))
    page = write_evaluation(tmp_path / "out", tmp_path, "a & b", "22 images", nasty, examples)
    text = page.read_text(encoding="utf-8")
    assert "<h1>a &amp; b</h1>" in text
    assert "The model classifies 18.2 % of 22 test images of 3 classes correctly, no more than by chance." in text
    assert text.count('alt="&lt;cat&gt;, taken for bee"') == 1
    assert "<cat>" not in text
    assert "<script" not in text
    numbers = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (numbers["right"], numbers["total"], numbers["accuracy"]) == (4, 22, 4 / 22)
    assert [row["class"] for row in numbers["by_class"]] == ["<cat>", "never revealed", "bee", "ant"]
    assert numbers["mistakes"][0] == {"truth": "bee", "predicted": "<cat>", "count": 6}
    assert (numbers["chance"], numbers["unknown_classes"]) == (1 / 3, [])
    assert "The mark in each bar is chance, 33.3 %: guessing among 3 classes." in text
    assert text.count("--chance:33.3%") == 4


def test_classes_that_the_model_does_not_know_keep_their_names(tmp_path: Path) -> None:
    cells = np.array([(0, 0, 3), (1, 0, 1), (2, 1, 2), (3, 1, 4)], np.int64).T
    confusion = Confusion(("ant", "bee", "cow", "dog"), *cells, unknown=2, noun="training image")
    assert (confusion.chance, confusion.unknown_classes) == (1 / 2, ("cow", "dog"))
    none = Examples(np.zeros((0, 8, 8, 3), np.uint8), (), ())
    text = write_evaluation(tmp_path, tmp_path, "new", "", confusion, none).read_text(encoding="utf-8")
    assert "30.0 % of 10 training images of 4 classes (2 unknown to it) correctly, no more than by chance." in text
    assert "Only 10 training images: an accuracy" in text
    assert "test image" not in text
    named = re.findall(r'<th scope="row">(\w+) <small>unknown to the model</small></th><td>0</td><td>(\d)</td>', text)
    assert named == [("dog", "4"), ("cow", "2")]
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert [row["class"] for row in numbers["by_class"]] == ["dog", "cow", "bee", "ant"]
    assert numbers["unknown_classes"] == ["cow", "dog"]


def test_many_classes_are_folded_after_ten(tmp_path: Path) -> None:
    numbers = np.arange(12)
    many = Confusion(tuple(f"class {i:02d}" for i in numbers), numbers, numbers, numbers + 1)
    none = Examples(np.zeros((0, 8, 8, 3), np.uint8), (), ())
    page = write_evaluation(tmp_path, tmp_path, "many", "", many, none)
    text = page.read_text(encoding="utf-8")
    seen, folded = text.split("<summary>Show 2 more classes</summary>")
    assert (seen.count('<th scope="row">class'), folded.count('<th scope="row">class')) == (10, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"truth": np.array([0, 3, 0])}, "a class number is none of the 2 classes"),
        ({"predicted": np.array([0, -2, 0])}, "a class number is none of the 2 classes"),
        ({"count": np.array([1, 2])}, "not int64 arrays of one length"),
        ({"count": np.array([1.0, 2.0, 3.0])}, "not int64 arrays of one length"),
        ({"classes": None}, "the array 'classes' is missing"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, change: dict[str, np.ndarray | None], words: str) -> None:
    whole = {"classes": np.array(["ant", "bee"])} | {
        name: np.array([0, 1, 0]) for name in ("truth", "predicted", "count")
    }
    np.savez(
        tmp_path / "confusion.npz", **{name: value for name, value in (whole | change).items() if value is not None}
    )
    with pytest.raises(UserError, match=f"confusion.npz: .*{words}"):
        read_confusion(tmp_path / "confusion.npz")
