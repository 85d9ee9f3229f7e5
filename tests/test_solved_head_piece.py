"""The head solved from labels and weighed guesses, against ridge regressions that are fitted again and again."""

import numpy as np
import pytest
import torch

from dietcl.methods.pieces import solved_head
from dietcl.methods.pieces.ridge import PENALTIES
from dietcl.methods.pieces.solved_head import WEIGHTS, SolvedHead

CLASSES, DIM = 3, 5


def draw(count, signal=1.0, seed=0):
    """Return features and labels of classes in turn, which are the easier to tell the more signal there is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    spread = torch.tensor([1.0, 3.0, 0.2, 1.0, 1.0], dtype=torch.float64)
    noise = torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    return (noise + signal * torch.eye(DIM, dtype=torch.float64)[labels]) * spread + 0.5, labels


def head_of(features, labels, *guesses, classes=CLASSES):
    """Return a solved head in double precision; guesses are features, labels and trust."""
    head = SolvedHead(features.shape[1])
    head.labeled.add(torch.arange(len(labels)), labels, features)
    if guesses:
        head.add_guesses(*guesses, classes)
    head.solve(classes)
    return head


def plain_ridge(x, y, weight, scale, penalty):
    """Return a function of features: weighted ridge on scaled features, with a constant that is not shrunk."""
    table = np.hstack([x / scale, np.ones((len(x), 1))])
    shrink = penalty * np.diag([1.0] * x.shape[1] + [0.0])
    found = np.linalg.solve((table.T * weight) @ table + shrink, (table.T * weight) @ y)
    return lambda features: np.hstack([features / scale, np.ones((len(features), 1))]) @ found


def plain_head(features, labels, guessed=None, guesses=None, trust=None, shares=WEIGHTS, penalties=PENALTIES):
    """Choose share and penalty by leaving out one label at a time; returns these and the fit of all."""
    x, y, weight = features.numpy(), np.eye(CLASSES)[labels], np.ones(len(labels))
    if guessed is not None:
        x, y = np.vstack([x, guessed.numpy()]), np.vstack([y, np.eye(CLASSES)[guesses]])
        weight = np.concatenate([weight, trust.numpy()])
    least, best = np.inf, None
    for share in shares if guessed is not None else [0.0]:
        of_share = np.where(np.arange(len(x)) < len(labels), 1.0, share) * weight
        mean = of_share @ x / of_share.sum()
        variances = of_share @ (x - mean) ** 2 / of_share.sum()
        scale = np.sqrt(variances + variances.mean())
        for penalty in penalties:
            error = 0.0
            for i in range(len(labels)):
                others = np.arange(len(x)) != i
                fit = plain_ridge(x[others], y[others], of_share[others], scale, penalty)
                error += ((y[i] - fit(x[i : i + 1])[0]) ** 2).sum()
            if error < least:
                least, best = error, (share, penalty, plain_ridge(x, y, of_share, scale, penalty))
    return best


QUERIES, _ = draw(20, seed=9)


# Labels alone.


@pytest.mark.parametrize("penalty", [1e-4, 0.1, 10.0, 1e4])
def test_without_guesses_it_is_ridge_regression(monkeypatch, penalty):
    monkeypatch.setattr(solved_head, "PENALTIES", (penalty,))
    features, labels = draw(14)
    *_, wanted = plain_head(features, labels, penalties=(penalty,))
    head = head_of(features, labels)
    np.testing.assert_allclose(head.scores(QUERIES, CLASSES), wanted(QUERIES.numpy()), atol=1e-8)
    assert head.guess_weight == 0


@pytest.mark.parametrize(("count", "signal"), [(14, 1.0), (30, 3.0), (9, 0.2), (4, 2.0)])  # also fewer than features
def test_the_penalty_is_the_one_that_predicts_each_label_best_from_all_others(count, signal):
    features, labels = draw(count, signal)
    _, penalty, wanted = plain_head(features, labels)
    np.testing.assert_allclose(head_of(features, labels).scores(QUERIES, CLASSES), wanted(QUERIES.numpy()), atol=1e-7)
    if count == 30:
        assert penalty not in (PENALTIES[0], PENALTIES[-1])


def test_the_unit_of_all_features_does_not_matter_nor_where_the_zero_of_one_is():
    features, labels = draw(30)
    guesses = (*draw(40, seed=2), torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    wanted = head_of(features, labels, *guesses).scores(QUERIES, CLASSES)
    scale, shift = 10.0, torch.tensor([0.0, 5, 0, 0, -3])
    other = head_of(features * scale + shift, labels, guesses[0] * scale + shift, *guesses[1:])
    torch.testing.assert_close(other.scores(QUERIES * scale + shift, CLASSES), wanted, rtol=1e-4, atol=1e-4)


def test_a_feature_that_never_changes_gets_no_weight():
    features, labels = draw(30)
    head = head_of(torch.cat([features, torch.full((30, 1), 4.0)], dim=1), labels)
    torch.testing.assert_close(head.weight[-1], torch.zeros(CLASSES, dtype=torch.float64), rtol=0, atol=1e-9)
    assert head.weight[:-1].abs().max() > 0.01


def test_features_that_one_label_each_has_do_not_outvote_one_that_tells_all_labels_apart():
    labels, truth = torch.arange(6) % 2, torch.arange(100) % 2
    rare = (torch.rand(100, 24, generator=torch.Generator().manual_seed(0)) < 0.3).double()

    def features(side, others):
        return torch.cat([2.0 * side[:, None] - 1, 0.1 * others], dim=1).double()

    each = torch.eye(6, dtype=torch.float64).repeat(1, 4)  # four of its own for every label
    head = head_of(features(labels, each), labels, classes=2)
    assert (head.scores(features(truth, rare), 2).argmax(1) == truth).all()


def test_the_order_of_labels_and_when_they_came_does_not_matter():
    features, labels = draw(15)
    whole, parts = head_of(features, labels), SolvedHead(DIM)
    for rows in (torch.arange(14, 6, -1), torch.arange(7)):
        parts.labeled.add(rows, labels[rows], features[rows])
        parts.solve(CLASSES)
    torch.testing.assert_close(parts.weight, whole.weight)
    torch.testing.assert_close(parts.bias, whole.bias)


def test_scores_of_a_label_of_every_class_sum_to_one():
    features, labels = draw(15)
    scores = head_of(features, labels, *draw(9, seed=3), torch.ones(9, dtype=torch.float64)).scores(QUERIES, CLASSES)
    torch.testing.assert_close(scores.sum(1), torch.ones(20, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_before_it_is_solved_all_classes_are_equal_and_later_ones_come_last():
    head = SolvedHead(DIM)
    assert head.scores(QUERIES[:2], 3).tolist() == [[0] * 3] * 2
    solved = head_of(*draw(9)).scores(QUERIES, 5)
    assert bool((solved[:, 3:] < solved[:, :3].amin(1, keepdim=True) - 9).all())


@pytest.mark.parametrize(
    ("labels", "guesses"),
    [
        ([0, 0], []),
        ([0, 1], []),
        ([1], [1, 2]),
        ([1], []),
        ([], []),
    ],
)
def test_few_labels_have_a_finite_solution(labels, guesses):
    features, _ = draw(len(labels) + len(guesses))
    known = features[: len(labels)], torch.tensor(labels, dtype=torch.int64)
    trust = torch.ones(len(guesses), dtype=torch.float64)
    more = (features[len(labels) :], torch.tensor(guesses), trust) if guesses else ()
    head = head_of(*known, *more)
    scores = head.scores(QUERIES, CLASSES)
    assert bool(scores.isfinite().all())
    if len(set(labels + guesses)) == 1:
        assert scores.argmax(1).tolist() == [labels[0]] * 20


# Guesses.


@pytest.mark.parametrize("share", [1 / 16, 1.0])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_with_guesses_it_is_weighted_ridge_regression(monkeypatch, share, penalty):
    monkeypatch.setattr(solved_head, "WEIGHTS", (share,))
    monkeypatch.setattr(solved_head, "PENALTIES", (penalty,))
    features, labels = draw(14)
    guessed, guesses = draw(25, seed=2)
    trust = torch.linspace(0.25, 1, 25, dtype=torch.float64)
    *_, wanted = plain_head(features, labels, guessed, guesses, trust, (share,), (penalty,))
    head = head_of(features, labels, guessed, guesses, trust)
    np.testing.assert_allclose(head.scores(QUERIES, CLASSES), wanted(QUERIES.numpy()), atol=1e-6)


def test_a_guess_of_full_weight_counts_like_a_label_and_one_of_double_weight_like_two(monkeypatch):
    monkeypatch.setattr(solved_head, "PENALTIES", (1.0,))
    features, labels = draw(12)
    guessed, guesses = draw(6, seed=2)
    for share in (1, 2):
        monkeypatch.setattr(solved_head, "WEIGHTS", (float(share),))
        head = head_of(features, labels, guessed, guesses, torch.ones(6, dtype=torch.float64))
        whole = head_of(torch.cat([features, *[guessed] * share]), torch.cat([labels, *[guesses] * share]))
        torch.testing.assert_close(head.weight, whole.weight, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(head.bias, whole.bias, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("right", [1.0, 0.6, 0.0])
def test_weight_and_penalty_are_those_that_predict_each_label_best_from_the_others_and_the_guesses(right):
    features, labels = draw(12)
    guessed, truth = draw(30, seed=2)
    generator = torch.Generator().manual_seed(4)
    guesses = torch.where(torch.rand(30, generator=generator) < right, truth, (truth + 1) % CLASSES)
    trust = 0.25 + 0.75 * torch.rand(30, generator=generator, dtype=torch.float64)
    share, _, wanted = plain_head(features, labels, guessed, guesses, trust)
    head = head_of(features, labels, guessed, guesses, trust)
    assert head.guess_weight == share
    np.testing.assert_allclose(head.scores(QUERIES, CLASSES), wanted(QUERIES.numpy()), atol=1e-6)


def test_right_guesses_are_used_and_help():
    features, labels = draw(9)
    test, truth = draw(300, seed=5)
    alone = head_of(features, labels)
    head = head_of(features, labels, *draw(200, seed=2), torch.ones(200, dtype=torch.float64))
    assert head.guess_weight == WEIGHTS[-1]
    right, before = ((h.scores(test, CLASSES).argmax(1) == truth).double().mean() for h in (head, alone))
    assert float(right) > float(before) + 0.05


def test_guesses_that_contradict_the_labels_are_refused():
    features, labels = draw(30, signal=3.0)
    guessed, truth = draw(200, signal=3.0, seed=2)
    alone = head_of(features, labels)
    head = head_of(features, labels, guessed, (truth + 1) % CLASSES, torch.ones(200, dtype=torch.float64))
    assert head.guess_weight == 0
    assert torch.equal(head.weight, alone.weight)
    assert torch.equal(head.bias, alone.bias)


def test_guesses_that_are_not_trusted_at_all_change_nothing():
    features, labels = draw(12)
    head = head_of(features, labels, *draw(20, seed=2), torch.zeros(20, dtype=torch.float64))
    assert torch.equal(head.weight, head_of(features, labels).weight)


def test_guesses_that_come_in_parts_and_with_new_classes_are_all_kept():
    features, labels = draw(12)
    guessed, guesses = draw(20, seed=2)
    order = guesses.argsort(stable=True)  # so that the last class comes last
    guessed, guesses, trust = guessed[order], guesses[order], torch.linspace(0.3, 1, 20, dtype=torch.float64)
    whole = head_of(features, labels, guessed, guesses, trust)
    parts = SolvedHead(DIM)
    parts.labeled.add(torch.arange(12), labels, features)
    parts.add_guesses(guessed[:9], guesses[:9], trust[:9], 2)
    parts.add_guesses(guessed[9:], guesses[9:], trust[9:], CLASSES)
    parts.solve(CLASSES)
    assert whole.guess_weight > 0
    torch.testing.assert_close(parts.weight, whole.weight)
    torch.testing.assert_close(parts.bias, whole.bias)


def test_classes_that_no_guess_has_yet_can_be_solved():
    features, labels = draw(12)
    guessed, guesses = draw(12, seed=2)
    first = guesses < 2
    head = head_of(features, labels, guessed[first], guesses[first], torch.ones(8, dtype=torch.float64), classes=3)
    other = SolvedHead(DIM)
    other.labeled.add(torch.arange(12), labels, features)
    other.add_guesses(guessed[first], guesses[first], torch.ones(8, dtype=torch.float64), 2)
    other.solve(3)
    assert torch.equal(other.weight, head.weight)


def test_features_far_from_zero_are_told_apart_as_well():
    features, labels = (part.float() if part.is_floating_point() else part for part in draw(12, signal=2.0))
    guessed, guesses = draw(300, signal=2.0, seed=2)
    trust = torch.ones(300, dtype=torch.float64)
    answers = [
        head_of(features + far, labels, guessed.float() + far, guesses, trust).scores(QUERIES + far, CLASSES)
        for far in (0, 300)
    ]
    torch.testing.assert_close(answers[1], answers[0], rtol=0, atol=0.02)


# State and cost.


def test_a_head_comes_back_from_its_state_and_goes_on():
    features, labels = draw(12)
    head, again = head_of(features, labels, *draw(20, seed=2), torch.ones(20, dtype=torch.float64)), SolvedHead(DIM)
    again.load_state({name: value.clone() for name, value in head.state().items()})
    assert torch.equal(again.scores(QUERIES, CLASSES), head.scores(QUERIES, CLASSES))
    more, names = draw(4, seed=6)
    for one in (head, again):
        one.labeled.add(torch.arange(100, 104), names, more)
        one.add_guesses(*draw(5, seed=7), torch.ones(5, dtype=torch.float64), CLASSES)
        one.solve(CLASSES)
    assert again.guess_weight == head.guess_weight > 0
    assert head.state().keys() == again.state().keys()
    assert all(torch.equal(again.state()[name], value) for name, value in head.state().items())


def test_the_solution_is_enough_to_answer():
    head, other = head_of(*draw(12)), SolvedHead(DIM)
    other.load_solution(head.solution())
    assert head.solution().keys() == {"weight", "bias"}
    assert torch.equal(other.scores(QUERIES, 4), head.scores(QUERIES, 4))


def test_the_cost_of_solving_by_hand():
    # Ten labels, three features, two classes, four weights of guesses and nine penalties: sums 2·10·3·(3 + 2) = 300;
    # for each weight 9·27 + 2·9·(10 + 2) = 459 and 2·9·10·3·(2 + 1) = 1,620; the solution 2·9·2 = 36.
    head = SolvedHead(3)
    assert head.flops(10, 2) == 300 + 4 * (459 + 1_620) + 36
    assert head.flops(11, 2) > head.flops(10, 2)
    assert head.flops(10, 3) > head.flops(10, 2)
