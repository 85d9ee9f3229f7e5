"""The difficulty of the built-in streams was settled before any method was compared on them."""

import pytest

from dietcl import build_config, solved_head_accuracy
from reproduction.difficulty import RECIPES


@pytest.mark.parametrize(("stream", "accuracy"), [("glyphs", 0.179), ("glyphs-drift", 0.371)])
def test_a_ridge_classifier_on_the_frozen_encoder_finds_it_neither_trivial_nor_hopeless(stream, accuracy):
    found = solved_head_accuracy(build_config(stream, **RECIPES[stream]))
    assert 0.10 < found < 0.60
    assert found == pytest.approx(accuracy, abs=0.005)  # other machines round differently
