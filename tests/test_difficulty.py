"""The difficulty of the built-in streams was settled before any method was compared on them."""

from dataclasses import replace

import numpy as np
import pytest

from dietcl.experiments.regime import RECIPES
from dietcl.experiments.ridge import PENALTIES, _ridge, ridge_accuracy
from dietcl.verbs.train import parse_run


@pytest.mark.parametrize("stream", ["glyphs", "glyphs-drift"])
def test_a_ridge_classifier_on_the_frozen_encoder_finds_it_neither_trivial_nor_hopeless(stream):
    config, _ = parse_run(["--stream", stream])
    assert 0.10 < ridge_accuracy(replace(config, recipe=RECIPES[stream])) < 0.60


def test_ridge_is_the_closed_form_at_the_penalty_that_leaving_one_out_prefers():
    generator = np.random.default_rng(0)
    x, x_test = generator.normal(size=(30, 8)), generator.normal(size=(5, 8))
    y = np.eye(3)[generator.integers(3, size=30)] + 0.2 * x[:, :3]
    table, test = (np.hstack([part, np.ones((len(part), 1))]) for part in (x, x_test))

    def solve(rows, targets, penalty):
        return np.linalg.solve(rows.T @ rows + penalty * np.eye(9), rows.T @ targets)

    def left_out(penalty):
        errors = []
        for i in range(30):
            others = np.arange(30) != i
            errors.append(((y[i] - table[i] @ solve(table[others], y[others], penalty)) ** 2).mean())
        return np.mean(errors)

    errors = [left_out(penalty) for penalty in PENALTIES]
    best = PENALTIES[int(np.argmin(errors))]
    assert best not in (PENALTIES[0], PENALTIES[-1])
    np.testing.assert_allclose(_ridge(x, y, x_test), test @ solve(table, y, best), atol=1e-9)
