"""The pieces that methods share, against brute force and by hand."""

import numpy as np
import pytest
import torch

from dietcl.methods.pieces import ridge
from dietcl.methods.pieces.barlow import barlow_twins
from dietcl.methods.pieces.store import Store, vote


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stored(values, labels):
    store = Store()
    store.add(torch.arange(len(labels)), torch.tensor(labels), values)
    return store


# Ridge regression, penalty chosen by leaving one out.


def spread_of(x, scale):
    """What features are divided by."""
    return x.std(0) + 1e-6 if scale == "each" else np.sqrt(x.var(0) + x.var(0).mean())


@pytest.mark.parametrize("scale", ["each", "half"])
def test_ridge_is_the_closed_form_at_the_penalty_that_leaving_one_out_prefers(scale):
    x, labels = random(30, 8).numpy(), torch.arange(30) % 3
    y = np.eye(3)[labels]
    x += 0.7 * np.eye(8)[labels]
    table = np.hstack([(x - x.mean(0)) / spread_of(x, scale), np.ones((30, 1))])

    def solve(rows, targets, penalty):
        return np.linalg.solve(rows.T @ rows + penalty * np.eye(9), rows.T @ targets)

    def left_out(penalty):
        errors = []
        for i in range(30):
            others = np.arange(30) != i
            errors.append(((y[i] - table[i] @ solve(table[others], y[others], penalty)) ** 2).mean())
        return np.mean(errors)

    best = min(ridge.PENALTIES, key=left_out)
    assert best not in (ridge.PENALTIES[0], ridge.PENALTIES[-1])
    solution = ridge.solve(torch.from_numpy(x), labels, 3, scale)
    assert solution.penalty == best
    scores = x @ solution.weight.numpy() + solution.bias.numpy()
    np.testing.assert_allclose(scores, table @ solve(table, y, best), atol=1e-9)


def test_without_a_penalty_ridge_is_least_squares(monkeypatch):
    monkeypatch.setattr(ridge, "PENALTIES", (1e-10,))
    x, labels = random(40, 6), torch.arange(40) % 4
    table = np.hstack([x, np.ones((40, 1))])
    wanted, *_ = np.linalg.lstsq(table, np.eye(4)[labels], rcond=None)
    solution = ridge.solve(x, labels, 4, "each")
    # A spread that cannot be zero shifts the standard by a millionth, which least squares does not feel.
    np.testing.assert_allclose(torch.cat([solution.weight, solution.bias[None]]), wanted, atol=1e-8)


@pytest.mark.parametrize("labels", [[1], [1, 1], [0, 2]])
def test_few_labels_and_equal_features_have_a_finite_solution(labels):
    features = torch.full((len(labels), 4), 0.3)
    solution = ridge.solve(features, torch.tensor(labels), 3, "half")
    scores = features @ solution.weight + solution.bias
    assert solution.weight.isfinite().all()
    assert scores.isfinite().all()
    assert int(scores[0].argmax()) in labels


def test_the_cost_of_solving_by_hand():
    # Ten images, three features and a constant, two classes: 6·10·16 + 20·64 = 2,240 and 2·4·2·(10·10 + 4) = 1,664.
    assert ridge.solve_flops(10, 3, 2) == 2240 + 1664
    # 9·27 = 243; rotations 2·9·(2 + 4) = 108; scores of 17 penalties 2·4·3·2·17 = 816.
    assert ridge.choose_flops(3, 4, 2) == 243 + 108 + 816
    assert ridge.shrink_flops(3, 2) == 9 + 36
    # Six features: of four rows the 4 × 4 products, of eight rows the 6 × 6 products.
    assert ridge.fit_flops(4, 6, False, 0, 2) == 2 * 4 * 6 * (4 + 2) + ridge.shrink_flops(4, 2)
    assert ridge.fit_flops(8, 6, False, 0, 2) == 2 * 8 * 6 * (6 + 2) + ridge.shrink_flops(6, 2)
    chosen = ridge.fit_flops(4, 6, False, 1, 2) - ridge.fit_flops(4, 6, False, 0, 2)
    assert chosen == pytest.approx(ridge.choose_flops(3, 1, 2))
    chosen = ridge.fit_flops(4, 6, True, 1, 2) - ridge.fit_flops(4, 6, True, 0, 2)
    assert chosen == pytest.approx(ridge.choose_flops(6, 1, 2))


def test_classes_that_a_solution_does_not_know_come_last_and_are_finite():
    scores = ridge.pad_scores(torch.tensor([[1.0, -50.0], [0.2, 0.1]]), 4)
    assert scores.tolist() == [[1, -50, -60, -60], pytest.approx([0.2, 0.1, -9.9, -9.9])]
    assert ridge.pad_scores(torch.zeros(2, 0), 3).tolist() == [[0, 0, 0]] * 2
    known = torch.ones(2, 3)
    assert torch.equal(ridge.pad_scores(known, 3), known)


# Ridge regression on rows that keep coming, penalty chosen on rows held out.


def plain_ridge(rows, targets, penalty):
    rows, targets = np.asarray(rows), np.asarray(targets)
    return np.linalg.solve(rows.T @ rows + penalty * np.eye(rows.shape[1]), rows.T @ targets)


def problem(count, features=7, classes=3):
    labels = torch.arange(count) % classes
    rows = random(count, features)
    rows[:, :classes] += 2 * torch.eye(classes, dtype=rows.dtype)[labels]
    return rows, torch.eye(classes, dtype=rows.dtype)[labels]


@pytest.mark.parametrize(("count", "features"), [(9, 20), (30, 7)])
def test_the_penalty_is_the_one_that_predicts_what_is_held_out(count, features):
    rows, targets = problem(count + 3, features)

    def error(penalty):
        wanted = plain_ridge(rows[:count], targets[:count], penalty)
        return float(((rows[count:].numpy() @ wanted - targets[count:].numpy()) ** 2).mean())

    best = min(ridge.WIDE_PENALTIES, key=error)
    assert 1e-3 < best < 1e8
    found = ridge.fit(rows, targets, None, None, 3, 0.0)
    assert found.penalty == best
    np.testing.assert_allclose(found.weight, plain_ridge(rows, targets, best), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("penalty", [1e-3, 1.0, 100.0])
def test_a_weight_of_every_row_and_one_of_every_feature_are_the_same_solution(penalty):
    rows, targets = problem(5)
    nothing = ridge.Sums(rows.new_zeros(7, 7), rows.new_zeros(7, 0))
    by_row, by_feature = (ridge.fit(rows, targets, past, penalty, 1, 0.0) for past in (None, nothing))
    assert by_row.sums is None
    assert by_feature.sums is not None
    torch.testing.assert_close(by_row.weight, by_feature.weight, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(by_row.weight, plain_ridge(rows, targets, penalty), rtol=1e-6, atol=1e-9)


def test_sums_that_grow_are_the_sums_of_all_also_when_classes_are_added():
    rows, targets = problem(20)
    sums = ridge.fit(rows[:8], targets[:8, :2], None, 1.0, 2, 0.0).sums
    sums = ridge.fit(rows[8:9], targets[8:9], sums, 1.0, 0, 0.0).sums
    found = ridge.fit(rows[9:], targets[9:], sums, 1.0, 3, 0.0)
    known = torch.cat([torch.nn.functional.pad(targets[:8, :2], (0, 1)), targets[8:]])
    np.testing.assert_allclose(found.sums.gram, sum(np.outer(row, row) for row in rows.numpy()), rtol=1e-9)
    np.testing.assert_allclose(found.sums.cross, rows.T @ known, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.weight, plain_ridge(rows, known, 1.0), rtol=1e-7)


def test_a_penalty_that_rounding_drowns_is_raised():
    rows = torch.ones(9, 4, dtype=torch.float64) / 3  # without a penalty there is no solution
    targets = torch.ones(9, 1, dtype=torch.float64)
    found = ridge.fit(rows, targets, None, 1e-300, 0, 1e-12)
    np.testing.assert_allclose(rows @ found.weight, targets, rtol=1e-6)


# Votes of neighbors.


def brute_vote(query, values, labels, count, classes):
    """Return the winner for every query: most votes, and among equals the one with the nearer voter."""
    winners = []
    for q in query.numpy():
        cosines = [q @ v / np.linalg.norm(q) / np.linalg.norm(v) for v in values.numpy()]
        nearest = [labels[i] for i in np.argsort(cosines)[::-1][:count]]
        votes = [nearest.count(c) for c in range(classes)]
        winners.append(next(label for label in nearest if votes[label] == max(votes)))
    return winners


@pytest.mark.parametrize("count", [1, 2, 4, 5, 100])
@pytest.mark.parametrize("chunk", [3, 65_536])
def test_votes_equal_brute_force_also_in_chunks(monkeypatch, count, chunk):
    monkeypatch.setattr("dietcl.methods.pieces.store.CHUNK", chunk)
    query, values = random(40, 5), random(17, 5, seed=1)
    labels = [i * i % 4 for i in range(17)]
    scores = vote(query, stored(values, labels), count, 6)
    assert scores.argmax(1).tolist() == brute_vote(query, values, labels, count, 6)
    assert scores.isfinite().all()
    np.testing.assert_allclose(scores.exp().sum(1), 1)
    assert (scores[:, 4:] == scores[:, 4:].amax(1, keepdim=True)).all()
    assert (scores[:, 5] <= scores.amin(1)).all()


def test_one_neighbor_recalls_what_is_stored():
    values, labels = random(50, 6), [i % 7 for i in range(50)]
    assert vote(values, stored(values, labels), 1, 7).argmax(1).tolist() == labels


def test_shares_of_the_vote_by_hand():
    store = stored(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), [1, 0, 1])
    scores = vote(torch.tensor([[1.0, 0.0]]), store, 2, 2).exp()
    # One vote each and half a vote each beforehand; the nearer one has a little more.
    assert scores[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-3)
    assert scores[0, 1] > scores[0, 0]


def test_with_nothing_stored_all_classes_are_equal():
    assert vote(torch.ones(2, 3), Store(), 2, 4).exp().tolist() == [[0.25] * 4] * 2


# The store.


def test_a_store_finds_rows_in_any_order():
    store = Store()
    assert store.find(torch.tensor([3, 4])).tolist() == [-1, -1]
    store.add(torch.tensor([30, 10]), torch.tensor([0, 1]), torch.tensor([[3.0], [1.0]]))
    store.add(torch.tensor([20]), torch.tensor([1]), torch.tensor([[2.0]]))
    assert len(store) == 3
    assert store.find(torch.tensor([10, 20, 25, 30, 99, 1])).tolist() == [1, 2, -1, 0, -1, -1]
    assert store.labels.tolist() == [0, 1, 1]


def test_wider_values_make_the_earlier_ones_end_in_nan():
    store = Store()
    store.add(torch.tensor([1]), torch.tensor([0]), torch.tensor([[5.0]]))
    store.add(torch.tensor([2]), torch.tensor([1]), torch.tensor([[6.0, 7.0]]))
    store.add(torch.tensor([3]), torch.tensor([1]), torch.tensor([[8.0]]))
    assert store.values.nan_to_num(-1).tolist() == [[5, -1], [6, 7], [8, -1]]


def test_a_store_comes_back_from_its_state():
    store, again = stored(random(4, 3), [0, 1, 1, 2]), Store()
    again.load_state(store.state())
    again.add(torch.tensor([9]), torch.tensor([0]), random(1, 3, seed=1))
    assert len(store) == 4
    assert again.rows.tolist() == [0, 1, 2, 3, 9]
    assert torch.equal(again.values[:4], store.values)
    again.clear()
    assert len(again) == 0


# Barlow Twins.


def test_barlow_twins_by_hand():
    # Far apart, so that what keeps the variance from zero does not show.
    independent = 1000 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(barlow_twins(independent, independent, 5e-3, 0.1)) == pytest.approx(0, abs=1e-9)
    same = 1000 * torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert float(barlow_twins(same, same, 5e-3, 0.1)) == pytest.approx(0.001, rel=1e-4)
    # Opposite views: every entry is −1, so the diagonal costs 2² twice.
    assert float(barlow_twins(same, -same, 5e-3, 0.1)) == pytest.approx(0.1 * (8 + 5e-3 * 2), rel=1e-4)


def test_a_single_image_has_no_barlow_twins_loss_and_no_gradient():
    one = torch.tensor([[1.0, 2.0]], requires_grad=True)
    loss = barlow_twins(one, 2 * one, 5e-3, 0.1)
    loss.backward()
    assert loss.item() == 0
    assert one.grad.tolist() == [[0, 0]]
