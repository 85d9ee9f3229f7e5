"""`python -m reproduction`: a suite from nothing to its page, resumed, in the browser's eyes, and with wrong input."""

import errno
import json
import re
from dataclasses import replace
from itertools import cycle

import pytest

from dietcl.errors import NotFinite
from dietcl.files import locked
from dietcl.process_pool import attempt
from dietcl.streams.options import Recipe
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs
from helpers.scored_study import RuledStudy
from reproduction import command as reproduce
from reproduction import study as studies
from reproduction.catalog import ALL_SUITES
from reproduction.command import main
from reproduction.datasets import DATASETS, Dataset
from reproduction.show.publish import markdown, publish
from reproduction.show.table_formats import marks
from reproduction.suites import ER_AT_RATES, SUITES, Point
from reproduction.trials import SHORT_SEARCH


def one_by_one(work, items, progress):
    """Carry runs out in this process, which has imported all that they need."""
    for number, item in enumerate(items):
        yield attempt(work, item, number, lambda done, number=number: progress(number, done))


@pytest.fixture
def few(monkeypatch):
    """A dataset of four characters in two time steps, one trial, and a peak at the first budget."""
    few = Dataset(
        title="Four characters",
        recipe=Recipe(time_steps=2, label_rate=0.1),
        reader=Glyphs(classes=4, per_class=20, test_per_class=5),
        test_images=None,
    )
    monkeypatch.setitem(DATASETS, "few", few)
    for option, value in {"number": 1, "updates": 1, "time_steps": 2}.items():
        monkeypatch.setitem(vars(SHORT_SEARCH), option, value)
    monkeypatch.setattr(studies, "FIRST_BUDGET", 1)
    monkeypatch.setattr(reproduce, "_pool", lambda options, console: one_by_one)
    suite = replace(SUITES["sampling"], more_seeds=False, points=(Point(),))
    monkeypatch.setitem(ALL_SUITES, "sampling", suite)


def test_a_suite_is_searched_run_and_published_once(few, tmp_path, capsys):
    command = ["sampling", "--stream", "few", "--seeds", "2", "--jobs", "2"]
    command += ["--out", str(tmp_path / "results"), "--scratch", str(tmp_path / "runs")]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "few: search: 4 of 4" in said.err
    assert "few: where Replay peaks, 2 updates: 2 of 2" in said.err
    folder = tmp_path / "results" / "few"
    written = {path.suffix for path in folder.glob("sampling.*")}
    assert written == {".json", ".md", ".tex", ".png", ".svg", ".html"}
    found = json.loads((folder / "sampling.json").read_text())
    study = studies.Study("few", tmp_path / "results")
    assert found["updates"] == round(1.25 * study.peak)
    keys = [key for row in found["rows"] for key in row["keys"]]
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    assert sorted(keys) == sorted(line["key"] for line in lines)
    # A(T) by hand: the mean over time steps of origin of what the last row of the counts says.
    for row in found["rows"]:
        for key, value in zip(row["keys"], row["A(T)"], strict=True):
            (line,) = (line for line in lines if line["key"] == key)
            rates = [right / count for right, count in zip(line["correct"][-1], line["count"][-1], strict=True)]
            assert value == pytest.approx(sum(rates) / 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(command) == 0
    said = capsys.readouterr()
    assert not said.err
    assert "every run is in " in said.out
    assert "none was carried out; another --out repeats them" in said.out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_methods_can_be_carried_out_one_after_the_other(few, tmp_path, capsys):
    command = ["sampling", "--stream", "few", "--seeds", "1", "--out", str(tmp_path / "results")]
    command += ["--scratch", str(tmp_path / "runs")]
    assert main([*command, "--methods", "er:uniform"]) == 0
    found = json.loads((tmp_path / "results/few/sampling.json").read_text())
    assert [row["method"] for row in found["rows"]] == ["er:uniform"]
    assert "trial/er/" not in (tmp_path / "results/few/search.jsonl").read_text()  # nor was anything else searched
    assert found["command"] == "python -m reproduction sampling --stream few --methods er:uniform --seeds 1"
    assert main([*command, "--methods", "er"]) == 0
    found = json.loads((tmp_path / "results/few/sampling.json").read_text())
    assert [row["method"] for row in found["rows"]] == ["er:uniform", "er"]
    assert found["command"] == "python -m reproduction sampling --stream few --seeds 1"


@pytest.mark.long
def test_every_suite_writes_every_kind_of_file(tmp_path):
    from reproduction.show.publish import publish

    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.3 + 0.01 * (cell.config.seed % 100))
    for name, suite in SUITES.items():
        sheets = publish(study, name, suite, study.measure(suite, seeds=2), tmp_path / "shown")
        assert sum("S·b/n_t" in sheet.header[1] for sheet in sheets) == 1
        for suffix in ("json", "md", "tex", "png", "svg", "html"):
            assert (tmp_path / "shown" / f"{name}.{suffix}").stat().st_size > 300, (name, suffix)
        page = (tmp_path / "shown" / f"{name}.html").read_text()
        assert "data:image/svg+xml;base64," in page
        assert not re.search(r"(src|href)=\"(?!data:)", page)
        assert f"python -m reproduction {name} --stream glyphs" in page


def test_the_paper_s_numbers_stand_beside_ours(tmp_path):
    from reproduction.show.publish import scale_of
    from reproduction.show.tables import sheets_of

    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.3)
    shown = {}
    for name in ("table1", "ablation", "sampling", "threshold", "stream-length"):
        measured = study.measure(SUITES[name], seeds=1)
        sheets = sheets_of(name, SUITES[name], measured, scale_of(study))
        shown[name] = "\n".join(sheet.markdown() for sheet in sheets)
    assert "| DietCL | 30.0 ± 0.0 |" in shown["table1"]
    assert "16.82 / 24.90 | 5.63 / 4.98 | 24.34 / 20.26 |" in shown["table1"]
    assert "| 14.97 |" in shown["ablation"]
    assert "| 12.73 |" in shown["sampling"]
    assert "| A(3) in the paper | 29.30 | 29.75 | 29.80 | 30.02 |" in shown["threshold"]
    assert "| DietCL in the paper | 24.4 | 24.9 | 23.7 | 22.2 |" in shown["stream-length"]


@pytest.mark.parametrize(("seeds", "said"), [([1], "1 seed"), ([3], "3 seeds"), ([5, 3, 4], "3, 4 or 5 seeds")])
def test_tables_say_how_many_seeds_they_rest_on(tmp_path, seeds, said):
    from reproduction.show.publish import scale_of
    from reproduction.show.tables import sheets_of

    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.3)
    measured = study.measure(SUITES["ablation"], seeds=5)
    some = [replace(entry, results=entry.results[:few]) for entry, few in zip(measured, cycle(seeds), strict=False)]
    sheets = sheets_of("ablation", SUITES["ablation"], some, scale_of(study))
    assert sheets[0].title == f"Percent, mean ± standard deviation over {said}."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a suite (table1, "),
        (["table2"], "table2: no such suite; choose from table1, "),
        (["table1", "--stream", "cifar"], "--stream cifar: no such dataset; choose from cifar100, "),
        (["table1", "--stream", "glyphs@huge"], "--stream glyphs@huge: no such size; choose from micro, "),
        (["table1", "--stream", "glyphs@nano"], "--stream glyphs@nano: nano is its own size; leave @nano out"),
        (["table1", "--stream", "cifar100", "--data", "nowhere"], "nowhere/cifar100_32_webp.zip: no such file"),
        (["table1", "--stream", "cloc"], "--stream cloc: give its manifest"),
        (["sampling", "--methods", "er,lwf"], "--methods lwf: sampling has no such method; choose from er:uniform, er"),
        (["sampling", "--methods", ","], "--methods: name some of er:uniform, er, or all"),
        (["table1", "--seeds", "0"], "--seeds 0: give at least 1"),
        (["table1", "--jobs", "0"], "--jobs 0: give at least 1"),
        (["table1", "--stream", "cloc", "--data", "no.parquet"], "no.parquet: no such manifest; give a Parquet file"),
        (["all", "--methods", "dietcl,eer"], "--methods eer: all has no such method; choose from joint, ewc"),
        (["table1", "--write", "RESULTS.md"], "--write RESULTS.md: goes with claims and summary; leave it out"),
        (["claims"], "--out results: holds no counts; give the folder that a suite wrote"),
        (
            ["claims", "--stream", "cifar100"],
            "--stream cifar100: claims reads the counts in --out alone; leave it out",
        ),
        (["claims", "--jobs", "2"], "--jobs 2: claims reads the counts in --out alone; leave it out"),
        (["summary", "--seeds", "2"], "--seeds 2: summary reads the counts in --out alone; leave it out"),
        (["summary"], "--out results: holds no counts of Larder beside others; give the folder that a suite wrote"),
    ],
)
def test_wrong_input_is_answered_with_a_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.fixture
def counted(tmp_path):
    """A folder with counts of one suite."""
    RuledStudy("glyphs", tmp_path / "results", lambda cell: 0.4).measure(SUITES["sampling"], seeds=1)
    return tmp_path / "results"


def test_claims_go_into_a_file_that_is_there(counted, tmp_path, capsys):
    assert main(["claims", "--out", str(counted), "--write", str(tmp_path / "no.md")]) == 2
    assert "no.md: no such file; give a Markdown file with the lines <!-- claims: begin -->" in capsys.readouterr().err
    assert main(["claims", "--out", str(counted), "--write", str(tmp_path)]) == 2
    assert "is a folder; give a Markdown file" in capsys.readouterr().err
    (tmp_path / "some.md").write_text("# Mine\n")
    assert main(["claims", "--out", str(counted), "--write", str(tmp_path / "some.md")]) == 2
    assert (tmp_path / "some.md").read_text() == "# Mine\n"
    begin, end = marks("claims")
    text = f"{begin}\n{end}\n"  # and none for the stream: nothing of it is written
    (tmp_path / "some.md").write_text(text)
    assert main(["claims", "--out", str(counted), "--write", str(tmp_path / "some.md")]) == 2
    assert (tmp_path / "some.md").read_text() == text


def test_counts_without_their_search_are_named(counted, tmp_path, capsys):
    (counted / "glyphs" / "search.jsonl").unlink()
    (tmp_path / "some.md").write_text("".join(f"{line}\n" for name in ("claims", "glyphs") for line in marks(name)))
    assert main(["claims", "--out", str(counted), "--write", str(tmp_path / "some.md")]) == 2
    assert "search.jsonl: lacks trials on which the counts rest; run a suite again" in capsys.readouterr().err


def test_a_damaged_line_is_named(counted, capsys):
    path = counted / "glyphs" / "cells.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, '{"key": \n', *rest]))
    assert main(["claims", "--out", str(counted)]) == 2
    assert f"{path}: line 2 is damaged; delete it" in capsys.readouterr().err
    path.write_bytes(first.encode() + b'{"key": "\xff"}\n')
    assert main(["claims", "--out", str(counted)]) == 2
    assert f"{path}: line 2 is damaged; delete it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [{"facts": None}, {"correct": None}, {"correct": [["many"]]}, {"count": [[0]]}, {"correct": [[1, 2, 3]]}],
)
def test_a_line_whose_counts_make_no_sense_is_named(counted, capsys, damage):
    path = counted / "glyphs" / "cells.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(first), **damage}) + "\n", *rest]))
    assert main(["claims", "--out", str(counted)]) == 2
    assert f"{path}: the line of {json.loads(first)['key']} is damaged; delete it" in capsys.readouterr().err


def test_what_does_not_count_is_said(counted, capsys):
    path = counted / "glyphs" / "cells.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    entry = json.loads(first)
    path.write_text("".join([json.dumps({**entry, "hash": "another"}) + "\n", *rest]).rstrip("\n")[:-9])
    assert main(["claims", "--out", str(counted)]) == 0
    said = capsys.readouterr().err
    assert f"{path}: not counted, as 1 run was of another configuration, such as {entry['key']}" in said
    assert f"{path}: its last line is torn and does not count; run that suite again" in said


def test_a_published_suite_that_lost_a_run_is_named(counted, tmp_path, capsys):
    study = studies.Study("glyphs", counted)
    publish(study, "sampling", *study.found(SUITES["sampling"]), counted / "glyphs")
    (counted / "glyphs" / "cells.jsonl").write_text("")
    (tmp_path / "some.md").write_text("".join(f"{line}\n" for name in ("claims", "glyphs") for line in marks(name)))
    assert main(["claims", "--out", str(counted), "--write", str(tmp_path / "some.md")]) == 2
    assert "cells.jsonl: lacks " in capsys.readouterr().err


def test_the_command_beside_a_table_asks_for_its_seeds(tmp_path):
    """Five seeds of one arm that another suite brought are not asked of all."""
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.4)
    study.measure(SUITES["budget"], seeds=3)
    study.measure(replace(SUITES["budget"], arms=(ER_AT_RATES,), points=(Point(),)), seeds=3)
    found, measured = study.found(SUITES["budget"])
    assert sorted({len(entry.results) for entry in measured}) == [3, 5]
    assert "--stream glyphs --seeds 3`" in markdown(study, "budget", found, measured, [])


def test_a_disk_that_refuses_is_named(few, tmp_path, monkeypatch, capsys):
    def refuse(descriptor):
        raise OSError(errno.EROFS, "Read-only file system")

    command = ["sampling", "--stream", "few", "--seeds", "1", "--out", str(tmp_path / "results")]
    command += ["--scratch", str(tmp_path / "runs")]
    assert main(command) == 0
    monkeypatch.setattr("dietcl.files.os.fsync", refuse)
    capsys.readouterr()
    assert main(command) == 2
    assert "cannot be written (Read-only file system); make it writable" in capsys.readouterr().err


def test_a_place_that_is_no_folder_is_named(few, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    command = ["sampling", "--stream", "few", "--seeds", "1", "--out", str(tmp_path / "results")]
    assert main([*command, "--scratch", str(tmp_path / "file" / "runs")]) == 2
    assert "cannot be created (Not a directory); choose another --scratch" in capsys.readouterr().err
    (tmp_path / "results" / "few" / "data.json").write_text("{")
    assert main([*command, "--scratch", str(tmp_path / "runs")]) == 2
    assert "data.json: is damaged; restore it, or choose another --out" in capsys.readouterr().err


@pytest.mark.long
def test_counts_of_other_images_are_not_mixed(few, tmp_path, capsys):
    command = ["sampling", "--stream", "few", "--seeds", "1", "--out", str(tmp_path / "results")]
    command += ["--scratch", str(tmp_path / "runs"), "--methods", "er"]
    assert main(command) == 0
    other = Glyphs(classes=4, per_class=20, test_per_class=6).prepare(tmp_path / "other")
    before = (tmp_path / "results/few/cells.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*command, "--methods", "er:uniform", "--data", str(other)]) == 2
    assert f"few: holds runs on other images than {other}; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "results/few/cells.jsonl").read_bytes() == before


def test_runs_that_all_diverge_leave_a_sentence(few, tmp_path, monkeypatch, capsys):
    def diverge(config, folder, **options):
        folder.mkdir(parents=True)
        raise NotFinite("the loss is not finite in update 1")

    command = ["sampling", "--stream", "few", "--seeds", "1", "--out", str(tmp_path / "results")]
    command += ["--scratch", str(tmp_path / "runs")]
    monkeypatch.setattr("reproduction.run_cache.train_config", diverge)
    assert main(command) == 2
    said = capsys.readouterr()
    assert "diverged (the loss is not finite in update 1)" in said.out
    assert "sampling: every run diverged, so that there is nothing to show" in said.err


def test_one_process_at_a_time_writes_counts(few, tmp_path, capsys):
    command = ["sampling", "--stream", "few", "--seeds", "1", "--out", str(tmp_path / "results")]
    command += ["--scratch", str(tmp_path / "runs")]
    folder = tmp_path / "results" / "few"
    folder.mkdir(parents=True)
    with locked(folder, print):
        assert main(command) == 2
    assert "is writing to it; wait until it ends" in capsys.readouterr().err
