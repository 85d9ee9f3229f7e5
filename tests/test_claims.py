"""The verdicts: computed from counts, with intervals worked out by hand, and able to go either way."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dietcl.experiments import contrasts as c
from dietcl.experiments import paper
from dietcl.experiments import suites as s
from dietcl.experiments.claims import CLAIMS, contrasts_of
from dietcl.experiments.evidence import Contrast, Evidence, judge, within
from dietcl.experiments.measures import final, gaps, lost, unevenness
from dietcl.experiments.show.results import studies
from dietcl.experiments.show.verdicts import claim_sheet, suite_claims
from dietcl.experiments.study import Study
from dietcl.experiments.suites import SUITES, Point
from dietcl.metrics import summarize
from ruled import RuledStudy


def test_a_difference_holds_only_if_its_whole_interval_does():
    # By hand: mean 2, standard deviation 1, so that the half width is 4.303 / sqrt(3) = 2.484.
    contrast = Contrast("a less b", (1.0, 2.0, 3.0))
    assert contrast.interval == pytest.approx((2.0, -0.484, 4.484), abs=1e-3)
    assert str(contrast) == "a less b: +2.0 [-0.5, +4.5]"
    assert contrast.verdict == "cannot tell"
    assert Contrast("", (2.0, 2.1, 2.2)).verdict == "holds"
    assert Contrast("", (-2.0, -2.1, -2.2)).verdict == "does not hold"
    assert Contrast("", (2.0, 2.1, 2.2), bound=3.0).verdict == "does not hold"
    assert Contrast("", (2.0, 2.1, 2.2), bound=3.0, is_above=False).verdict == "holds"
    assert Contrast("", (5.0, 5.1, 5.2), bound=3.0, is_above=False).verdict == "does not hold"
    assert Contrast("", (9.0,)).verdict == "cannot tell"  # one seed has no interval


def test_a_claim_needs_all_its_differences_and_falls_with_one():
    holds, fails, open_ = (Contrast("", values) for values in ((1.0, 1.1), (-1.0, -1.01), (-1.0, 1.0)))
    assert judge([holds, holds]) == "holds"
    assert judge([holds, open_]) == "cannot tell"
    assert judge([holds, open_, fails]) == "does not hold"


def test_one_of_many_differences_that_falls_by_chance_does_not_sink_a_claim():
    # By hand: [-5.48, -0.52] at 95 %; of two together 97.5 %, where t is 6.205: [-6.58, +0.58].
    falls = Contrast("", (-3.0, -4.0, -2.0))
    assert falls.verdict == "does not hold"
    assert judge([falls]) == "does not hold"
    assert judge([falls, Contrast("", (1.0, 1.1, 1.2))]) == "cannot tell"


def test_stable_means_neither_worse_nor_better():
    values, gained = np.array([10.0, 10.1, 10.2]), np.array([13.0, 13.1, 13.2])
    assert judge(within("", values, values, margin=1.0)) == "holds"
    assert judge(within("", gained, values, margin=1.0)) == "does not hold"
    assert judge(within("", values, gained, margin=1.0)) == "does not hold"


@pytest.fixture
def result(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.4)
    return study.measure(SUITES["sampling"], seeds=1)[0].results[0]


def test_a_stability_gap_is_what_was_lost_and_came_back(result):
    def of(*earlier):
        curve = [{"t": 1, "accuracy": [0.9]}, *({"t": 2, "accuracy": [a, 0.5]} for a in earlier)]
        return replace(result, facts={"curve": curve})

    dips = [of(0.8, 0.5, 0.7), of(0.8, 0.6, 0.9)]
    assert gaps(dips) == pytest.approx([0.2, 0.2])  # down to 0.5 and back to 0.7; down to 0.6 and back to 0.8
    assert [lost(dip) for dip in dips] == pytest.approx([0.1, -0.1])
    assert gaps([of(0.8, 0.7, 0.6), of(0.9, 0.7, 0.6)]) == [0, 0]  # forgetting alone
    # Each is low by chance at another time, which is no gap.
    assert gaps([of(0.8, 0.5, 0.8, 0.8), of(0.8, 0.8, 0.5, 0.8)]) == [0, 0]


def test_unevenness_is_without_the_noise_of_few_test_images(result):
    # By hand: 0.2 and 0.4 have a variance of 0.01, of which (0.16 + 0.24) / 2 / 50 = 0.004 is chance.
    summary = summarize([[10, 0], [10, 20]], [[50, 0], [50, 50]], [[0, 0], [0, 0]])
    assert unevenness(replace(result, summary=summary)) == pytest.approx(0.006**0.5)
    even = summarize([[10, 0], [10, 11]], [[50, 0], [50, 50]], [[0, 0], [0, 0]])
    assert unevenness(replace(result, summary=even)) == 0


def test_replay_overfits_if_it_loses_from_where_other_seeds_peak():
    budgets = [point.updates for point in SUITES["budget"].points]
    assert budgets[-1] == 2500

    def judged(*by_seed):
        curves = dict(zip(budgets, np.array(by_seed).T, strict=True))
        evidence = SimpleNamespace(values=lambda arm, measure, point: curves[point.updates])
        (contrast,) = c.overfits(s.ER)(evidence)
        return contrast

    # Seeds 1 and 2 peak at 400, so that seed 0 is read there and not at its own peak; 12 - 8, 14 - 9, 13 - 9.
    falling = judged([10, 11, 12, 13, 9, 8], [10, 12, 14, 12, 10, 9], [9, 12, 13, 11, 10, 9])
    assert falling.values == pytest.approx((4, 5, 4))
    # One that gains up to the end has no peak before it.
    assert judged([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6.1]).values == pytest.approx((-1, -1.1))


def test_differences_of_budgets_rates_and_lengths_by_hand():
    """Each is fed an accuracy by arm and point, and must subtract the right ones on the right side."""

    usual = Point()

    def values(arm, measure, point=usual):
        level = {"DietCL": 30, "CaSSLe": 20, "GDumb": 10}[arm.title]
        fewer = {"DietCL": 2, "CaSSLe": 3, "GDumb": 7}[arm.title] * (point.updates == 100)
        more = {"DietCL": 100, "CaSSLe": 20, "GDumb": 10}[arm.title] * point.label_rate
        return np.full(3, level - fewer + more - 0.01 * point.time_steps + 0.001 * point.threshold)

    def means(function):
        return [contrast.interval[0] for contrast in function(SimpleNamespace(values=values))]

    assert means(c.hurt_by_little) == pytest.approx([2, 3, 7])
    assert means(c.hurt_most) == pytest.approx([7 - 2, 7 - 3])
    assert means(c.more_labels) == pytest.approx([0.5, 4])
    assert means(c.others_gain_less) == pytest.approx([4.5 - 0.45, 4.5 - 0.9])
    assert means(c.enough_labels) == pytest.approx([5])
    assert means(c.same_threshold) == pytest.approx([0.1] * 3)  # (400 + 450 - 300 - 350) / 2 thousandths
    assert means(c.lead_at_budgets((s.GDUMB,), (100,))) == pytest.approx([28 - 3 + 0.9])
    assert means(c.stable_budget) == pytest.approx([0] * 4)
    short, _, fifty, fifty_again, *_ = means(c.stable_length)
    assert (short, fifty, fifty_again) == pytest.approx((0.1, -0.3, -0.3))


def test_the_paper_s_passes_by_hand():
    # 500 updates of 1,024 images; 5,000 labels and 505,000 images in each of 20 time steps.
    assert paper.passes(Point()) == pytest.approx((102.4, 5.12, 512 / 505))
    assert paper.passes(Point(label_rate=0.1)) == pytest.approx((10.24, 0.512, 512 / 505))
    # A fifth as long a time step with a fifth of the updates.
    assert paper.passes(s.of_length(100)) == pytest.approx((102.4, 1.024, 512 / 505))


def test_the_difference_that_decides_is_the_one_shown(tmp_path):
    """One noisy lead and one clear defeat: the clear one is named."""

    def rule(cell):
        noise = 0.1 * (cell.config.seed % 2) if cell.config.method == "mas" else 0.0
        return {"dietcl": 0.3, "ewc": 0.32}.get(cell.config.method, 0.28) + noise

    study = RuledStudy("glyphs", tmp_path, rule)
    study.measure(s.suite_named("table1", "dietcl,ewc,mas"), seeds=3)
    cells = {row[0]: row[3] for row in claim_sheet(studies(tmp_path)).rows}
    told = cells["DietCL is above every supervised method"]
    assert told.startswith("does not hold (DietCL less EWC: -2.0 ")


def measure_all(tmp_path, accuracy):
    def rule(cell):
        if cell.key.startswith("peak/"):
            return {10: 0.2, 20: 0.4}.get(int(cell.config.budget), 0.4)
        return accuracy(cell) + 0.001 * (cell.config.seed % 100)

    study = RuledStudy("glyphs", tmp_path, rule)
    for suite in SUITES.values():
        study.measure(suite, seeds=2)
    return Study("glyphs", tmp_path)


def dietcl_first(cell):
    """DietCL best of all and the better the more parts it has."""
    own = cell.config.method_config
    if cell.config.method != "dietcl":
        return 0.1
    parts = own.mask_classes * 0.05 + own.balance_memory * 0.02 + (own.unlabeled > 0) * own.mask_classes * 0.03
    return 0.3 + parts - 0.02 * (own.reconstruct == "labeled")


def test_every_claim_is_judged_from_finished_runs_alone(tmp_path):
    study = measure_all(tmp_path, dietcl_first)
    verdicts = {claim.text: judge(contrasts_of(claim, study)) for claim in CLAIMS}
    assert all(contrasts_of(claim, study) for claim in CLAIMS)
    for text in (
        "DietCL is above every supervised method",
        "DietCL is above every semi-supervised method",
        "The masked loss helps",
        "Reconstruction helps",
        "Reconstruction helps only little without the masked loss",
        "It is the unlabeled images that help",
        "The balanced memory helps a little",
        "CaSSLe collapses at small budgets",
        "DietCL is stable over budgets",
        "DietCL is stable over stream lengths",
        "From 5 to 10 % labels brings DietCL nothing",
    ):
        assert verdicts[text] == "holds", text
    assert verdicts["Balanced sampling beats uniform in ER"] == "cannot tell"  # nobody differs


def test_the_opposite_counts_give_the_opposite_verdicts(tmp_path):
    study = measure_all(tmp_path, lambda cell: 0.5 - dietcl_first(cell))
    verdicts = {claim.text: judge(contrasts_of(claim, study)) for claim in CLAIMS}
    for text in ("DietCL is above every supervised method", "The masked loss helps", "Reconstruction helps"):
        assert verdicts[text] == "does not hold", text


def test_a_suite_shows_every_difference_that_its_claims_rest_on(tmp_path):
    study = measure_all(tmp_path, dietcl_first)
    (sheet,) = suite_claims(study, "ablation")
    assert sheet.rows[:4] == (
        ("The masked loss helps", "+0.9", "", "", "holds"),
        ("· masked loss: +5.0 [+5.0, +5.0]", "", "above 0", "2", "holds"),
        ("Reconstruction helps", "+0.9", "", "", "holds"),
        ("· reconstruction: +3.0 [+3.0, +3.0]", "", "above 0", "2", "holds"),
    )
    (orders,) = suite_claims(study, "ablation-orders")
    assert orders.rows[-1][0] == "· reconstruction without the masked loss: +0.0 [+0.0, +0.0]"
    assert orders.rows[-1][2] == "below +1.0"  # a fortieth of 40 %
    (memory,) = (row for row in sheet.rows if row[0] == "The balanced memory helps a little")
    assert memory[-1].startswith("cannot be tested: every time step has equally many labels")
    assert not suite_claims(study, "regimes")  # no claim rests on it


def test_differences_are_of_the_same_seeds_and_in_points(tmp_path):
    study = measure_all(tmp_path, dietcl_first)
    evidence = Evidence(study)
    assert evidence.values(s.DIETCL, final) == pytest.approx([40.0, 40.1, 40.2, 40.3])
    (first, *_) = contrasts_of(CLAIMS[0], study)
    assert first.values == pytest.approx((30.0, 30.0))  # two seeds of EWC, four of DietCL
    assert evidence.values(s.MASKED, final, Point()) == pytest.approx([35.0, 35.1])


def test_a_lead_over_every_method_is_not_confirmed_by_some_of_them(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.1 * (cell.config.method == "dietcl") + 0.2)
    study.measure(s.suite_named("table1", "dietcl,er,linear_probe"), seeds=2)
    cells = {row[0]: row[3] for row in claim_sheet(studies(tmp_path)).rows}
    told = cells["DietCL is above every supervised method"]
    assert told.startswith("cannot tell (DietCL less ER balanced: +10.0 ")
    assert told.endswith("; 1 of 7 hold, 6 not run)")
    told = cells["DietCL is above supervised methods that the paper leaves out"]
    assert told.startswith("cannot tell (DietCL less Frozen, solved head: +10.0 ")
    assert cells["DietCL is above every semi-supervised method"] == "not run"


def test_what_was_not_run_is_said_so_and_judged_by_nobody(tmp_path):
    RuledStudy("glyphs", tmp_path, lambda cell: 0.4).measure(SUITES["sampling"], seeds=1)
    assert [study.name for study in studies(tmp_path)] == ["glyphs"]
    rows = {row[0]: row[3] for row in claim_sheet(studies(tmp_path)).rows}
    assert rows["The masked loss helps"] == "not run"
    assert rows["Balanced sampling beats uniform in ER"].startswith("cannot tell (balanced less uniform: +0.0")
