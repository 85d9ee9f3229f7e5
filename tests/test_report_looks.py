"""Colours and line patterns: the same for a method in every report, and never two alike in one."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context

from dietcl.methods import every_method
from dietcl.report.figures import _accuracy
from dietcl.report.groups import entries_of, group_runs
from dietcl.report.panels import swatch
from dietcl.report.runs import RunRecord, read_runs
from dietcl.report.series import name_colors, page_data
from dietcl.report.style import (
    LINES,
    MATPLOTLIB,
    METHOD_LOOKS,
    NAME_PALETTE,
    NAME_PLACES,
    PALETTE,
    QUIET,
    Look,
    look,
)
from dietcl.report.tables import comparison_rows
from helpers.fake_runs import write_run
from test_report_many import METHODS


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, ...]:
    folder = tmp_path_factory.mktemp("many")
    return read_runs([write_run(folder / method, method=method, time_steps=5) for method in METHODS])


def test_25_groups_look_different_on_the_page_and_in_figures(many: tuple[RunRecord, ...]) -> None:
    assert len({look(place) for place in range(28)}) == 28
    groups = group_runs(many)
    drawn = [(group["color"], group["pattern"]) for group in page_data(groups)["groups"]]
    assert len(set(drawn)) == 25
    assert len({swatch(entry).replace(" point", "") for entry in entries_of(groups)}) == 25
    assert swatch(groups[0].entries[0]) == '<span class="key k0 l0"></span>'
    with rc_context(MATPLOTLIB):
        axes = _accuracy(groups, "accuracy_mean", "Mean").axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 5 and line.get_color() != QUIET]  # not chance
    styles = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines}
    assert len(styles) == 25
    assert {color for color, _ in styles} == set(PALETTE)
    assert len({pattern for _, pattern in styles}) == len(LINES) == 5


def test_every_method_has_a_look_and_a_variant_the_color_of_its_method() -> None:
    looks = [METHOD_LOOKS[name] for name in every_method()]
    assert len(set(looks)) == len(looks) == len(METHOD_LOOKS)
    often = ["dietcl", "er", "er_ace", "linear_probe", "ranpac", "fixmatch", "gdumb", "larder"]
    assert {METHOD_LOOKS[name].color for name in often} == set(range(len(PALETTE)))
    for name in (name for name in every_method() if ":" in name):
        assert METHOD_LOOKS[name].color == METHOD_LOOKS[name.partition(":")[0]].color
    assert Look(PALETTE.index("#5B5B5B"), 2) not in looks  # gray and dotted is chance


def test_a_method_looks_the_same_in_every_report(many: tuple[RunRecord, ...], tmp_path: Path) -> None:
    alone = {run.method: group_runs([run])[0].look for run in many}
    assert all(alone[name] == METHOD_LOOKS[name] for name in METHODS if name in METHOD_LOOKS)
    for runs in (many, many[::-1], many[5:9], (many[0], many[1], many[14])):
        assert all(group.look == alone[group.label] for group in group_runs(runs) if group.label in METHOD_LOOKS)
    # A user's own method is never taken for one of these, whatever it is compared with.
    for own in (run for run in many if run.method not in METHOD_LOOKS):
        assert alone[own.method].pattern == len(LINES) - 1
        assert group_runs([*many[:21], own])[-1].look == alone[own.method]
    variants = [
        write_run(tmp_path / name, method="er", time_steps=2, options={"sampling": name})
        for name in ("balanced", "uniform")
    ]
    for folders in (variants, variants[::-1]):
        looks = {group.label: group.look for group in group_runs(read_runs(folders))}
        assert looks == {name: METHOD_LOOKS[name] for name in ("er", "er:uniform")}


def test_two_configurations_of_a_method_share_its_color_in_any_order(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / budget, method="er", time_steps=2, budget=budget) for budget in ("20", "30")]
    one, other = (group.look for group in group_runs(read_runs(folders)))
    assert one == METHOD_LOOKS["er"]
    assert (other.color, other.pattern) == (one.color, len(LINES) - 1)
    assert [group.look for group in group_runs(read_runs(folders[::-1]))] == [other, one]


# What the methods spend on, and the terms of their losses.
CHARTS = """labeled reconstruct memory; masked reconstruct memory; replay keys; replay logits; replay guess
labeled penalty; labeled importance; query pool prompt head; views classifier distill; labeled distill; labeled teacher
views projector features head teacher predictor; views projector soft_targets fast head labels
labeled memory views soft_targets; guess labeled unlabeled triplet embed memory cross; labeled features project solve
features head; labeled logits memory; guess labeled unlabeled memory"""


def test_names_in_one_chart_never_share_a_color() -> None:
    for chart in CHARTS.replace("\n", "; ").split("; "):
        places = [NAME_PLACES[name.replace("_", " ")] for name in chart.split()]
        assert len(set(places)) == len(places)
        assert set(places) <= set(range(len(NAME_PALETTE)))


def test_names_have_the_same_color_in_every_report(many: tuple[RunRecord, ...], tmp_path: Path) -> None:
    together = name_colors(many)
    assert together == name_colors(many[::-1])
    for run, row in zip(many, comparison_rows(many), strict=True):
        alone = name_colors([run])
        assert alone == {name: together[name] for name in alone}
        places = [alone[name] for name in row["purposes"]]
        assert len(set(places)) == len(places)


def test_the_band_of_several_seeds_is_their_standard_deviation(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / str(seed), seed=seed, time_steps=4) for seed in range(3)])
    with rc_context(MATPLOTLIB):
        axes = _accuracy(group_runs(runs), "accuracy_mean", "Mean").axes[0]
    values = 100 * np.array([run.summary.accuracy_mean for run in runs])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    for edge in (values.mean(0) - values.std(0, ddof=1), values.mean(0) + values.std(0, ddof=1)):
        for point in zip(range(1, 5), edge, strict=True):
            assert np.abs(corners - point).max(axis=1).min() < 1e-9
