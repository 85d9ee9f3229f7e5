"""Labels guessed from a few known ones, by hand, on clusters and on noise, and labels guessed from each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.methods.pieces import guessing
from dietcl.methods.pieces.guessing import FOLDS, Guesser, cross_fit, guess_flops, rank_in_class
from dietcl.methods.pieces.ridge import score_shares, solve

CHAIN = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def noise(count, dim=8, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def clusters(per_class=30, classes=2, dim=8, seed=0):
    """Return features of classes far from each other, in turn, and which class each is of."""
    truth = torch.arange(per_class * classes) % classes
    return 10 * noise(classes, dim, seed=100)[truth] + noise(len(truth), dim, seed), truth


def hide(truth, known):
    """Return the labels with all but the known ones unknown."""
    labels = torch.full_like(truth, -1)
    labels[known] = truth[known]
    return labels


def guesser_on(weights):
    """Return a guesser on a graph of its own; only its spreading can be asked for."""
    guesser = Guesser.__new__(Guesser)
    degree = weights.sum(1)
    guesser._rows, guesser._graph = torch.zeros(len(weights), 1), weights / (degree[:, None] * degree).sqrt()
    return guesser


# What is guessed.


@pytest.mark.parametrize("classes", [2, 5])
def test_one_label_of_each_of_some_clusters_tells_all_others(classes):
    features, truth = clusters(classes=classes)
    for shares in Guesser(features).shares(hide(truth, range(classes)), classes):
        assert torch.equal(shares.argmax(1), truth)


def test_labels_that_are_given_are_not_contradicted_though_classes_have_different_numbers_of_them():
    features, truth = clusters(classes=3)
    labels = hide(truth, [0, 3, 6, 9, 12, 15, 18, 1, 2, 5])
    for shares in Guesser(features).shares(labels, 3):
        assert torch.equal(shares.argmax(1), truth)


def test_permuted_images_have_permuted_guesses():
    features, truth = clusters(classes=3)
    features += 10 * noise(len(features), seed=1)  # so that guesses are not all sure
    labels = hide(truth, range(9))
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(2))
    pairs = zip(Guesser(features).shares(labels, 3), Guesser(features[order]).shares(labels[order], 3), strict=True)
    for shares, permuted in pairs:
        assert float(shares.max(1).values.min()) < 0.6
        torch.testing.assert_close(permuted, shares[order], rtol=1e-3, atol=1e-4)


def test_names_of_classes_do_not_matter():
    features, truth = clusters(classes=3)
    labels = hide(truth, range(9))
    renamed = torch.where(labels < 0, labels, torch.tensor([2, 0, 1])[labels])
    guesser = Guesser(features + 10 * noise(len(features), seed=1))
    for shares, other in zip(guesser.shares(labels, 3), guesser.shares(renamed, 3), strict=True):
        torch.testing.assert_close(other[:, [2, 0, 1]], shares, rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    count=st.integers(2, 40),
    dim=st.integers(1, 12),
    classes=st.integers(1, 4),
    data=st.data(),
)
def test_shares_are_not_negative_and_sum_to_one_where_a_label_reaches(seed, count, dim, classes, data):
    labels = torch.tensor(data.draw(st.lists(st.integers(-1, classes - 1), min_size=count, max_size=count)))
    labels[0] = classes - 1
    spread, fitted = Guesser(noise(count, dim, seed)).shares(labels, classes)
    for shares in (spread, fitted):
        assert shares.shape == (count, classes)
        assert bool((shares >= 0).all())
    torch.testing.assert_close(fitted.sum(1), torch.ones(count))
    reached = spread.sum(1) > 0
    assert bool(reached[labels >= 0].all())
    torch.testing.assert_close(spread.sum(1), reached.float())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_fewer_images_than_neighbors_are_enough(count):
    features = noise(count)
    (only, fitted) = Guesser(features).shares(hide(torch.zeros(count, dtype=torch.int64), [0]), 1)
    assert set(only.flatten().tolist()) <= {0.0, 1.0}
    assert torch.equal(fitted, torch.ones(count, 1))
    features[1:] += 100
    for shares in Guesser(features).shares(hide(torch.tensor([0] + [1] * (count - 1)), [0, count - 1]), 2):
        assert shares[[0, -1]].argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_images_that_cannot_be_told_apart_have_finite_shares(value):
    for shares in Guesser(torch.full((10, 4), value)).shares(hide(torch.arange(10) % 2, [0, 1]), 2):
        assert bool(shares.isfinite().all())


def test_a_feature_without_variance_tells_nothing():
    features, truth = clusters()
    labels = hide(truth, range(4))
    wider = torch.cat([features, torch.full((len(features), 1), 7.0)], dim=1)
    for shares in Guesser(wider).shares(labels, 2):
        assert torch.equal(shares.argmax(1), truth)


def test_images_that_are_alike_are_guessed_alike():
    features, truth = clusters(classes=3)
    features[75:] = features[:15]
    spread, fitted = Guesser(features).shares(hide(truth, range(15, 24)), 3)
    torch.testing.assert_close(fitted[75:], fitted[:15])
    assert torch.equal(spread[75:].argmax(1), spread[:15].argmax(1))


# Spreading.


def test_labels_at_both_ends_of_a_chain_spread_as_worked_out_by_hand(monkeypatch):
    # The limit is a multiple of the inverse of 1 - b A, A the chain and b² = 0.9²/2 = 0.405. Its first column is
    # (1 - b², b, b²) / (1 - 2 b²), so an end has 0.595 parts of its own label and 0.405 of the other one.
    monkeypatch.setattr(guessing, "SPREADINGS", 500)
    shares = guesser_on(CHAIN)._spread(torch.tensor([0, -1, 1]), 2)
    torch.testing.assert_close(shares, torch.tensor([[0.595, 0.405], [0.5, 0.5], [0.405, 0.595]]))


def test_spreading_twice_by_hand(monkeypatch):
    # From (1, 0, 0): once gives (0.1, 0.9/√2, 0), twice (0.1 + 0.81/2, 0.09/√2, 0.81/2); the other end alike.
    monkeypatch.setattr(guessing, "SPREADINGS", 2)
    shares = guesser_on(CHAIN)._spread(torch.tensor([0, -1, 1]), 2)
    end = torch.tensor([0.505, 0.405]) / 0.91
    torch.testing.assert_close(shares, torch.stack([end, torch.tensor([0.5, 0.5]), end.flip(0)]))


def test_a_class_with_more_labels_has_no_more_to_spread(monkeypatch):
    monkeypatch.setattr(guessing, "SPREADINGS", 1)
    star = torch.zeros(5, 5)
    star[4, :4] = star[:4, 4] = 1
    shares = guesser_on(star)._spread(torch.tensor([0, 0, 0, 1, -1]), 2)
    torch.testing.assert_close(shares[4], torch.tensor([0.5, 0.5]))


# The graph.


def graph_of(features):
    rows, variances = guessing._principal(features)
    return guessing._neighbor_graph(rows, variances).to_dense()


def test_principal_directions_are_uncorrelated_and_hold_all_variance():
    features = noise(50, 6) @ noise(6, 6, seed=1) + 5
    rows, variances = guessing._principal(features)
    np.testing.assert_allclose(rows.T @ rows / 50, variances.diag(), atol=1e-4)
    assert variances.tolist() == sorted(variances.tolist(), reverse=True)
    assert float(variances.sum()) == pytest.approx(6, rel=1e-4)  # each standardized feature has one
    for other in (features * torch.tensor([10.0, 1, 1, 0.1, 1, 1]), features + 3):
        torch.testing.assert_close(guessing._principal(other)[1], variances, rtol=1e-3, atol=1e-4)


def test_only_the_foremost_directions_are_kept(monkeypatch):
    features = noise(50, 6) @ noise(6, 6, seed=1)
    rows, variances = guessing._principal(features)
    monkeypatch.setattr(guessing, "DIMENSIONS", 2)
    few, foremost = guessing._principal(features)
    assert torch.equal(few, rows[:, :2])
    assert torch.equal(foremost, variances[:2])


@pytest.mark.parametrize("neighbors", [3, 20, 100])
def test_the_graph_equals_brute_force(monkeypatch, neighbors):
    monkeypatch.setattr(guessing, "NEIGHBORS", neighbors)
    features = noise(40)
    rows, variances = (part.double().numpy() for part in guessing._principal(features))
    points = rows / np.sqrt(variances + variances.mean())
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    near = np.zeros((40, 40))
    for i in range(40):
        cosines = points @ points[i]
        others = [j for j in np.argsort(-cosines) if j != i][:neighbors]
        near[i, others] = np.maximum(cosines[others], 0) ** 3
    near = (near + near.T) / 2
    degree = near.sum(1)
    wanted = near / np.sqrt(np.outer(degree, degree))
    np.testing.assert_allclose(graph_of(features), wanted, atol=1e-5)


def test_the_graph_is_symmetric_normalized_and_without_loops():
    graph = graph_of(noise(60)).double()
    assert torch.equal(graph, graph.T)
    assert not graph.diagonal().any()
    assert bool((graph >= 0).all())
    values, vectors = torch.linalg.eigh(graph)
    assert float(values[-1]) == pytest.approx(1, abs=1e-5)
    assert float(values[0]) > -1
    assert (vectors[:, -1] > 0).all() or (vectors[:, -1] < 0).all()  # roots of the degrees


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_how_many_images_are_compared_at_a_time_does_not_matter(monkeypatch, chunk):
    whole = graph_of(noise(60))
    monkeypatch.setattr(guessing, "_CHUNK", chunk)
    torch.testing.assert_close(graph_of(noise(60)), whole)


# The classifier that learns from the more confident half of its own guesses.


def test_ranks_in_a_class_by_hand():
    labels, scores = torch.tensor([0, 1, 0, -1, 1, 0]), torch.tensor([0.1, 0.5, 0.9, 0.3, 0.7, 0.9])
    assert rank_in_class(labels, scores).tolist() == [2, 1, 0, 0, 0, 1]


def test_the_more_confident_half_by_hand():
    guesses = torch.tensor([0, -1, 0, 1, 0, 1, -1, 3])
    confidence = torch.tensor([0.2, 0.9, 0.8, 0.5, 0.4, 0.6, 0.9, 0.1])
    # Two of three, one of two, one of one; -1 is no guess, however confident.
    assert guessing._confident_half(guesses, confidence, 4).nonzero()[:, 0].tolist() == [2, 4, 5, 7]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.floats(0, 1, width=32)), max_size=40))
def test_half_of_every_class_is_confident_and_none_that_is_left_out_is_more_so(pairs):
    guesses = torch.tensor([guess for guess, _ in pairs], dtype=torch.int64)
    confidence = torch.tensor([value for _, value in pairs], dtype=torch.float32)
    chosen = guessing._confident_half(guesses, confidence, 4)
    assert not chosen[guesses < 0].any()
    for number in range(4):
        own = guesses == number
        assert int(chosen[own].sum()) == (int(own.sum()) + 1) // 2
        if int(own.sum()) > 1:
            assert confidence[own & chosen].min() >= confidence[own & ~chosen].max()


def test_the_classifier_is_fitted_to_the_labels_and_again_to_the_more_confident_half_of_its_guesses(monkeypatch):
    monkeypatch.setattr(guessing, "FITS", 0)
    features, truth = clusters(classes=3)
    labels = hide(truth, range(12))
    labels[0] = 1  # is wrong, and stays
    guesser = Guesser(features)
    alone = solve(guesser._rows[:12], labels[:12], 3, scale="none")
    wanted = score_shares(guesser._rows @ alone.weight + alone.bias)
    torch.testing.assert_close(guesser._fit(labels, 3), wanted)
    confidence, best = wanted.max(1)
    assert best[0] == 0
    used, guesses = labels >= 0, torch.where(labels >= 0, labels, best)
    for number in range(3):
        own = [i for i in range(12, 90) if best[i] == number]
        used[sorted(own, key=lambda i: -float(confidence[i]))[: (len(own) + 1) // 2]] = True
    both = solve(guesser._rows[used], guesses[used], 3, scale="none")
    monkeypatch.setattr(guessing, "FITS", 1)
    again = guesser._fit(labels, 3)
    torch.testing.assert_close(again, score_shares(guesser._rows @ both.weight + both.bias))
    assert float((again - wanted).abs().max()) > 0.01


# Labels guessed from the others.


def test_every_label_of_a_class_with_another_one_is_tested_once():
    truth = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, -1, -1, 4])
    tested = truth >= 0
    tested[11] = False  # is known, but not tested; the other one of its class is
    shares, positions = cross_fit(Guesser(noise(15)), truth, tested, 5)
    assert sorted(positions.tolist()) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert shares.shape == (10, 5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=2, max_size=30), st.data())
def test_who_is_tested_depends_on_the_numbers_of_labels_alone(labels, data):
    labels = torch.tensor(labels)
    tested = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(labels), max_size=len(labels))))
    tested &= labels >= 0
    _, positions = cross_fit(Guesser(noise(len(labels), 3)), labels, tested, 5)
    counts = torch.bincount(labels[labels >= 0], minlength=5)
    wanted = [i for i in tested.nonzero()[:, 0].tolist() if counts[labels[i]] > 1]
    assert sorted(positions.tolist()) == wanted


@pytest.mark.parametrize("labels", [[-1, -1], [0, 1], [0, -1]])
def test_where_nothing_can_be_tested_nothing_is(labels):
    labels = torch.tensor(labels)
    shares, positions = cross_fit(Guesser(noise(2)), labels, labels >= 0, 2)
    assert (shares.shape, positions.shape) == ((0, 2), (0,))


@pytest.mark.parametrize("order", ["in turn", "one after the other"])
def test_a_class_is_spread_over_the_folds(monkeypatch, order):
    truth = torch.arange(FOLDS * FOLDS) % FOLDS
    truth = truth if order == "in turn" else truth.sort().values
    guesser, held = Guesser(noise(len(truth))), []

    def shares(labels, classes):
        held.append(sorted(truth[labels < 0].tolist()))
        return (torch.zeros(len(labels), classes),) * 2

    monkeypatch.setattr(guesser, "shares", shares)
    cross_fit(guesser, truth, torch.ones(len(truth), dtype=torch.bool), FOLDS)
    assert held == [list(range(FOLDS))] * FOLDS


def test_a_tested_label_plays_no_part_in_its_own_guess():
    features, truth = clusters(classes=3)
    features += 10 * noise(len(features), seed=1)
    labels, tested = hide(truth, range(30)), torch.zeros(90, dtype=torch.bool)
    tested[7] = True
    guesser = Guesser(features)
    found = []
    for label in range(3):
        labels[7] = label
        shares, positions = cross_fit(guesser, labels, tested, 3)
        assert positions.tolist() == [7]
        found.append(shares)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    labels[7] = -1
    spread, fitted = guesser.shares(labels, 3)
    assert torch.equal(found[0][0], (spread + fitted)[7] / 2)


def test_labels_of_separate_clusters_are_all_guessed_right_from_the_others():
    features, truth = clusters(per_class=10, classes=4)
    labels = hide(truth, range(20))
    shares, positions = cross_fit(Guesser(features), labels, labels >= 0, 4)
    assert sorted(positions.tolist()) == list(range(20))
    assert torch.equal(shares.argmax(1), truth[positions])


def test_labels_that_mean_nothing_are_guessed_right_as_often_as_by_chance():
    labels = torch.randint(0, 4, (400,), generator=torch.Generator().manual_seed(3))
    labels[200:] = -1
    shares, positions = cross_fit(Guesser(noise(400, 16)), labels, labels >= 0, 4)
    assert len(positions) == 200
    assert float((shares.argmax(1) == labels[positions]).double().mean()) == pytest.approx(0.25, abs=0.1)


# What it costs.


def test_the_cost_of_guessing_by_hand():
    # Ten images, three features, two classes. Projected: 2·10·3·(3 + 3) + 9·27 = 603. Compared: 2·100·3 = 600.
    # Six times: spread 4·20·10·20·2 = 32,000, and four fits of 3,904 (test_pieces.py) + 2·10·3·2 = 4,024 each.
    assert guess_flops(10, 3, 2) == 603 + 600 + 6 * (32_000 + 4 * 4_024)


@given(st.integers(1, 20_000), st.integers(1, 2000), st.integers(1, 1000), st.integers(1, 50))
def test_more_of_anything_costs_more(images, features, classes, more):
    cost = guess_flops(images, features, classes)
    assert cost > 0
    assert guess_flops(images + more, features, classes) > cost
    assert guess_flops(images, features + more, classes) > cost
    assert guess_flops(images, features, classes + more) > cost


def test_many_images_cost_their_comparisons():
    assert guess_flops(2_000_000, 96, 2) / guess_flops(1_000_000, 96, 2) == pytest.approx(4, rel=1e-2)
