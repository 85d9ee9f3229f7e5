"""The comparison with Replay: fixed in advance, equal effort, nothing chosen on what is reported, nothing run twice."""

import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.experiments import regime
from dietcl.experiments.show.sheets import Sheet
from oracle import Oracle


class Study(Oracle, regime.Study):
    """The comparison with Replay, by rule."""


def test_every_method_has_twelve_trials_and_alpha_meets_every_rate():
    assert len(set(regime.TRIALS)) == 12
    for name, rates in (("lr", regime.LR), ("head_lr", regime.HEAD_LR)):
        assert len({(getattr(trial, name), trial.alpha) for trial in regime.TRIALS}) == 3 * len(rates)
    assert {trial.alpha for trial in regime.TRIALS} == {1, 5, 50}


def test_the_search_takes_the_best_trial_and_never_sees_a_reported_image(tmp_path):
    favorite = regime.TRIALS[4]
    study = Study(
        regime.Options(out=tmp_path),
        lambda cell: 0.9 if cell.config.training.lr == favorite.lr and "head 0.06" in cell.key else 0.5,
    )
    sheet = next(study.sheets())
    assert [row[3:] for row in sheet.rows if row[:2] == ("0.002", "0.06")] == [("90.0%*",) * 3]
    assert {cell for row in sheet.rows for cell in row[3:]} == {"90.0%*", "50.0%"}
    per_method = [sum(cell.key.startswith(f"search/{method}/") for cell in study.asked) for method in regime.METHODS]
    assert per_method == [24, 24, 24]
    for cell in study.asked:
        assert cell.config.first_time_steps == 3
        assert cell.config.seed not in regime.SEEDS
        assert cell.config.source.seed == cell.config.seed  # other images of other characters
    reported = study._cell("comparison", "DietCL", favorite, 10, 0, 5)
    assert reported.config.source.seed not in {cell.config.source.seed for cell in study.asked}


def test_the_peak_is_where_doubling_stops_gaining_more_than_its_error(tmp_path):
    scores = {40: 0.2, 80: 0.4, 160: 0.5, 320: 0.505}
    study = Study(regime.Options(out=tmp_path / "peak"), lambda cell: scores[int(cell.config.budget)])
    measured, best = study.peak(regime.TRIALS[0])
    assert measured == scores
    assert best == 160
    endless = Study(regime.Options(out=tmp_path / "endless"), lambda cell: int(cell.config.budget) / 2000)
    with pytest.raises(UserError, match="still gains at 1280"):
        endless.peak(regime.TRIALS[0])


def test_the_comparison_pairs_seeds_and_prints_the_regime(tmp_path):
    def accuracy(cell):
        return 0.5 + 0.01 * cell.config.seed + (0.02 if cell.config.method == "dietcl" else 0.0)

    study = Study(regime.Options(out=tmp_path), accuracy)
    results = study.compare(400, dict.fromkeys(regime.METHODS, regime.TRIALS[0]), threshold=320)
    sheet = regime._difference_sheet(results)
    assert [row[0] for row in sheet.rows] == ["DietCL less ER balanced", "DietCL less ER uniform"]
    assert {cell for row in sheet.rows for cell in row[1:]} == {"+2.00 [+2.00, +2.00]"}
    title = regime._regime(400, results["DietCL"][0])
    batch = regime.PRESETS["micro"].training.batch
    assert f"S·b/n_t = {400 * batch / 20:.1f}" in title
    assert f"S·b/Σn = {400 * batch / 200:.2f}" in title
    row = regime._result_sheet(title, results).rows[0]
    values = [52, 53, 54, 55, 56]
    assert row[1] == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    (dietcl,) = {cell.config.method_config.threshold for cell in study.asked if cell.config.method == "dietcl"}
    assert dietcl == "320"


def test_a_sheet_reads_the_same_as_markdown():
    sheet = Sheet("Title.", ("a", "b"), (("x", "1"), ("[y]", "2")))
    assert sheet.markdown() == "Title.\n\n| a | b |\n| --- | ---: |\n| x | 1 |\n| [y] | 2 |\n"
    assert sheet.table().row_count == 2
