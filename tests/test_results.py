"""The pages of results: A(T), A and differences recomputed here by other means, all else by the same command."""

import itertools
import json
import re
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import pytest

from dietcl.process_pool import in_processes
from reproduction.catalog import ALL_SUITES
from reproduction.datasets import dataset_named
from reproduction.show.publish import all_sheets, markdown
from reproduction.show.results import SHOWN, studies, write_claims
from reproduction.show.summary import PICTURE, write_summary
from reproduction.show.summary_data import sections
from reproduction.show.table_formats import marks
from reproduction.study import Study
from reproduction.suites import FROZEN, Point
from reproduction.trials import SEARCH_AT_BUDGET, SHORT_SEARCH

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SUMMARY, CLAIMS = ROOT / "RESULTS.md", ROOT / "docs" / "paper-claims.md"
DATASETS = [study.name for study in studies(RESULTS)]
WITH_TABLE1 = [name for name in DATASETS if (RESULTS / name / "table1.json").is_file()]


def counts(name: str) -> dict[str, dict]:
    """Return the committed lines of a dataset by their keys."""
    lines = (json.loads(line) for line in (RESULTS / name / "cells.jsonl").read_text().splitlines())
    return {line["key"]: line for line in lines}


def accuracies(name: str, line: dict) -> list[float]:
    """Return A(t) in percent: of all test images where time orders it, else the mean over time steps of origin."""
    found = []
    for t, (rights, counts) in enumerate(zip(line["correct"], line["count"], strict=True), 1):
        tested = [(right, count) for right, count in zip(rights[:t], counts[:t], strict=True) if count]
        if tested and dataset_named(name).recipe.recipe == "time":
            found.append(100 * sum(right for right, _ in tested) / sum(count for _, count in tested))
        elif tested:
            found.append(100 * fmean(right / count for right, count in tested))
    return found


def final_accuracy(name: str, line: dict) -> float:
    """Return A(T) in percent."""
    return accuracies(name, line)[-1]


def published(name: str) -> list[dict]:
    """Return every suite of a dataset that has been written, as its JSON."""
    return [
        json.loads(path.read_text()) for path in (RESULTS / name / f"{s}.json" for s in ALL_SUITES) if path.is_file()
    ]


def block(name: str, page: Path = CLAIMS) -> str:
    """Return what stands between marks in a page."""
    begin, end = marks(name)
    return page.read_text().partition(begin)[2].partition(end)[0]


@pytest.fixture
def clone(tmp_path):
    """A folder with the pages where they are, and counts to which nothing is written."""
    for page in (SUMMARY, CLAIMS):
        copy = tmp_path / page.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(page.read_text())
    (tmp_path / "results").mkdir()
    for name in DATASETS:
        (tmp_path / "results" / name).symlink_to(RESULTS / name)
    return tmp_path


@pytest.mark.long
def test_the_page_of_claims_is_what_the_command_writes(clone):
    write_claims(clone / "docs" / CLAIMS.name, clone / "results")
    assert (clone / "docs" / CLAIMS.name).read_text() == CLAIMS.read_text()


@pytest.mark.long
def test_results_md_is_what_the_command_writes(clone):
    out = clone / "results"
    write_summary(clone / SUMMARY.name, out, sections(out))
    assert (clone / SUMMARY.name).read_text() == SUMMARY.read_text()
    assert all((folder / PICTURE).read_bytes()[1:4] == b"PNG" for folder in (out, RESULTS))


def test_findings_are_of_the_tables():
    """Every number of points in them stands in a table, and the verdicts are those of the claims."""
    findings = " ".join(SUMMARY.read_text().partition("## What was found")[2].split())
    (told,) = re.findall(
        r"Of (\d+), (\d+) hold on CIFAR-100 with a small encoder, (\d+) do not, and on (\d+)", findings
    )
    assert f"How many of {told[0]} claims" in block("claims")
    assert f"| CIFAR-100 | {' | '.join(told[1:])} |" in block("claims")
    frozen = block("larder-frozen", SUMMARY)
    for stream, arm, lead in ((0, "NCM", "19.6"), (1, "ACM", "15.2")):
        (row,) = re.findall(rf"^\| {arm} \| ([+-].*) \|$", frozen, re.MULTILINE)
        assert row.split(" | ")[stream].startswith(f"+{lead} ")
        assert lead in findings
    for stream, row in (("glyphs", "uniform at S = 40 (paper: 100) | -11.9"), ("fruits360", "uniform | -13.4")):
        assert f"| DietCL less ER {row} " in block(stream)
        assert row.partition("-")[2] in findings
    assert "| DietCL less ER balanced at S = 640 (paper: 1,600) | +4.5 " in block("glyphs")


@pytest.mark.parametrize("name", DATASETS)
def test_counts_are_counts(name):
    for line in counts(name).values():
        for right, count in zip(line["correct"], line["count"], strict=True):
            assert all(0 <= r <= c and isinstance(r, int) for r, c in zip(right, count, strict=True))


@pytest.mark.parametrize(
    ("method", "hashes"),
    [
        ("er:uniform", ["cd30751a742b", "e684c9ae88a5", "017a97b5f4f6"]),
        ("dietcl", ["631f2c55cf79", "c535b3a3c25f", "3b38d20ba2db"]),
        ("fixmatch", ["efd7a5934222", "4bf29483e6f5", "6ae8827caf50"]),
    ],
)
def test_trials_at_the_reported_budget_keep_their_names_and_are_found(method, hashes):
    study = Study("cifar100", RESULTS)
    first, *rest = SEARCH_AT_BUDGET.trials
    cells = study._trial_cells(method, first, SEARCH_AT_BUDGET)
    key = f"at-budget/{method}/100 updates/lr 0.0024, head 0.03, factor 1/seed"
    assert [(cell.key, cell.hash) for cell in cells] == [
        (f"{key} {seed}", own) for seed, own in zip((110, 111, 112), hashes, strict=True)
    ]
    every = [cell for trial in rest for cell in study._trial_cells(method, trial, SEARCH_AT_BUDGET)]
    assert all(cell in study.searched for cell in [*cells, *every])


@pytest.mark.parametrize("name", DATASETS)
def test_every_published_accuracy_is_recomputed_from_the_counts(name):
    lines = counts(name)
    assert published(name)
    for suite in published(name):
        for row in suite["rows"]:
            assert row["keys"]
            for key, value in zip(row["keys"], row["A(T)"], strict=True):
                assert 100 * value == pytest.approx(final_accuracy(name, lines[key]), abs=1e-9), key
            for key, value in zip(row["keys"], row.get("A", ()), strict="A" in row):
                assert 100 * value == pytest.approx(fmean(accuracies(name, lines[key])), abs=1e-9), key


@pytest.mark.parametrize("name", DATASETS)
def test_every_published_table_is_what_the_counts_say(name):
    study = Study(name, RESULTS)
    for entry in published(name):
        suite, measured = study.found(ALL_SUITES[entry["suite"]])
        text = markdown(study, entry["suite"], suite, measured, all_sheets(study, entry["suite"], suite, measured))
        assert (RESULTS / name / f"{entry['suite']}.md").read_text() == text, entry["suite"]


@pytest.mark.parametrize("name", DATASETS)
def test_every_final_accuracy_in_the_page_of_claims_is_recomputed_from_the_counts(name):
    lines, text = counts(name), block(name)
    checked = 0
    for suite in (suite for suite in published(name) if suite["suite"] in SHOWN):
        _, _, section = text.partition(f"([`{suite['suite']}`]")
        rows = re.findall(r"^\| ([^|]+) \| ([\d.]+ ± [\d.]+ \|.*)$", section.partition("\n### ")[0], re.MULTILINE)
        for arm in {row["arm"] for row in suite["rows"]}:
            cells = next(rest for title, rest in rows if title == arm).split(" | ")  # A(T) stands before A
            for cell, row in zip(cells, [row for row in suite["rows"] if row["arm"] == arm], strict=False):
                values = [final_accuracy(name, lines[key]) for key in row["keys"]]
                found = [float(number) for number in cell.strip(" |").split(" ± ")]
                # Rounded to a tenth, of which a half may go either way.
                assert found == pytest.approx([fmean(values), stdev(values)], abs=0.0501), row
                checked += 1
    assert checked == sum(len(suite["rows"]) for suite in published(name) if suite["suite"] in SHOWN)


@pytest.mark.parametrize("name", WITH_TABLE1)
def test_every_lead_in_the_page_of_claims_is_recomputed_from_the_counts(name):
    lines, text = counts(name), block(name)
    (table,) = (suite for suite in published(name) if suite["suite"] == "table1")
    levels = {
        row["arm"]: {key.partition("/seed ")[2]: final_accuracy(name, lines[key]) for key in row["keys"]}
        for row in table["rows"]
    }
    for arm in levels.keys() - {"DietCL"}:
        values = [levels["DietCL"][seed] - other for seed, other in levels[arm].items() if seed in levels["DietCL"]]
        half = {3: 4.30265, 5: 2.77645}[len(values)] * stdev(values) / len(values) ** 0.5  # Student's t
        wanted = [fmean(values), fmean(values) - half, fmean(values) + half]
        (found,) = re.findall(rf"^\| DietCL less {re.escape(arm)} \| (\S+) \[(\S+), (\S+)\] \|", text, re.MULTILINE)
        assert [float(number) for number in found] == pytest.approx(wanted, abs=0.0501), arm


@pytest.mark.long
def test_a_committed_run_comes_out_the_same_to_the_digit(tmp_path):
    chosen = Study("glyphs", RESULTS).cell(FROZEN, Point(), 0)
    again = Study("glyphs", tmp_path, tmp_path, pool=partial(in_processes, jobs=1))
    again._run([chosen], again.cells, "again")
    (line,) = (tmp_path / "glyphs" / "cells.jsonl").read_text().splitlines()
    found, committed = json.loads(line), counts("glyphs")[chosen.key]
    for losses, before in zip(found.pop("loss_sum"), committed.pop("loss_sum"), strict=True):
        assert losses == pytest.approx(before, abs=0.02)  # rounded to a hundredth
    assert found["facts"].pop("state_bytes") > 0  # not noted when those were made
    assert found == committed


@pytest.mark.long
def test_a_committed_run_that_learns_comes_out_the_same(tmp_path):
    """Three time steps of DietCL: on the kind of machine that made them to the digit, on another nearly so."""
    committed = Study("glyphs", RESULTS)
    chosen, *_ = committed._trial_cells("dietcl", committed.chosen("dietcl"), SHORT_SEARCH)
    again = Study("glyphs", tmp_path, tmp_path, pool=partial(in_processes, jobs=1))
    again._run([chosen], again.searched, "again")
    found, before = again.searched.result(chosen), committed.searched.result(chosen)
    assert found.facts.pop("state_bytes") > 0  # not noted when those were made
    assert {**found.facts, "ridge": 0} == {**before.facts, "ridge": 0}  # draws, charges and updates
    assert found.facts["updates"] == 120
    assert found.summary.accuracy == pytest.approx(before.summary.accuracy, abs=0.1, nan_ok=True)
    assert found.final == pytest.approx(before.final, abs=0.05)


def readme_table(first: str) -> list[list[str]]:
    """The cells of the README's table whose first title is this one."""
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table if line.startswith("| ")]


def test_the_readme_shows_what_was_measured():
    header, *rows = readme_table("A(T) in %")
    tables = {Study(name, RESULTS).dataset.title: name for name in DATASETS}
    assert len(rows) > 5
    for column, title in enumerate(header[1:], 1):
        text = block(tables[title])
        for row in rows:
            assert f"| {row[0]} | {row[column]} |" in text, row


def test_the_readme_shows_what_frozen_encoders_reach():
    header, *rows = readme_table("accuracy in %")
    assert header[2:] == ["`nano`", "`lite`"]
    kept = [
        line.split("|")[1:-1] for line in (RESULTS / "frozen-encoders.md").read_text().splitlines() if " ± " in line
    ]
    shown = {(title, labels.partition(" ")[0], nano, lite) for title, labels, nano, lite in rows}
    assert shown == {(row[0].strip(), row[1].strip(), row[3].strip(), row[4].strip()) for row in kept}
