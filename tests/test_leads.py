"""Whether an arm leads: corrected for the number of differences, and with seeds that would tell, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from dietcl.metrics import summarize
from reproduction.leads import TOO_FEW, judged, lead_words, paired, place_words, seeds_needed
from reproduction.measures import final
from reproduction.run_cache import Result
from reproduction.study import Measured
from reproduction.suites import DIETCL, ER, Point
from reproduction.verdicts import Contrast

# By hand: mean 3 and standard deviation 1 of three seeds, so that the half width is t / 1.732. At 95 % t is 4.303:
# [0.52, 5.48]; of two together 97.5 %, where t is 6.205: [-0.58, 6.58].
NARROW = Contrast("", (2.0, 3.0, 4.0))
CLEAR = Contrast("", (9.0, 9.1, 9.2))
OPEN = Contrast("", (-1.0, 0.0, 2.0))


def test_a_difference_is_judged_with_all_others():
    assert judged([NARROW]) == (["holds"], 0.95)
    verdicts, confidence = judged([NARROW, OPEN])
    assert verdicts == ["cannot tell", "cannot tell"]
    assert confidence == pytest.approx(0.975)
    assert judged([replace(NARROW, values=(-2.0, -3.0, -4.0))])[0] == ["does not hold"]


def test_what_is_told_makes_room_for_the_others():
    # Both intervals are widened for two at first; once the clear one is told, the other is alone (Holm).
    assert judged([NARROW, CLEAR]) == (["holds", "holds"], 0.95)
    verdicts, confidence = judged([NARROW, CLEAR, OPEN])
    assert verdicts == ["cannot tell", "holds", "cannot tell"]
    assert confidence == pytest.approx(0.975)


def test_what_cannot_be_tested_costs_the_others_nothing():
    assert judged([NARROW, Contrast("", (5.0,)), Contrast("", ())])[0] == ["holds", "cannot tell", "cannot tell"]
    assert judged([])[0] == []


def test_holm_agrees_with_sorted_p_values():
    generator = np.random.default_rng(0)
    for _ in range(20):
        table = [Contrast("", tuple(generator.normal(shift, 1, 6))) for shift in generator.uniform(0, 3, 5)]
        size = [abs(np.mean(each.values)) / np.std(each.values, ddof=1) for each in table]  # the larger, the less p
        wanted = ["cannot tell"] * 5
        for rank, place in enumerate(sorted(range(5), key=lambda place: -size[place])):
            verdict = table[place].verdict_at(1 - 0.05 / (5 - rank))
            if verdict == "cannot tell":
                break
            wanted[place] = verdict
        assert judged(table)[0] == wanted


def test_how_many_seeds_would_tell_by_hand():
    # Mean 1 and standard deviation 1: t / sqrt(n) is 2.571 / 2.449 = 1.05 at n = 6 and 2.447 / 2.646 = 0.92 at n = 7.
    unit = Contrast("", (0.0, 1.0, 2.0))
    assert seeds_needed(unit) == 7
    assert seeds_needed(replace(unit, values=(0.0, -1.0, -2.0))) == 7
    # For ten differences together 99.5 %: 3.497 / 3.464 = 1.01 at n = 12 and 3.428 / 3.606 = 0.95 at n = 13.
    assert seeds_needed(unit, 0.995) == 13
    assert seeds_needed(Contrast("", (0.99, 1.0, 1.01))) == 2
    # Mean 0.1 and standard deviation 1 takes about (1.96 / 0.1) ** 2 = 384.
    assert seeds_needed(Contrast("", (-0.9, 0.1, 1.1))) is None
    assert seeds_needed(Contrast("", (-1.0, 0.0, 1.0))) is None


def test_leads_are_said_in_words():
    assert lead_words([CLEAR, replace(CLEAR, values=(-9.0, -9.1, -9.2))]) == ["above", "below"]
    assert lead_words([Contrast("", (0.0, 1.0, 2.0))]) == ["cannot tell (about 7 seeds would)"]
    assert lead_words([Contrast("", (-1.0, 0.0, 1.1))]) == ["cannot tell (more than 200 seeds would)"]
    assert lead_words([Contrast("", (5.0,)), Contrast("", ())]) == [TOO_FEW, TOO_FEW]


def test_the_seeds_that_would_tell_are_those_for_what_is_open():
    unit = Contrast("", (0.0, 1.0, 2.0))
    *_, alone = lead_words([CLEAR, unit])
    assert alone == "cannot tell (about 7 seeds would)"
    # Of two that are open 97.5 %: t / sqrt(n) is 2.969 / 2.646 = 1.12 at n = 7 and 2.841 / 2.828 = 1.004 at n = 8.
    assert lead_words([unit, OPEN])[0] == "cannot tell (about 9 seeds would)"


def test_places_are_said_in_words():
    assert place_words([[CLEAR], [replace(CLEAR, values=(-9.0, -9.1, -9.2))]]) == ["best", "below"]
    assert place_words([[OPEN]]) == ["highest, within the interval"]
    assert place_words([[replace(OPEN, values=(1.0, 0.0, -2.0))]]) == ["within the interval of the best"]
    assert place_words([[Contrast("", (5.0,))]]) == [TOO_FEW]


def test_to_be_best_takes_a_lead_over_every_other_arm():
    assert place_words([[CLEAR, OPEN]]) == ["highest, within the interval"]
    assert place_words([[CLEAR, CLEAR]]) == ["best"]
    assert place_words([[NARROW], [OPEN]]) == ["highest, within the interval"] * 2  # as two are judged together


def test_other_points_do_not_hide_that_one_is_below():
    behind = replace(NARROW, values=(-2.0, -3.0, -4.0))
    assert place_words([[behind]]) == ["below"]
    assert place_words([[behind, CLEAR], [OPEN, CLEAR]]) == ["below", "highest, within the interval"]


def test_arms_are_paired_by_seed_not_by_place():
    def results(**rights):
        return tuple(
            Result("", int(seed[1:]), summarize([[right]], [[100]], [[0]]), {}) for seed, right in rights.items()
        )

    ours = Measured(DIETCL, Point(), results(s20=50, s21=60, s22=70))
    other = Measured(ER, Point(), results(s20=40, s22=65))  # one diverged
    contrast = paired(ours, other, final)
    assert contrast.label == "DietCL less ER balanced"
    assert contrast.values == pytest.approx((10, 5))
