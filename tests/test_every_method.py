"""What every method must do whatever it is: keep to its budget, grow, answer, and come back from a checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.engine.loop import learn
from dietcl.methods import METHODS, describe
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Recipe
from helpers.recording import equal, hand_over, run_through, updates_of, weights
from helpers.tiny import AMPLE, tiny_config, tiny_learner

BUDGETS = st.one_of(
    st.floats(0.01, 5).map(lambda updates: f"{updates:.3f}"),
    st.floats(1e6, 2e9).map(lambda flops: f"{flops:.3e}flops"),
    st.floats(0.001, 0.1).map(lambda seconds: f"{seconds:.4f}s"),
)
RECIPES = st.builds(
    Recipe,
    recipe=st.sampled_from(["class", "time", "data"]),
    time_steps=st.integers(1, 4),
    label_rate=st.floats(0.03, 1),
)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(budget=BUDGETS, recipe=RECIPES, accounting=st.sampled_from(["images", "flops"]), seed=st.integers(0, 99))
def test_no_stream_and_no_budget_makes_a_method_overdraw(blobs, method, budget, recipe, accounting, seed):
    config = replace(tiny_config(blobs, method, budget=budget, seed=seed), recipe=recipe, accounting=accounting)
    learner = run_through(tiny_learner(config))
    for receipt in learner.ledger.closed:
        if not budget.endswith("s") or budget.endswith("flops"):  # an update that began in time is finished
            assert receipt.spent <= receipt.budget * (1 + 1e-9)
            assert receipt.spent + receipt.unused == pytest.approx(receipt.budget)
            assert receipt.spent == pytest.approx(sum(item.passes for item in receipt.items))
        assert all(item.passes == 0 for item in receipt.items if item.purpose == "evaluation")
    assert all(bool(value.isfinite().all()) for value in weights(learner).values())
    assert learner.net.classes == len(learner.stream.classes)


@pytest.fixture(scope="module", params=METHODS)
def learned(request, blobs):
    """A learner that has learned the whole stream, and its answers on five images after every time step."""
    learner = tiny_learner(tiny_config(blobs, request.param, budget="3"))
    images = normalize(learner.loader.read(learner.stream.tests[0].rows[:5]))
    answers = []
    for t in learn(learner):
        with learner.ledger.free(), torch.no_grad():
            answers.append((t, learner.net.classes, learner.method.predict(learner.net, images)))
    return learner, answers


def test_every_method_answers_for_all_classes_revealed_so_far(learned):
    learner, answers = learned
    assert answers
    for t, classes, scores in answers:
        seen = learner.stream.step(t).seen_classes
        assert classes == seen
        assert scores.shape == (5, seen)
        assert bool(scores.isfinite().all())


def test_an_image_is_judged_for_itself(learned):
    # Who else is in the batch must not matter, or accuracy would depend on how it is measured.
    learner, _ = learned
    images = normalize(learner.loader.read(np.concatenate([test.rows for test in learner.stream.tests])))
    with learner.ledger.free(), torch.no_grad():
        together = learner.method.predict(learner.net, images)
        alone = torch.cat([learner.method.predict(learner.net, image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_budget_can_be_so_ample_that_every_loss_of_a_method_occurs(blobs, method):
    # The contract is tested at these budgets; losses that never occur there would go untested.
    golden = json.loads((Path(__file__).parent / f"golden/{method}.json").read_text())
    terms = {term for update in golden["updates"] for term in update["loss"]}
    learner = tiny_learner(tiny_config(blobs, method, budget=AMPLE.get(method, "3")))
    found = {term for event in updates_of(learner) for term in event["loss"]}
    assert found >= terms
    rare = {"ccic": {"cross", "memory"}, "cassle": {"distill"}, "dualnet": {"labeled", "memory", "soft targets"}}
    assert found >= rare.get(method, set())


def test_answering_changes_nothing(learned):
    learner, _ = learned

    def everything():
        modules = {f"{n}.{k}": v for n, m in learner.method.modules().items() for k, v in m.state_dict().items()}
        return {k: v.clone().nan_to_num(-7) for k, v in (weights(learner) | learner.method.state() | modules).items()}

    before = everything()
    for test in learner.stream.tests:
        learner.evaluator.predict(learner.method, learner.net, test)
    assert equal(before, everything())


def test_every_state_is_made_of_named_tensors_that_can_be_taken_back(learned):
    learner, _ = learned
    other = tiny_learner(learner.config)
    other.method.load_state(learner.method.state())
    state, again = learner.method.state(), other.method.state()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[name].nan_to_num(-7), again[name].nan_to_num(-7)) for name in state)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ewc", {"online": True, "decay": 0.5}),
        ("linear_probe", {"head": "sgd"}),
        ("ranpac", {"random_features": 5}),
        ("ranpac", {"random_features": 12}),
    ],
)
def test_options_that_change_what_is_kept_go_on_from_a_checkpoint(blobs, tmp_path, method, options):
    # By default every method does: test_resume.py.
    config = tiny_config(blobs, method, budget="2", **options)
    whole, stopped, resumed = (tiny_learner(config) for _ in range(3))
    run_through(whole)
    run = learn(stopped)
    next(run), next(run)
    hand_over(stopped, resumed, tmp_path / "checkpoint")
    assert equal(resumed.method.state(), stopped.method.state())
    assert list(learn(resumed)) == [3]
    assert equal(weights(resumed), weights(whole))
    assert equal(resumed.method.state(), whole.method.state())
    assert (resumed.counts.loss_sum == whole.counts.loss_sum).all()
    assert resumed.ledger.receipts() == whole.ledger.receipts()


def test_the_registry_describes_every_method_in_one_sentence():
    for entry in describe():
        assert entry.description.endswith(".")
        assert entry.keeps
        assert entry.cost
