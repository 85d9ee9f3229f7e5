"""`dietcl data`: preparing, checking and showing, as typed on a command line."""

import csv
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dietcl.cli.config_options import flags, take_first
from dietcl.cli.data import VERBS
from dietcl.cli.train import parse_run
from dietcl.config_builder import default_recipe, manifest_facts
from dietcl.run import stream_of
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import Facts, read_facts, write_manifest
from dietcl.streams.options import Recipe
from dietcl.streams.sources import registry
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.stream import build_stream, remarks
from helpers.prepared import dietcl


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let relative paths lead to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def photos(root: Path, steps: int = 0, classes: int = 4, per_class: int = 6) -> Path:
    """Write CLASS/image.png, or STEP/CLASS/image.png."""
    for step in range(max(1, steps)):
        for label in range(classes):
            folder = root / (f"{step + 1}/class {label}" if steps else f"class {label}")
            folder.mkdir(parents=True)
            for i in range(per_class):
                shade = np.full((20, 24, 3), 8 * step, np.uint8)
                shade[:, :, label % 3] = 80 + 20 * i
                Image.fromarray(shade).save(folder / f"{i}.png")
    return root


def size(path: Path) -> tuple[int, int]:
    """The size of a picture that opens, and is not of one color."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        image.load()
        low, high = image.convert("L").getextrema()
        assert low < high  # type: ignore[operator]
        return image.size


def test_the_list_of_verbs(capsys: Any) -> None:
    for arguments in (["data"], ["data", "--help"], ["data", "-h"]):
        result = dietcl(capsys, *arguments)
        assert result.code == 0
        assert all(f"\n  {verb} " in result.out for verb in VERBS)
        assert "Examples" in result.out
    assert "\n  data " in dietcl(capsys, "--help").out


@pytest.mark.parametrize("verb", ["prepare", "check", "show"])
def test_every_verb_explains_itself(capsys: Any, verb: str) -> None:
    result = dietcl(capsys, "data", verb, "--help")
    assert result.code == 0
    assert f"dietcl data {verb}" in result.out
    assert "Examples" in result.out
    assert "--out" in result.out


def test_help_is_quick() -> None:
    code = (
        "import sys\nfrom dietcl.cli.main import main\n"
        "for arguments in (['data', '--help'], ['data', 'check', '--help'], ['data', 'show', '--help']):\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "try:\n    main(['data', 'prepare', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'matplotlib'} & set(sys.modules)\n"
        "print(heavy, file=sys.stderr)\nsys.exit(len(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_help_names_the_kinds_and_then_their_options(capsys: Any, tmp_path: Path) -> None:
    result = dietcl(capsys, "data", "prepare", "--help")
    assert all(f"  {name} " in result.out for name in registry.READERS)
    assert "--test-share" not in result.out.split("options")[-1]
    assert "--test-share" in dietcl(capsys, "data", "prepare", "--kind", "folder", "--help").out
    assert "--test-share" in dietcl(capsys, "data", "prepare", photos(tmp_path / "in"), "--help").out


@pytest.mark.parametrize("kind", registry.READERS)
def test_every_kind_explains_itself(capsys: Any, kind: str) -> None:
    result = dietcl(capsys, "data", "prepare", "--kind", kind, "--help")
    assert result.code == 0, result.said
    assert "--out" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "chekc"], ["data chekc", "check"]),
        (["data", "zzz"], ["data zzz", "choose from prepare"]),
        (["data", "prepare"], ["PATH"]),
        (["data", "prepare", "--kind", "folder"], ["PATH"]),
        (["data", "prepare", "nowhere"], ["nowhere", "no such file or folder"]),
        (["data", "prepare", "in", "--kind", "foldr"], ["--kind foldr", "folder"]),
        (["data", "prepare", "in", "--kind"], ["--kind", "expected one argument"]),
        (["data", "prepare", "in", "--verify", "perhaps"], ["--verify", "perhaps"]),
        (["data", "prepare", "in", "--test-share", "2"], ["--test-share 2"]),
        (["data", "prepare", "in", "--tset-share", "0.2"], ["--tset-share"]),
        (["data", "prepare", "in", "in2"], ["in2"]),
        (["data", "prepare", "in", "--out", "in/class 0/0.png"], ["in/class 0/0.png", "--out"]),
        (["data", "prepare", "empty"], ["empty", "no images were found"]),
        (["data", "prepare", "nowhere://bucket/x"], ["nowhere://bucket/x"]),
        (["data", "check"], ["MANIFEST"]),
        (["data", "check", "nowhere.parquet"], ["nowhere.parquet", "no such manifest"]),
        (["data", "check", "text.parquet"], ["text.parquet", "not a readable Parquet file"]),
        (["data", "check", "text.parquet", "--sample", "0"], ["--sample 0"]),
        (["data", "check", "text.parquet", "--jobs", "-1"], ["--jobs -1"]),
        (["data", "show"], ["STREAM"]),
        (["data", "show", "glyph"], ["glyph", "glyphs"]),
        (["data", "show", "nowhere.parquet"], ["nowhere.parquet", "no such manifest"]),
        (["data", "show", "text.parquet"], ["text.parquet", "not a readable Parquet file"]),
        (["data", "show", "glyphs", "--per-cell", "0"], ["--per-cell 0"]),
        (["data", "show", "glyphs", "--classes", "1000"], ["--classes 1000"]),
        (["data", "show", "glyphs", "--label-rate", "7"], ["--label-rate 7"]),
    ],
)
def test_wrong_input_gets_a_sentence_and_exit_code_2(capsys: Any, arguments: list[str], words: list[str]) -> None:
    photos(Path("in"), classes=1, per_class=2)
    Path("empty").mkdir()
    Path("text.parquet").write_text("words")
    result = dietcl(capsys, *arguments)
    assert result.code == 2, result.said
    assert all(word in result.said for word in words), result.said
    assert "Traceback" not in result.said
    assert not Path("runs").exists()
    assert not list(Path("data").rglob("*.parquet"))


def test_a_folder_becomes_a_manifest_that_says_what_came_next(capsys: Any) -> None:
    root = photos(Path("my photos"))
    (root / "class 1" / "words.txt").write_text("words")
    (root / "class 1" / "broken.png").write_bytes(b"words")
    result = dietcl(capsys, "data", "prepare", f"{root}/", "--test-share", "0")
    assert result.code == 0, result.said
    manifest = Path("data/my-photos/manifest.parquet")
    assert manifest.is_file()
    assert "images kept 24 (folder)" in result.said
    assert "train, test 24, 0" in result.said
    assert "classes 4 time none" in result.said
    assert "left out 2 1 not an image by its name 1 not a readable image" in result.said
    assert "listed in: data/my-photos/quarantine.csv" in result.said
    assert f"next: dietcl data show {manifest}\n" in result.out
    assert f"dietcl train --stream {manifest}\n" in result.out
    # Four classes cannot be spread over twenty time steps; all labels of one's own data are revealed.
    facts = read_facts(manifest)
    assert (facts.recipe, facts.time_steps, facts.label_rate) == ("class", 4, 1.0)
    stream = build_stream("x", open_manifest(manifest), default_recipe(facts), 0)
    assert [len(step.labeled) for step in stream.steps] == [6] * 4
    assert result.err == ""  # no progress where nobody watches
    assert dietcl(capsys, "data", "show", manifest, "--time-steps", "4").code == 0


def test_the_next_command_suits_the_data(capsys: Any) -> None:
    days = ["2026-03-01", "2026-03-02", "2026-03-09", "2026-04-20"]
    rows = [(f"class {i % 3}/{i // 3 % 6}.png", days[max(0, i // 12 - 3)]) for i in range(84)]
    photos(Path("in"), classes=3)
    lines = [f"{path},{path[:7] if i % 2 else ''},{day},{i}" for i, (path, day) in enumerate(rows)]
    Path("in/list.csv").write_text("path,label,time,id\n" + "\n".join(lines) + "\n")
    result = dietcl(capsys, "data", "prepare", "in/list.csv", "--out", "made", "--test-share", "0.2")
    assert result.code == 0, result.said
    assert "train, test 75, 9" in result.said  # of 42 labeled images
    assert "stream by time, 4 time steps, one per day, all labels revealed" in result.said
    assert "only 9 test images: an accuracy measured on so few is a rough guess" in result.said
    (command,) = [line for line in result.out.splitlines() if "dietcl train" in line]
    config, *_ = parse_run(command.split()[2:])
    stream, index = stream_of(config)
    assert len(stream.steps) == 4
    assert all(len(step.labeled) for step in stream.steps)
    assert sum(len(step.labeled) for step in stream.steps) == 42 - 9
    assert sum(len(test.rows) for test in stream.tests) == 9
    assert remarks(stream, index) == []


def test_few_images_of_one_class_are_not_spread_over_empty_time_steps(capsys: Any) -> None:
    photos(Path("in"), classes=1, per_class=8)
    result = dietcl(capsys, "data", "prepare", "in", "--out", "made")
    assert "stream by data, 1 time step, all labels revealed" in result.said
    assert "1 class; training images of each: 7\n" in result.out
    (command,) = [line for line in result.out.splitlines() if "dietcl train" in line]
    stream, index = stream_of(parse_run(command.split()[2:])[0])
    assert [len(step.labeled) for step in stream.steps] == [7]
    assert remarks(stream, index) == []


def test_images_without_labels_are_for_pre_training(capsys: Any) -> None:
    photos(Path("in"), classes=1)
    for path in Path("in/class 0").iterdir():
        path.rename(Path("in") / path.name)
    Path("in/class 0").rmdir()
    result = dietcl(capsys, "data", "prepare", "in", "--out", "made")
    assert "train, test 6, 0" in result.said
    assert "dietcl pretrain --stream made/manifest.parquet" in result.said


def test_test_images_that_cannot_count_are_named(capsys: Any) -> None:
    photos(Path("in"), classes=2)
    lines = [f"class {c}/{i}.png,{'' if i < 2 else c},{'test' if i < 3 else 'train'}" for c in "01" for i in range(6)]
    Path("in/list.csv").write_text("path,label,split\n" + "\n".join(lines) + "\n")
    result = dietcl(capsys, "data", "prepare", "in/list.csv", "--out", "made")
    assert "train, test 6, 6 (2 of them count, as the others have no label)" in result.said


def test_json(capsys: Any) -> None:
    photos(Path("in"), steps=3)
    result = dietcl(capsys, "data", "prepare", "--json", "in", "--test-share", "0.5", "--out", "made")
    assert result.code == 0, result.said
    facts = json.loads(result.out)
    assert facts["manifest"] == "made/manifest.parquet"
    assert facts["images"] == facts["train"] + facts["test"] == facts["labeled"] == facts["timed"] == 72
    assert facts["time"] == [0, 2]
    assert facts["classes"] == 4
    assert facts["problems"] == {}
    assert facts["defaults"]["recipe"] == "time"
    assert facts["defaults"]["time_steps"] == 3


def test_an_earlier_manifest_is_replaced_only_with_fresh_and_nothing_else_is(capsys: Any) -> None:
    photos(Path("in"))
    assert dietcl(capsys, "data", "prepare", "in", "--out", "made").code == 0
    kept = {"notes.txt": b"mine", "more/images.npy": b"mine", "images-1.tar": b"mine"}
    Path("made/more").mkdir()
    for name, content in kept.items():
        Path("made", name).write_bytes(content)
    before = Path("made/manifest.parquet").read_bytes()
    again = dietcl(capsys, "data", "prepare", "in", "--out", "made")
    assert again.code == 2
    assert "--fresh" in again.said
    assert Path("made/manifest.parquet").read_bytes() == before
    photos(Path("in/more"), classes=1)
    result = dietcl(capsys, "data", "prepare", "in", "--out", "made", "--fresh")
    assert result.code == 0, result.said
    assert "images kept 30" in result.said
    assert {path.name for path in Path("made").iterdir()} == {
        "manifest.parquet",
        "manifest.index",
        "quarantine.csv",
        "notes.txt",
        "more",
        "images-1.tar",
    }
    assert all(Path("made", name).read_bytes() == content for name, content in kept.items())


def test_copies_of_an_earlier_preparation_go_with_it(capsys: Any) -> None:
    photos(Path("in"))
    Path("made").mkdir()
    columns: Any = {"id": ["a"], "file": ["images.npy"], "offset": [0], "label": ["x"], "time": [0.0]}
    write_manifest(Path("made/manifest.parquet"), {**columns, "split": ["train"]}, Facts(source="arrays"))
    for name in ("images.npy", "images-00000.tar", "images-00012.tar"):
        Path("made", name).write_bytes(b"ours")
    assert dietcl(capsys, "data", "prepare", "in", "--out", "made", "--fresh").code == 0
    assert {path.name for path in Path("made").iterdir()} == {"manifest.parquet", "manifest.index", "quarantine.csv"}


def test_what_is_being_read_is_never_removed(capsys: Any) -> None:
    root = photos(Path("in"))
    for name in ("images.npy", "images-00000.tar"):
        (root / name).write_bytes(b"mine")
    for fresh in ([], ["--fresh"]):
        assert dietcl(capsys, "data", "prepare", "in", "--out", "in", *fresh).code == 0
        assert (root / "images.npy").read_bytes() == (root / "images-00000.tar").read_bytes() == b"mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device", "made/x")])
def test_a_preparation_that_is_stopped_leaves_everything_as_it_was(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    photos(Path("in"))
    whole = Folder.read

    def read(self: Folder, name: str, rows: Any) -> None:
        whole(self, name, rows)
        raise error

    monkeypatch.setattr(Folder, "read", read)
    code = 130 if isinstance(error, KeyboardInterrupt) else 2
    result = dietcl(capsys, "data", "prepare", "in", "--out", "deep/made")
    assert result.code == code, result.said
    assert not Path("deep").exists()
    monkeypatch.setattr(Folder, "read", whole)
    assert dietcl(capsys, "data", "prepare", "in", "--out", "made").code == 0
    before = {path: path.read_bytes() for path in Path("made").rglob("*") if path.is_file()}
    monkeypatch.setattr(Folder, "read", read)
    assert dietcl(capsys, "data", "prepare", "in", "--out", "made", "--fresh").code == code
    assert {path: path.read_bytes() for path in Path("made").rglob("*") if path.is_file()} == before


def test_the_statistics_are_checked_afterwards(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stats(arguments: list[str]) -> int:
        asked.append(arguments)
        print("said by stats")
        return 1

    monkeypatch.setitem(sys.modules, "dietcl.cli.data.stats", SimpleNamespace(main=stats))
    photos(Path("in"))
    result = dietcl(capsys, "data", "prepare", "in", "--check", "--json")
    assert result.code == 1
    assert asked == [["data/in/manifest.parquet", "--check", "auto"]]
    assert json.loads(result.out)["images"] == 24  # and nothing else
    assert "said by stats" in result.err


def test_a_reader_may_demand_options(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Demanding(Folder):
        """Wants to know."""

        name = "demanding"  # type: ignore[misc]
        wanted: str

    monkeypatch.setattr("dietcl.cli.data.prepare.READERS", {"demanding": Demanding, "folder": Folder})
    photos(Path("in"))
    result = dietcl(capsys, "data", "prepare", "in", "--kind", "demanding")
    assert result.code == 2
    assert "--wanted" in result.said
    assert dietcl(capsys, "data", "prepare", "in", "--kind", "demanding", "--wanted", "x").code == 0


def test_where_the_path_stands_among_the_options() -> None:
    known = ("--json", "--help", "--at-least-one")
    assert take_first(["--at_least_one", "a"], known) == ("a", ["--at_least_one"])
    assert take_first(["a", "--x", "1"], known) == ("a", ["--x", "1"])
    assert take_first(["--x", "1", "a"], known) == ("a", ["--x", "1"])
    assert take_first(["--x=1", "a", "b"], known) == ("a", ["--x=1", "b"])
    assert take_first(["--json", "a"], known) == ("a", ["--json"])
    assert take_first(["--no-such", "1", "a"], known) == ("a", ["--no-such", "1"])
    assert take_first(["--x", "-1", "a"], known) == ("a", ["--x", "-1"])
    assert take_first(["--x", "1"], known) == ("", ["--x", "1"])
    assert take_first([], known) == ("", [])


def test_flags_are_known_from_the_options_of_every_kind() -> None:
    kinds = registry.READERS.values()
    found = flags(*kinds)
    assert found >= {"-h", "--help", "--coarse", "--no-coarse", "--transpose", "--no-transpose"}
    # An option that takes a value in one kind must be no flag in another, as the kind is not known yet.
    valued = {f"--{field.name.replace('_', '-')}" for kind in kinds for field in fields(kind) if field.type is not bool}  # type: ignore[arg-type]
    assert not valued & found


@pytest.mark.parametrize("flag", ["--coarse", "--no-coarse", "--fresh", "--no-json", "--check"])
def test_a_flag_before_the_path(capsys: Any, flag: str) -> None:
    result = dietcl(capsys, "data", "prepare", "--kind", "cifar", flag, "nowhere")
    assert result.code == 2
    assert "nowhere: no such file or folder" in result.said


@pytest.mark.parametrize("verb", ["show", "stats"])
@pytest.mark.parametrize("flag", ["--at-least-one", "--no-at-least-one"])
def test_a_flag_before_the_stream(capsys: Any, verb: str, flag: str) -> None:
    result = dietcl(capsys, "data", verb, flag, "nowhere.parquet")
    assert result.code == 2
    assert "nowhere.parquet: " in result.said
    assert "nrecognized" not in result.said


def test_check_finds_what_broke_since(capsys: Any) -> None:
    photos(Path("in"))
    assert dietcl(capsys, "data", "prepare", "in", "--test-share", "0").code == 0
    manifest = Path("data/in/manifest.parquet")
    result = dietcl(capsys, "data", "check", manifest)
    assert result.code == 0, result.said
    assert "images read: 24 of 24, unreadable: 0" in result.said
    assert "4 classes; training images of each: 6" in result.said
    assert "the test split is empty" in result.said
    assert "no image has a time" in result.said
    assert "label" not in result.said
    Path("in/class 1/2.png").write_bytes(b"words")
    Path("in/class 3/0.png").unlink()
    result = dietcl(capsys, "data", "check", manifest, "--jobs", "2")
    assert result.code == 1
    assert "images read: 24 of 24, unreadable: 2" in result.said
    with Path("data/in/manifest.problems.csv").open(newline="") as file:
        found = list(csv.reader(file))
    assert found[0] == ["file", "row", "problem"]
    assert [line[:2] for line in found[1:]] == [["class 1/2.png", "8"], ["class 3/0.png", "18"]]  # counted from 0
    assert dietcl(capsys, "data", "check", manifest, "--out", "deep/list.csv").code == 1
    assert Path("deep/list.csv").read_bytes() == Path("data/in/manifest.problems.csv").read_bytes()
    assert dietcl(capsys, "data", "check", manifest, "--out", "in").code == 2
    photos(Path("again"))
    Path("in/class 1/2.png").write_bytes(Path("again/class 1/2.png").read_bytes())
    Path("in/class 3/0.png").write_bytes(Path("again/class 3/0.png").read_bytes())
    assert dietcl(capsys, "data", "check", manifest).code == 0
    assert not Path("data/in/manifest.problems.csv").exists()


def test_check_a_sample_and_what_is_missing(capsys: Any) -> None:
    np.save("images.npy", np.zeros((50, 4, 4), np.uint8))
    columns: Any = {"id": [str(i) for i in range(50)], "file": ["images.npy"] * 50, "offset": range(50)}
    columns |= {"label": [None] * 50, "time": [1.0] * 50, "split": ["train"] * 49 + ["test"]}
    write_manifest(Path("m.parquet"), columns)
    result = dietcl(capsys, "data", "check", "m.parquet", "--sample", "20")
    assert result.code == 0, result.said
    assert "images read: 20 of 50, unreadable: 0" in result.said
    assert "no image has a label" in result.said
    assert "time" not in result.said
    assert result.out == dietcl(capsys, "data", "check", "m.parquet", "--sample", "20").out


def test_show_a_stream_in_time(capsys: Any) -> None:
    root = photos(Path("in"), steps=30, classes=3, per_class=3)
    assert dietcl(capsys, "data", "prepare", "in", "--test-share", "0").code == 0
    (root / "1/class 0/0.png").write_bytes(b"words")  # is drawn as a crossed box
    result = dietcl(capsys, "data", "show", "data/in/manifest.parquet", "--label-rate", "0.4", "--out", "pictures")
    assert result.code == 0, result.said
    pictures = [Path("pictures") / name for name in ("contact.png", "label-rate.png", "classes.png")]
    assert [line for line in result.out.splitlines() if line.endswith(".png")] == [str(path) for path in pictures]
    # 20 of the 30 time steps, 3 classes: wide and low.
    width, height = size(pictures[0])
    assert width > 20 * 100
    assert 3 * 100 < height < width / 3
    assert size(pictures[1]) == size(pictures[2]) == (1200, 810)


def test_show_a_stream_of_classes(capsys: Any) -> None:
    photos(Path("in"), classes=12, per_class=3)
    assert dietcl(capsys, "data", "prepare", "in", "--test-share", "0").code == 0
    show = ["data", "show", "data/in/manifest.parquet", "--time-steps", "6"]
    assert dietcl(capsys, *show).code == 0
    default = size(Path("runs/show-in/contact.png"))
    first = Path("runs/show-in/contact.png").read_bytes()
    # Each time step has two classes of its own: six columns, two rows.
    assert default[0] > 6 * 100
    assert default[1] < 700
    assert dietcl(capsys, *show, "--out", "again").code == 0
    assert Path("again/contact.png").read_bytes() == first
    assert dietcl(capsys, *show, "--out", "other", "--seed", "1").code == 0
    assert Path("other/contact.png").read_bytes() != first
    assert dietcl(capsys, *show, "--out", "few", "--classes", "1").code == 0
    assert size(Path("few/contact.png"))[1] < default[1]
    assert dietcl(capsys, *show, "--out", "four", "--per-cell", "4").code == 0
    assert size(Path("four/contact.png"))[0] > default[0]
    assert dietcl(capsys, *show, "--out", "in/class 0/0.png").code == 2


@pytest.mark.parametrize("label", ["$x_{$", "橋", "a" * 300, "<b>\n\tx", "\U0001f600", None])
def test_show_strange_classes(capsys: Any, label: str | None) -> None:
    np.save("images.npy", np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4))
    columns: Any = {"id": [str(i) for i in range(6)], "file": ["images.npy"] * 6, "offset": range(6)}
    columns |= {"label": [label] * 6, "time": [None] * 6, "split": ["train"] * 6}
    write_manifest(Path("m.parquet"), columns, Facts(recipe="data", time_steps=2))
    result = dietcl(capsys, "data", "show", "m.parquet", "--out", "pictures")
    assert result.code == 0, result.said
    assert max(size(Path("pictures/contact.png"))) < 2000


def test_a_manifest_says_how_it_is_cut(capsys: Any) -> None:
    columns: Any = {"id": ["a"], "file": ["a.jpg"], "offset": [-1], "label": ["x"], "time": [0.0], "split": ["train"]}
    says = Facts(recipe="time", time_steps=7, label_rate=0.25, mirror=False)
    write_manifest(Path("says.parquet"), columns, says)
    write_manifest(Path("silent.parquet"), columns)
    assert default_recipe(manifest_facts(Path("says.parquet"))) == Recipe(recipe="time", time_steps=7, label_rate=0.25)
    assert manifest_facts(Path("says.parquet")).mirror is False
    assert default_recipe(manifest_facts(Path("silent.parquet"))) == Recipe(label_rate=1.0)
    assert default_recipe(manifest_facts(Path("nowhere.parquet"))) == Recipe(label_rate=1.0)
    for wrong in ({"recipe": "tmie"}, {"time_steps": 0}, {"time_steps": "7"}, {"label_rate": 2.0}, {"recipe": ["x"]}):
        write_manifest(Path("wrong.parquet"), columns, Facts(**wrong))  # type: ignore[arg-type]
        result = dietcl(capsys, "data", "show", "wrong.parquet")
        assert result.code == 2
        assert "wrong.parquet" in result.said
        assert "prepare the data again" in result.said
