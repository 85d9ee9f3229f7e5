"""Statistics of streams worked out by hand, and published counts beside ones that are right and wrong."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dietcl.cli.data import stats
from dietcl.errors import UserError
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import Facts, write_manifest
from dietcl.streams.options import Recipe
from dietcl.streams.statistics import AGREES, DIFFERS, OTHERWISE, PAPER, Spread, Statistics, differences, statistics
from dietcl.streams.stream import build_stream


def write(folder: Path, source: str | None = None) -> Path:
    """Write 12 training images at times 0 to 11 (a b c a b c a b a b a a), one without a label, and 5 test images."""
    label = [*"abcabcababaa", None, *"abzza"]
    count = len(label)
    columns = {
        "id": [str(number) for number in range(count)],
        "file": ["images.npy"] * count,
        "offset": list(range(count)),
        "label": label,
        "time": [*range(12), 0.5, 0, 4, 5, 6, 11],
        "split": ["train"] * 13 + ["test"] * 5,
    }
    return write_manifest(
        folder / "manifest.parquet", columns, Facts(source=source, recipe="time", time_steps=2, label_rate=0.5)
    )


@pytest.fixture
def found(tmp_path: Path) -> Statistics:
    """Two time steps: 7 images to time 5 (a a b b c c and the unknown one), 6 later (a a a a b b)."""
    index = open_manifest(write(tmp_path))
    recipe = Recipe(recipe="time", time_steps=2, label_rate=0.5)
    return statistics(build_stream("small", index, recipe, 0), index, recipe.label_rate)


def test_a_small_stream_is_counted_as_by_hand(found: Statistics) -> None:
    assert found == Statistics(
        time_steps=2,
        classes=3,
        test_only_classes=1,
        revealed_classes=3,
        classes_per_step=Spread(2.5, 2, 3),
        labeled=Spread(3.0, 3, 3),  # half of a a b b c c; half of a a a a b b
        unlabeled=Spread(3.5, 3, 4),
        test=Spread(2.5, 2, 3),  # times 0 4 5, and 6 11
        train_images=13,
        test_images=5,
        label_rate=0.5,
        realized_rate=6 / 13,
        images_per_class=(2, 4.0, 6),
    )


def test_hidden_classes_count_too(tmp_path: Path) -> None:
    index = open_manifest(write(tmp_path))
    hidden = statistics(build_stream("small", index, Recipe(recipe="time", time_steps=2, label_rate=0), 0), index)
    assert (hidden.classes, hidden.revealed_classes, hidden.labeled.mean) == (3, 0, 0)
    assert hidden.label_rate is None


def right(name: str) -> Statistics:
    """Counts that a right copy of a benchmark has, by what is known of it."""
    common = {"test_only_classes": 0, "realized_rate": 0.0, "images_per_class": (0, 0.0, 0), "time_steps": 20}
    classes, per_step, labeled, unlabeled, test, train, rate = {
        "imagenet10k": (9_459, 472.95, 4_911, 486_222.75, 23_647.5, 9_822_675, 0.01),
        "imagenet2k": (1_000, 50, 651, 64_494, 2_500, 1_302_903, 0.01),
        "cloc": (713, 713, 9_500, 1_890_500, 19_000, 38_000_000, 0.005),
        "cglm": (10_788, 4_000, 700, 28_355, 3_000, 581_100, 0.05),
    }[name]
    spreads = [Spread(mean, 0, 0) for mean in (per_step, labeled, unlabeled, test)]
    return Statistics(
        classes=classes,
        revealed_classes=classes,
        classes_per_step=spreads[0],
        labeled=spreads[1],
        unlabeled=spreads[2],
        test=spreads[3],
        train_images=train,
        test_images=int(20 * test),
        label_rate=rate,
        **common,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", list(PAPER))
def test_a_right_copy_agrees_with_what_is_published(name: str) -> None:
    assert not [one for one in differences(name, right(name)) if one.verdict == DIFFERS]


def verdicts(name: str, found: Statistics) -> dict[str, str]:
    return {one.quantity: one.verdict for one in differences(name, found)}


def test_where_the_paper_contradicts_itself_either_reading_will_do() -> None:
    assert verdicts("imagenet10k", right("imagenet10k")) == {
        "splits": AGREES,
        "classes": AGREES,
        "classes per split": AGREES,
        "images": AGREES,
        "label rate asked": AGREES,
        "labeled per split": AGREES,
        "unlabeled per split": AGREES,
        "inference data per split": OTHERWISE,
    }
    notes = {(name, one.quantity): one.note for name in PAPER for one in differences(name, right(name))}
    assert "23.6k, not 12k" in notes["imagenet10k", "inference data per split"]
    assert "9.5k, not 1k" in notes["cloc", "labeled per split"]
    assert "10788 in the text" in notes["cloc", "classes"]
    assert "1.5k, not 0.6k" in notes["cglm", "labeled per split"]
    halved = replace(right("imagenet10k"), test=Spread(12_100, 0, 0))
    assert verdicts("imagenet10k", halved)["inference data per split"] == AGREES
    as_written = replace(right("cloc"), labeled=Spread(1_000, 0, 0))
    assert verdicts("cloc", as_written)["labeled per split"] == AGREES


@pytest.mark.parametrize(
    ("mean", "verdict"), [(4_499, DIFFERS), (4_500, AGREES), (5_000, AGREES), (5_500, AGREES), (5_501, DIFFERS)]
)
def test_rounding_is_that_of_the_table(mean: float, verdict: str) -> None:
    assert (
        verdicts("imagenet10k", replace(right("imagenet10k"), labeled=Spread(mean, 0, 0)))["labeled per split"]
        == verdict
    )


def test_a_total_may_count_test_images_or_not() -> None:
    whole = replace(right("cglm"), train_images=521_100, test_images=60_000)
    assert verdicts("cglm", whole)["images"] == AGREES
    assert verdicts("cglm", replace(whole, train_images=521_099))["images"] == DIFFERS


def test_what_is_not_published_cannot_be_compared(found: Statistics) -> None:
    with pytest.raises(UserError, match=r"--check glyphs: .*choose from imagenet10k, imagenet2k, cloc, cglm"):
        differences("glyphs", found)


def test_the_table_has_the_columns_of_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert stats.main([str(write(tmp_path))]) == 0  # cut as the manifest says
    head, row, *rest = capsys.readouterr().out.splitlines()
    titles = [
        "Dataset",
        "Split",
        "Classes per split",
        "Labeled per split",
        "Unlabeled per split",
        "Inference data per split",
    ]
    assert [head.index(title) for title in titles] == sorted(head.index(title) for title in titles)
    for cell in ("2.5 (2-3)", " 3 ", "3.5 (3-4)", "2.5 (2-3)"):
        assert cell in row
    assert rest == [
        "13 training and 5 test images",
        "3 classes (3 revealed), 1 more in test images only",
        "realized label rate 46.15%, 50.00% asked",
        "training images per class: 2 to 6, median 4",
    ]


def test_json_has_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str], found: Statistics) -> None:
    assert stats.main([str(tmp_path / "manifest.parquet"), "--seed", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["statistics"] == json.loads(json.dumps(asdict(found)))
    assert told["recipe"]["recipe"] == "time"
    assert "differences" not in told


def test_options_cut_it_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stats.main(["--recipe", "data", "--time-steps", "13", "--json", str(write(tmp_path))]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"]["time_steps"] == 13


def test_a_check_that_fails_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    manifest = str(write(tmp_path, source="cglm"))
    assert stats.main([manifest, "--check", "auto"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (classes,) = [line for line in lines if line.strip().startswith("classes ")]
    assert classes.split()[:4] == ["classes", "10,788", "3", "differs"]
    assert stats.main([manifest, "--check", "cloc", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["check"] == "cloc"
    assert [one["quantity"] for one in told["differences"]] == [one.quantity for one in PAPER["cloc"]]


def test_a_check_that_holds_ends_with_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "statistics", lambda *_: right("imagenet10k"))
    assert stats.main([str(write(tmp_path)), "--check", "imagenet10k"]) == 0
    assert "agrees otherwise" in capsys.readouterr().out


@pytest.mark.parametrize("check", ["auto", "glyphs"])
def test_nothing_to_check_against_is_an_error(tmp_path: Path, check: str) -> None:
    with pytest.raises(UserError, match=f"--check {check}: .*choose from imagenet10k"):
        stats.main([str(write(tmp_path, source="folder")), "--check", check])


def test_no_stream_and_a_wrong_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no STREAM"):
        stats.main(["--seed", "1"])
    with pytest.raises(UserError, match="no such manifest"):
        stats.main([str(tmp_path / "nothing.parquet")])
    with pytest.raises(UserError, match="no such stream"):
        stats.main(["nothing"])


def test_help_names_every_benchmark_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom dietcl.cli.data.stats import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.endswith("[]\n")
    assert "Examples" in told
    assert all(name in told for name in PAPER)
