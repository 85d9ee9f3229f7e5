"""The differences on which claims rest, each against values worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dietcl.metrics import summarize
from helpers.scored_study import RuledStudy
from reproduction import budget_contrasts as b
from reproduction import contrasts as c
from reproduction import paper
from reproduction import suites as s
from reproduction.claims import CLAIMS
from reproduction.measures import average, final, first, gaps, lost, new_classes, unevenness
from reproduction.suites import SUITES, Point

USUAL = Point()
LEVELS = {
    "DietCL": 30,
    "CaSSLe": 20,
    "GDumb": 10,
    "EWC": 40,
    "MAS": 50,
    "TwoStage": 8,
    "OneStage": 5,
    "OneStage at TwoStage's rates": 6,
}
FEWER = {"DietCL": 2, "CaSSLe": 3, "GDumb": 7}
MORE = {"DietCL": 100, "CaSSLe": 20, "GDumb": 10}
# Every measure is another multiple, so that the wrong one gives another difference.
FACTORS = {final: 1, average: 2, new_classes: 3, first: 4, unevenness: 5}


def values(arm, measure, point=USUAL):
    """Return an accuracy that tells arm, measure and point apart, alike for three seeds."""
    level = LEVELS.get(arm.title, 35) - FEWER.get(arm.title, 0) * (point == Point(updates=100))
    level += MORE.get(arm.title, 0) * point.label_rate - 0.01 * point.time_steps + 0.001 * point.threshold
    level += 0.001 * max(0, point.updates - 500) * (point.time_steps == 20)
    return np.full(3, FACTORS.get(measure, 1) * level)


def means(function):
    return [contrast.interval[0] for contrast in function(SimpleNamespace(values=values))]


def test_differences_of_budgets_by_hand():
    assert means(b.hurt_by_little) == pytest.approx([2 * 2, 2 * 3, 2 * 7])  # in A
    assert means(b.hurt_most) == pytest.approx([2 * (7 - 2), 2 * (7 - 3)])
    assert means(b.lead_at_budgets((s.GDUMB,), (100,), final)) == pytest.approx([28 - 3 + 0.9])
    assert means(b.lead_at_budgets((s.GDUMB,), (100,), average)) == pytest.approx([2 * (28 - 3 + 0.9)])
    # DietCL has 29.2 at 100 updates and 31.2 at 500, CaSSLe 17.4 and 20.4.
    assert means(b.collapses(100)) == pytest.approx([29.2 / 2 - 17.4])
    assert means(b.collapses(500)) == pytest.approx([31.2 / 2 - 20.4])
    assert means(b.stable_budget) == pytest.approx([2 * 1, 2 * 1, 2 * 2, 2 * 2])  # in A, at 1,500 and at 2,500


def test_what_figure_2_claims_is_judged_by_the_accuracy_at_the_end():
    figure = {claim.text: means(claim.contrasts) for claim in CLAIMS if claim.paper == "Figure 2"}
    lead = 31.2 - 20.4  # at 500 updates, in A(T); everyone gains 2 from there to 2,500
    assert figure.pop("CaSSLe stays below DietCL up to the largest budget")[3] == pytest.approx(lead)
    assert figure.pop("DietCL is above Replay at every budget")[3] == pytest.approx(31.2 - 35.2)
    assert figure == {
        "CaSSLe collapses at the smallest budget": pytest.approx([29.2 / 2 - 17.4]),
        "CaSSLe converges more slowly than DietCL": pytest.approx([0]),
        "DietCL has converged by 500 updates": pytest.approx([2]),
        "Small budgets cost Replay much": pytest.approx([0]),
        "ER (balanced, as in the paper) overfits past a budget": pytest.approx([1 - 2]),  # it gains up to the end
        "Replay overfits, and DietCL less": pytest.approx([1 - 2, 0]),
    }


def test_what_counts_as_converged_and_as_much_at_a_small_budget():
    levels = {"DietCL": [10, 15, 18, 20, 20.5, 20.8], "CaSSLe": [1, 1, 1, 2, 4, 8], "ER balanced": [6, 8, 9, 9, 8, 7]}
    points = SUITES["budget"].points
    evidence = SimpleNamespace(
        values=lambda arm, measure, point: levels[arm.title][points.index(point)] + np.array([0, 0.01, 0.02])
    )
    (converged,), (slow,), (degrades,), (overfits, less_overfit) = (
        function(evidence) for function in (b.has_converged, b.converges_slowly, b.degrades, b.overfits_less)
    )
    assert (converged.values[0], converged.bound) == pytest.approx((0.8, 0.05 * 20.01))
    assert slow.values[0] == pytest.approx(6 - 0.8)
    assert (degrades.values[0], degrades.bound) == pytest.approx((9 - 6, 0.05 * 9.01))
    # Replay falls from 9 to 7; DietCL is best at 1,500 among the smaller budgets, from where it gains 0.3.
    assert (overfits.values[0], less_overfit.values[0]) == pytest.approx((2, 2 + 0.3))
    assert {each.verdict for each in (converged, slow, degrades, overfits, less_overfit)} == {"holds"}


def test_differences_of_label_rates_by_hand():
    assert means(c.more_labels) == pytest.approx([2 * 0.5, 2 * 4])  # in A
    assert means(c.others_gain_less) == pytest.approx([2 * (4.5 - 0.45), 2 * (4.5 - 0.9)])
    assert means(c.enough_labels) == pytest.approx([2 * 5])


def test_differences_of_stream_lengths_by_hand():
    short, _, fifty, fifty_again, *_ = means(c.stable_length("A(T)", final))
    assert (short, fifty, fifty_again) == pytest.approx((0.1, -0.3, -0.3))
    assert means(c.stable_length("A", average))[0] == pytest.approx(2 * 0.1)
    assert means(c.longer_is_worse("A", average)) == pytest.approx([2 * 0.9, 2 * 0.9])
    gdumb, cassle = c.longer_is_worse("A(T)", final)(SimpleNamespace(values=values))
    assert [gdumb.values[0], cassle.values[0]] == pytest.approx([0.9, 0.9])
    # 11 % of 10.4 at T = 10: what would be similar of DietCL is so of the others.
    assert gdumb.bound == pytest.approx(0.11 * 10.4)
    assert gdumb.verdict == "does not hold"


def test_differences_of_early_loss_evenness_and_stages_by_hand():
    # From the first time step (four times the level) to the fifth (once): three times the level is lost.
    ewc, mas, cassle = means(c.early_drop)
    assert (ewc, mas, cassle) == pytest.approx((3 * (40.2 - 31.2), 3 * (50.2 - 31.2), 3 * (20.4 - 31.2)))
    assert means(c.evens_out) == pytest.approx([5 * (35 - 31)])  # without, less with


def test_what_a_stage_brings_by_hand():
    (new,), (same_rates,), (seen,), (seen_same_rates,) = (
        claim.contrasts(SimpleNamespace(values=values)) for claim in CLAIMS if claim.suite == "two-stage"
    )
    assert (new.values[0], new.is_above) == (pytest.approx(3 * (8 - 5)), True)
    assert same_rates.values[0] == pytest.approx(3 * (8 - 6))
    # OneStage has 5, 0.4 more by its threshold, 0.2 less by its length, and 2 more by its 2,500 updates.
    assert (seen.values[0], seen.is_above) == (pytest.approx(2 * 3), False)
    assert seen.bound == pytest.approx(0.05 * 2 * (5 + 0.2 + 2))
    assert seen_same_rates.values[0] == pytest.approx(2 * 2)
    assert (new.verdict, seen.verdict) == ("holds", "does not hold")


def by_point(name, *by_seed):
    """Return evidence whose values at a suite's points are given by seed."""
    points = SUITES[name].points
    curves = np.array(by_seed, dtype=np.float64).T
    return SimpleNamespace(values=lambda arm, measure, point: curves[points.index(point)])


def test_replay_overfits_if_it_loses_from_where_other_seeds_peak():
    assert [point.updates for point in SUITES["budget"].points][-1] == 2500

    def judged(*by_seed):
        (contrast,) = b.overfits(s.ER)(by_point("budget", *by_seed))
        return contrast

    # Seeds 1 and 2 peak at 400, so that seed 0 is read there and not at its own peak; 12 - 8, 14 - 9, 13 - 9.
    falling = judged([10, 11, 12, 13, 9, 8], [10, 12, 14, 12, 10, 9], [9, 12, 13, 11, 10, 9])
    assert falling.values == pytest.approx((4, 5, 4))
    assert falling.label == "ER balanced at its peak (400) less at 2,500"
    # One that gains up to the end has no peak before it.
    assert judged([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6.1]).values == pytest.approx((-1, -1.1))
    # A seed alone has no others that could choose for it, and one that diverged neither chooses nor counts.
    assert judged([10, 20, 30, 29, 28, 25]).values == ()
    assert judged([1, 2, 3, 4, 5, 6], [1, np.nan, 9, 9, 9, 9], [1, 2, 3, 4, 5, 7]).values == pytest.approx((-1, -2))


def test_the_better_threshold_of_each_half_is_chosen_by_other_seeds():
    seeds = ([10, 0, 9, 8], [10, 1, 9, 8], [10, 2, 8, 9])
    evidence = by_point("threshold", *seeds)
    # 300 against 400, though seed 2 is better at 450: 9 - 10, 9 - 10, 8 - 10.
    for contrast in c.same_threshold(evidence):
        assert contrast.values == pytest.approx((-1, -1, -2))


def test_the_paper_s_own_table_gives_the_difference_that_stands_beside_ours():
    lower, upper = ([paper.THRESHOLDS[b] for b in pair] for pair in ((300, 350), (400, 450)))
    gains = [max(high) - max(low) for high, low in zip(zip(*upper, strict=True), zip(*lower, strict=True), strict=True)]
    (claim,) = (claim for claim in CLAIMS if claim.suite == "threshold")
    assert claim.paper == "{:+.1f}, {:+.1f} and {:+.1f}".format(*gains)


def test_the_paper_s_passes_by_hand():
    # 500 updates of 1,024 images; 5,000 labels and 505,000 images in each of 20 time steps.
    assert paper.passes(Point()) == pytest.approx((102.4, 5.12, 512 / 505))
    assert paper.passes(Point(label_rate=0.1)) == pytest.approx((10.24, 0.512, 512 / 505))
    # A fifth as long a time step with a fifth of the updates.
    assert paper.passes(s.of_length(100)) == pytest.approx((102.4, 1.024, 512 / 505))
    # Three time steps have 15,000 labels.
    assert paper.passes(Point(updates=300, first_time_steps=3)) == pytest.approx((61.44, 20.48, 307.2 / 505))


@pytest.fixture
def result(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.4)
    return study.measure(SUITES["sampling"], seeds=1)[0].results[0]


def dip(result, *earlier):
    """Return a run of two time steps with these accuracies on the first one's classes within the second."""
    curve = [{"t": 1, "accuracy": [0.9]}, *({"t": 2, "accuracy": [a, 0.5]} for a in earlier)]
    return replace(result, facts={"curve": curve})


def test_a_stability_gap_is_what_was_lost_and_came_back(result):
    dips = [dip(result, 0.8, 0.5, 0.7), dip(result, 0.8, 0.6, 0.9)]
    assert gaps(dips) == pytest.approx([0.2, 0.2])  # down to 0.5 and back to 0.7; down to 0.6 and back to 0.8
    assert [lost(each) for each in dips] == pytest.approx([0.1, -0.1])
    assert gaps([dip(result, 0.8, 0.7, 0.6), dip(result, 0.9, 0.7, 0.6)]) == [0, 0]  # forgetting alone
    # Each is low by chance at another time, which is no gap.
    assert gaps([dip(result, 0.8, 0.5, 0.8, 0.8), dip(result, 0.8, 0.8, 0.5, 0.8)]) == [0, 0]


def test_a_time_step_without_test_images_does_not_hide_a_gap(result):
    # Of the first time step nothing was tested, for which a curve has 0.
    summary = summarize(*([[0, 0, 0], [0, 5, 0], [0, 5, 5]] for _ in range(2)), np.zeros((3, 3)))
    curve = [{"t": 3, "accuracy": [0.0, each, 0.5]} for each in (0.8, 0.4, 0.8)]
    untested = replace(result, summary=summary, facts={"curve": curve})
    assert gaps([untested, untested]) == pytest.approx([0.4, 0.4])
    assert first(untested) == 1.0  # the first A(t) that is known


def test_the_gap_of_replay_less_that_of_dietcl(result):
    dips = {s.ER.title: (0.8, 0.5, 0.8), s.DIETCL.title: (0.8, 0.7, 0.8)}
    good = {name: [replace(dip(result, *each), seed=seed) for seed in (0, 1, 2)] for name, each in dips.items()}
    good[s.ER.title][1] = replace(result, seed=1, failure="the loss is not finite")
    study = SimpleNamespace(finished=lambda arm, point: good[arm.title])
    evidence = SimpleNamespace(study=study, values=lambda *asked: np.array([80.0, np.nan, 80.0]))
    replay, difference, ours = c.no_gap(evidence)
    assert replay.values == pytest.approx((30, 30))
    assert difference.values == pytest.approx((20, 20))
    assert ours.values == pytest.approx((10, 10))
    assert (ours.bound, ours.is_above) == (pytest.approx(4.0), False)  # a twentieth of 80 %


def test_unevenness_is_without_the_noise_of_few_test_images(result):
    # By hand: 0.2 and 0.4 have a variance of 0.01, of which (0.16 + 0.24) / 2 / 50 = 0.004 is chance.
    summary = summarize([[10, 0], [10, 20]], [[50, 0], [50, 50]], [[0, 0], [0, 0]])
    assert unevenness(replace(result, summary=summary)) == pytest.approx(0.006**0.5)
    even = summarize([[10, 0], [10, 11]], [[50, 0], [50, 50]], [[0, 0], [0, 0]])
    assert unevenness(replace(result, summary=even)) == 0
