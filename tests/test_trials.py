"""Searches: the same trials for every method, and a choice that follows from their scores as worked out by hand."""

from dataclasses import replace

import pytest

from helpers.scored_study import RuledStudy
from reproduction.larder_suites import LARDER_SUITES
from reproduction.trials import SEARCH_AT_BUDGET, SHORT_SEARCH, SOLVED, Choice, Trial

A, B, C = Trial(0.001, 0.01, 0.1), Trial(0.004, 0.04, 10.0), Trial(0.01, 0.1, 1.0)


def at_40(cell):
    """Score a peak at 40 updates, and everything else alike."""
    return {10: 0.2, 20: 0.3, 40: 0.4, 80: 0.4}[int(cell.config.budget)] if cell.key.startswith("peak/") else 0.3


def test_the_noise_of_a_search_of_two_trials_by_hand():
    # Means 0 and 0.3 of trials, 0.1 and 0.2 of seeds, 0.15 of all: each is 0.05 off, of one degree of freedom. So the
    # variance is 0.01, and the error of a difference of two means of two seeds is the root of 2 * 0.01 / 2.
    choice = SEARCH_AT_BUDGET.choose({A: [0.0, 0.0], B: [0.2, 0.4]})
    assert choice.error == pytest.approx(0.1)
    assert (choice.trial, choice.tied) == (B, 1)


def test_the_noise_of_a_search_of_three_trials_by_hand():
    # Means 2, 2 and 3.5 of trials, 2 and 3 of seeds, 2.5 of all: A and B are 0.5 off, C not at all. Squares sum to 1,
    # of two degrees of freedom, so that the error is the root of 2 * 0.5 / 2.
    assert SEARCH_AT_BUDGET.choose({A: [1, 3], B: [2, 2], C: [3, 4]}).error == pytest.approx(0.5**0.5)
    # What all seeds have in common is no noise.
    assert SEARCH_AT_BUDGET.choose({A: [1, 5], B: [2, 6], C: [3, 7]}).error == pytest.approx(0)


def test_trials_as_good_as_the_best_are_averaged_and_a_clear_winner_stays_alone():
    # A and B have the mean 0.5 and 0.5 + 0.05; the noise is that of the first table, 0.1.
    near = {A: [0.45, 0.55], B: [0.6, 0.5]}
    found = SEARCH_AT_BUDGET.choose(near)
    assert found.error == pytest.approx(0.1)
    assert found == Choice(Trial(0.002, 0.02, 1.0), 2, found.error)  # roots of 0.001 * 0.004, 0.01 * 0.04, 0.1 * 10
    clear = {A: [0.45, 0.55], B: [0.9, 0.8]}
    assert (SEARCH_AT_BUDGET.choose(clear).trial, SEARCH_AT_BUDGET.choose(clear).tied) == (B, 1)
    # The earlier search takes the best one, be it by luck.
    assert (SHORT_SEARCH.choose(near).trial, SHORT_SEARCH.choose(near).tied) == (B, 1)


def test_a_trial_just_below_the_error_does_not_tie():
    scores = {A: [0.0, 0.0], B: [0.2, 0.4], C: [0.2, 0.4]}
    error = SEARCH_AT_BUDGET.choose(scores).error
    inside, outside = (
        SEARCH_AT_BUDGET.choose({A: [0.0, 0.0], B: [0.2, 0.4], C: [0.2 - gap, 0.4 - gap]})
        for gap in (0.99 * error, 1.01 * error)
    )
    assert (inside.tied, outside.tied) == (2, 1)
    assert outside.trial == B


@pytest.mark.parametrize("search", [SHORT_SEARCH, SEARCH_AT_BUDGET], ids=lambda search: search.name)
def test_a_search_gives_every_method_the_same_trials_of_the_same_length(tmp_path, search):
    study = RuledStudy("glyphs", tmp_path, at_40)
    methods = list(dict.fromkeys(arm.rates_of for suite in LARDER_SUITES.values() for arm in suite.arms))
    study.search(methods, search)
    own = [cell for cell in study.asked if cell.key.startswith(f"{search.name}/")]
    by_method = {method: [cell for cell in own if f"/{method}/" in cell.key] for method in methods}
    assert not any(by_method.pop(method) for method in SOLVED if method in methods)
    assert len(by_method) > 5
    for cells in by_method.values():
        rates = {(cell.config.training.lr, cell.config.training.head_lr) for cell in cells}
        assert rates == {(trial.lr, trial.head_lr) for trial in search.trials}
        assert len(cells) == search.number * len(search.seeds)
        assert {cell.config.seed for cell in cells} == {*search.seeds}
        assert {cell.config.first_time_steps for cell in cells} == {search.time_steps}
        assert {cell.config.stream for cell in cells} == {"glyphs/held-out"}
        assert {cell.config.budget for cell in cells} == ({"50"} if search is SEARCH_AT_BUDGET else {"40"})
        assert {cell.config.accounting for cell in cells} == ({"flops"} if search is SEARCH_AT_BUDGET else {"images"})


def test_a_trial_at_the_budget_is_what_will_be_reported_but_for_its_length_and_its_images(tmp_path):
    study = RuledStudy("glyphs", tmp_path, at_40)
    arm, (point,) = LARDER_SUITES["methods"].arms[2], LARDER_SUITES["methods"].points
    reported = study.cell(arm, point, 20).config
    trial = study._trial_cells("dietcl", study.choice("dietcl", SEARCH_AT_BUDGET).trial, SEARCH_AT_BUDGET)[0].config
    assert trial.method_config.threshold == "40"  # S*
    assert trial.evaluation.test_images is None
    assert trial == replace(
        reported, seed=110, stream="glyphs/held-out", first_time_steps=5, evaluation=trial.evaluation
    )
