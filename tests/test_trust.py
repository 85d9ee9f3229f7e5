"""How far guesses can be trusted: by what is expected, by what labels told, and against chance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from dietcl.methods.pieces.trust import LATEST, Evidence, trust

CONFIDENCES = st.lists(st.floats(0.01, 0.99), min_size=1, max_size=30)


def evidence_of(confidence, right):
    evidence = Evidence()
    evidence.add(torch.as_tensor(confidence, dtype=torch.float64), torch.as_tensor(right))
    return evidence


def labels_guessed(count, right, least=0.3, seed=0):
    """Return confidences, and a share of them that was right, whatever the confidence."""
    generator = torch.Generator().manual_seed(seed)
    confidence = least + (1 - least) * torch.rand(count, generator=generator, dtype=torch.float64)
    return confidence, torch.rand(count, generator=generator) < right


def most_probable(evidence, confidence, expected):
    """Return the chances of the most probable slope and offset, found by a general optimizer."""
    odds, known = (values.clamp(1e-4, 1 - 1e-4).logit() for values in (confidence, evidence.confidence))
    offset = float(Evidence().chance_of_right(confidence, expected).logit()[0] - odds[0])
    found = torch.tensor([1.0, offset], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([found], max_iter=1000, tolerance_change=1e-15, line_search_fn="strong_wolfe")

    def surprise():
        optimizer.zero_grad()
        scores = found[0] * known + found[1]
        of_labels = binary_cross_entropy_with_logits(scores, evidence.right, reduction="sum")
        value = of_labels + (found[0] - 1) ** 2 / 2 / 0.25 + (found[1] - offset) ** 2 / 2 / 4
        value.backward()
        return value

    optimizer.step(surprise)
    assert float(found.grad.abs().max()) < 1e-4
    slope, shift = found.detach()
    return (slope * odds + shift).sigmoid()


# What is expected, and what labels tell.


@settings(max_examples=60, deadline=None)
@given(CONFIDENCES, st.floats(0.02, 0.98))
def test_without_evidence_the_mean_is_what_is_expected_and_the_order_that_of_confidence(confidence, expected):
    confidence = torch.tensor(confidence, dtype=torch.float64).sort().values
    chance = Evidence().chance_of_right(confidence, expected)
    assert float(chance.mean()) == pytest.approx(expected, abs=1e-6)
    assert bool((chance.diff() >= 0).all())


def test_what_is_expected_shifts_all_log_odds_alike():
    # Odds of 1 and 3 become 3 and 9: chances of 3/4 and 9/10, 0.825 on average.
    chance = Evidence().chance_of_right(torch.tensor([0.5, 0.75], dtype=torch.float64), 0.825)
    assert chance.tolist() == pytest.approx([0.75, 0.9], abs=1e-6)


@pytest.mark.parametrize(("expected", "bound"), [(0.0, 1e-4), (1.0, 1 - 1e-4)])
def test_what_is_expected_may_be_certain(expected, bound):
    chance = Evidence().chance_of_right(torch.tensor([0.3, 0.6, 0.9, 1.0, 0.0]), expected)
    assert bool(chance.isfinite().all())
    assert bool((chance[:3] <= bound).all()) if expected == 0 else bool((chance[:3] >= bound).all())


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
def test_with_much_evidence_chances_are_the_frequencies_among_equally_confident_guesses(scale):
    # Guesses with log-odds a are right with log-odds scale·a - 1: too confident, as guessers are.
    generator = torch.Generator().manual_seed(1)
    confidence = 0.3 + 0.69 * torch.rand(LATEST, generator=generator, dtype=torch.float64)
    true_chance = (scale * confidence.logit() - 1).sigmoid()
    evidence = evidence_of(confidence, torch.rand(LATEST, generator=generator) < true_chance)
    asked = torch.linspace(0.35, 0.98, 200, dtype=torch.float64)
    wanted = (scale * asked.logit() - 1).sigmoid()
    chance = evidence.chance_of_right(asked, float(wanted.mean()))
    for part in range(4):
        of_bin = slice(50 * part, 50 * part + 50)
        assert float(chance[of_bin].mean()) == pytest.approx(float(wanted[of_bin].mean()), abs=0.1)
    assert float(chance.mean()) == pytest.approx(float(wanted.mean()), abs=0.05)


def test_more_right_labels_raise_the_chance_and_more_wrong_ones_lower_it():
    asked = torch.tensor([0.6, 0.7, 0.8], dtype=torch.float64)
    means = [
        float(evidence_of([0.7] * 6, [True] * right + [False] * (6 - right)).chance_of_right(asked, 0.6).mean())
        for right in range(7)
    ]
    assert means == sorted(means)
    assert means[0] < 0.45 < 0.6 < means[6]
    unchanged = float(Evidence().chance_of_right(asked, 0.6).mean())
    assert means[3] < unchanged < means[5]


def test_evidence_outweighs_expectation_as_it_grows():
    asked, gaps = torch.linspace(0.5, 0.95, 20, dtype=torch.float64), []
    for count in (0, 4, 16, 64):
        evidence = evidence_of(asked.repeat(4)[:count], torch.arange(count) % 4 < 2)
        gaps.append(abs(float(evidence.chance_of_right(asked, 0.8).mean()) - 0.5))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] == pytest.approx(0.3, abs=1e-6)
    assert gaps[-1] < 0.05


@pytest.mark.parametrize(
    ("count", "right", "expected", "least"),
    [
        (0, 0.5, 0.7, 0.3),
        (3, 0.5, 0.6, 0.3),
        (24, 0.9, 0.8, 0.3),
        (100, 0.8, 0.7, 0.3),
        (256, 0.3, 0.3, 0.3),
        (256, 0.9, 0.9, 0.9),
        pytest.param(10, 0.1, 0.97, 0.6),
        pytest.param(30, 0.3, 0.9, 0.3),
        pytest.param(30, 0.5, 1.0, 0.9),
        pytest.param(100, 0.7, 0.97, 0.9),
        pytest.param(256, 0.3, 0.7, 0.6),
        pytest.param(256, 0.7, 0.3, 0.3),
    ],
)
def test_chances_are_those_of_the_most_probable_slope_and_offset(count, right, expected, least):
    evidence = evidence_of(*labels_guessed(count, right, least))
    asked, _ = labels_guessed(100, 1.0, least, seed=1)
    chance = evidence.chance_of_right(asked, expected)
    torch.testing.assert_close(chance, most_probable(evidence, asked, expected), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8, 0.5), *(pytest.param(count, e) for count in (50, 256) for e in (0.95, 0.99, 1.0))],
)
def test_where_every_label_was_guessed_wrong_no_guess_is_believed(count, expected):
    evidence = evidence_of([0.9] * count, [False] * count)
    chance = evidence.chance_of_right(torch.full((20,), 0.9, dtype=torch.float64), expected)
    assert float(chance.max()) < 0.5


# What is kept.


def test_only_the_latest_labels_count():
    evidence = evidence_of([0.9] * 100, [False] * 100)
    latest = labels_guessed(LATEST, 0.8)
    evidence.add(latest[0][:50], latest[1][:50])
    evidence.add(latest[0][50:], latest[1][50:])
    assert torch.equal(evidence.confidence, latest[0])
    assert torch.equal(evidence.right, latest[1].double())
    asked = torch.tensor([0.5, 0.8], dtype=torch.float64)
    assert torch.equal(evidence.chance_of_right(asked, 0.6), evidence_of(*latest).chance_of_right(asked, 0.6))


def test_evidence_comes_back_from_its_state():
    evidence, again = evidence_of(*labels_guessed(20, 0.7)), Evidence()
    again.load_state(evidence.state())
    more = labels_guessed(7, 0.2, seed=3)
    evidence.add(*more)
    assert len(again.right) == 20
    again.add(*more)
    assert {name: value.tolist() for name, value in again.state().items()} == {
        "evidence_confidence": evidence.confidence.tolist(),
        "evidence_right": evidence.right.tolist(),
    }


# Better than chance.


def test_trust_by_hand():
    assert trust(torch.tensor([1.0, 0.55, 0.1, 0.05, 0.0]), 10).tolist() == pytest.approx([1, 0.5, 0, 0, 0])
    assert trust(torch.tensor([0.75, 0.5]), 2).tolist() == pytest.approx([0.5, 0])
    assert trust(torch.tensor([1.0, 0.3, 0.0]), 1).tolist() == pytest.approx([1, 0.3, 0])  # luck is no explanation


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.integers(1, 1000))
def test_trust_is_a_share_that_grows_with_the_chance(chances, classes):
    trusted = trust(torch.tensor(chances, dtype=torch.float64).sort().values, classes)
    assert bool((trusted >= 0).all() and (trusted <= 1 + 1e-12).all())
    assert bool((trusted.diff() >= 0).all())


@given(st.floats(0, 1), st.integers(2, 1000))
def test_a_chance_is_trusted_more_among_more_classes(chance, classes):
    few, many = (float(trust(torch.tensor([chance], dtype=torch.float64), n)) for n in (classes, classes + 1))
    assert many >= few
    assert many <= chance + 1e-12
