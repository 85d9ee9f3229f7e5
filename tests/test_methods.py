"""Every loss and its gradient against a plain implementation; every part of a method on and off."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.engine.phases import backward
from dietcl.errors import UserError
from dietcl.methods import METHODS, describe, method_class, method_config
from dietcl.methods.base import Phase
from dietcl.methods.dietcl import DietCL
from dietcl.methods.er import ER
from dietcl.streams.augment import make_batch
from dietcl.streams.batch import Part
from dietcl.streams.sampler import Mix, pools_of, sample
from helpers.fixed_batch import CURRENT, KEY, compare, fixed_batch, fixed_learner
from helpers.reference_losses import plain_cross_entropy, plain_logits, plain_reconstruction
from helpers.tiny import tiny_config, tiny_learner


@pytest.fixture
def learner_of(blobs):
    return partial(fixed_learner, blobs)


def masked(batch, only=CURRENT):
    return lambda weights: plain_cross_entropy(plain_logits(batch.labeled.images, weights), batch.labeled, only)


def memory(batch):
    return lambda weights: plain_cross_entropy(plain_logits(batch.memory.images, weights), batch.memory)


def reconstruct(batch):
    return lambda weights: plain_reconstruction(batch.unlabeled.images, weights, KEY)


def one_mean(batch):
    def loss(weights):
        parts = [p for p in (batch.labeled, batch.memory) if p is not None]
        sums = [plain_cross_entropy(plain_logits(p.images, weights), p) * len(p) for p in parts]
        return sum(sums) / sum(len(p) for p in parts)

    return loss


def test_dietcl_equals_the_plain_implementation(learner_of):
    batch = fixed_batch()
    expected = {
        "masked": (1.0, masked(batch)),
        "memory": (1.0, memory(batch)),
        "reconstruct": (50.0, reconstruct(batch)),
    }
    compare(learner_of("dietcl"), batch, expected)


def test_each_term_of_dietcl_alone_equals_the_plain_implementation(learner_of):
    batch = fixed_batch(memory=None, unlabeled=None)
    compare(learner_of("dietcl"), batch, {"masked": (1.0, masked(batch))})
    batch = fixed_batch(labeled=None, unlabeled=None)
    compare(learner_of("dietcl"), batch, {"memory": (1.0, memory(batch))}, phase="balance")
    batch = fixed_batch(labeled=None, memory=None)
    compare(learner_of("dietcl", alpha=3.0), batch, {"reconstruct": (3.0, reconstruct(batch))})


def test_without_the_mask_the_current_loss_is_plain_cross_entropy(learner_of):
    batch = fixed_batch(memory=None, unlabeled=None)
    compare(learner_of("dietcl", mask_classes=False), batch, {"masked": (1.0, masked(batch, only=None))})


def test_the_mask_leaves_other_classes_alone(learner_of):
    learner = learner_of("dietcl")
    compare(learner, batch := fixed_batch(memory=None, unlabeled=None), {"masked": (1.0, masked(batch))})
    moved = learner.network.head.weight.grad.abs().sum(1) > 0
    assert moved.tolist() == [False, True, False, True, True]


@pytest.mark.parametrize("sampling", ["uniform", "balanced"])
def test_er_equals_the_plain_implementation(learner_of, sampling):
    for without in ({}, {"labeled": None}, {"memory": None}):
        batch = fixed_batch(unlabeled=None, **without)
        compare(learner_of("er", sampling=sampling), batch, {"replay": (1.0, one_mean(batch))}, phase="replay")


def test_naive_equals_the_plain_implementation(learner_of):
    batch = fixed_batch(unlabeled=None, memory=None)
    compare(learner_of("naive"), batch, {"labeled": (1.0, one_mean(batch))}, phase="fine-tune")


def test_hand_values_of_the_mask():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    one = Part("labeled", torch.zeros(1, 3, 4, 4), torch.tensor([1]))
    assert float(one.cross_entropy(logits, torch.tensor([1, 2]))) == pytest.approx(0.3133, abs=1e-4)
    assert float(one.cross_entropy(logits)) == pytest.approx(1.4076, abs=1e-4)


# Phases and mixes.


def phases_of(method, step, updates=100.0):
    done = ()
    while phase := method.next_phase(step, done, updates):
        done += (phase,)
    return done


@pytest.fixture(scope="module")
def stream(blobs):
    return tiny_learner(tiny_config(blobs)).stream


def counts_of(stream, t, mix, size=256):
    return mix.counts(size, pools_of(stream, t, mix))


def test_dietcl_draws_thirds_and_the_first_time_step_no_memory(stream):
    method = DietCL(DietCL.Config())
    (first,) = phases_of(method, stream.steps[0])
    assert counts_of(stream, 1, first.mix) == {"unlabeled": 85, "labeled": 171}
    joint, balance = phases_of(method, stream.steps[1])
    assert counts_of(stream, 2, joint.mix) == {"unlabeled": 86, "labeled": 85, "memory": 85}
    assert (joint.updates, joint.lr_scale) == (400, 1)
    assert counts_of(stream, 2, balance.mix) == {"memory": 256}
    assert (balance.updates, balance.lr_scale) == (math.inf, 0.1)
    assert joint.mix.by_time_step
    assert balance.mix.by_time_step


def test_the_release_variant_is_the_authors_own(stream):
    method = DietCL(method_config("dietcl:release"))
    (first,) = phases_of(method, stream.steps[0])
    assert counts_of(stream, 1, first.mix) == {"unlabeled": 102, "labeled": 154}
    joint, balance = phases_of(method, stream.steps[2])
    assert counts_of(stream, 3, joint.mix) == {"unlabeled": 102, "labeled": 77, "memory": 77}
    assert (joint.share, joint.updates) == (0.8, math.inf)
    assert (balance.share, balance.lr_scale) == (1, 0.1)


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"unlabeled": 0.0}, {"labeled": 6, "memory": 6}),
        ({"labeled": 0.0}, {"unlabeled": 6, "memory": 6}),
        ({"memory": 0.0}, {"unlabeled": 6, "labeled": 6}),
        ({"unlabeled": 0.0, "labeled": 0.0}, {"memory": 12}),
    ],
)
def test_every_pool_of_dietcl_can_be_switched_off(stream, options, counts):
    joint, *rest = phases_of(DietCL(DietCL.Config(**options)), stream.steps[1])
    assert [phase.name for phase in rest] == ([] if options.get("memory") == 0.0 else ["balance"])
    assert counts_of(stream, 2, joint.mix, 12) == counts


def test_no_unlabeled_share_means_no_reconstruction(blobs):
    learner = tiny_learner(tiny_config(blobs, "dietcl", budget="2", unlabeled=0.0))
    before = {name: value.clone() for name, value in learner.network.decoder.state_dict().items()}
    for _ in learn(learner):
        pass
    assert all(item.operation != "reconstruct" for receipt in learner.ledger.closed for item in receipt.items)
    assert all(torch.equal(value, before[name]) for name, value in learner.network.decoder.state_dict().items())


def test_balance_memory_draws_time_steps_or_labels_equally(stream):
    # Time step 2 has three of its labels left, so that the two ways of drawing differ.
    few = replace(stream.steps[1], labeled=stream.steps[1].labeled[:3], labels=stream.steps[1].labels[:3])
    uneven = replace(stream, steps=(stream.steps[0], few, stream.steps[2]))
    sizes = np.array([len(step.labeled) for step in uneven.steps])
    for balanced, shares in ((True, np.full(3, 1 / 3)), (False, sizes / sizes.sum())):
        for phase in phases_of(DietCL(DietCL.Config(balance_memory=balanced)), uneven.steps[2]):
            pools = pools_of(uneven, 3, phase.mix)
            (draw,) = sample(pools, {"memory": 6000}, (0,))
            drawn = np.array([np.isin(draw.rows, step.labeled).mean() for step in uneven.steps])
            assert np.abs(drawn - shares).max() < 0.03


def test_the_first_time_step_masks_nothing(blobs):
    weights = []
    for mask in (True, False):
        learner = tiny_learner(tiny_config(blobs, "dietcl", mask_classes=mask))
        next(learn(learner))
        assert all(item.purpose != "memory" for item in learner.ledger.closed[0].items)
        weights.append(learner.network.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_er_draws_halves_of_present_and_past_or_all_labels(stream):
    (balanced,) = phases_of(ER(ER.Config()), stream.steps[1])
    assert counts_of(stream, 2, balanced.mix) == {"labeled": 128, "memory": 128}
    assert counts_of(stream, 1, balanced.mix) == {"labeled": 256}
    past = pools_of(stream, 2, balanced.mix)["memory"].rows
    assert set(past) == set(stream.steps[0].labeled)
    (uniform,) = phases_of(ER(ER.Config(sampling="uniform")), stream.steps[1])
    assert counts_of(stream, 2, uniform.mix) == {"memory": 256}
    assert set(pools_of(stream, 2, uniform.mix)["memory"].rows) == {*past, *stream.steps[1].labeled}
    (small,) = phases_of(ER(ER.Config(sampling="uniform", memory=3)), stream.steps[1])
    assert len(pools_of(stream, 2, small.mix)["memory"].rows) == 3 + len(stream.steps[1].labeled)


def test_in_the_first_time_step_balanced_replay_is_fine_tuning(blobs):
    weights = []
    for method in ("er", "naive"):
        learner = tiny_learner(tiny_config(blobs, method))
        next(learn(learner))
        weights.append(learner.network.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


# DietCL without its own parts is balanced replay whose memory holds the current labels too.


class ReplayWithCurrent(ER):
    def next_phase(self, step, done, remaining):
        return None if done else Phase(name="replay", mix=Mix(labeled=1 / 2, memory=1 / 2))


LIMIT = {
    "alpha": 0.0,
    "mask_classes": False,
    "unlabeled": 0.0,
    "labeled": 0.5,
    "memory": 0.5,
    "balance_memory": False,
    "threshold": "1e9",
}


def in_the_limit(blobs, budget="3"):
    for method, options in (("dietcl", LIMIT), ("er", {})):
        learner = tiny_learner(tiny_config(blobs, method, budget=budget, **options))
        if method == "er":
            learner.method = ReplayWithCurrent(learner.method.config)
        yield learner


def test_in_the_limit_the_gradient_is_twice_that_of_balanced_replay(blobs):
    # The paper sums two means where replay takes one mean over both halves: exactly a factor of two.
    gradients = []
    for learner in in_the_limit(blobs):
        step = learner.stream.steps[1]
        learner.network.head.grow(step.seen_classes, torch.Generator().manual_seed(0))
        learner.ledger.open(2, step.seen_classes)
        phase = learner.method.next_phase(step, (), 3.0)
        pools = pools_of(learner.stream, 2, phase.mix)
        draws = sample(pools, phase.mix.counts(6, pools), KEY)
        images = [learner.loader.read(draw.rows) for draw in draws]
        batch = make_batch(draws, images, torch.from_numpy(step.classes), learner.config.augmentation, KEY)
        backward(learner, phase, batch, 1)
        gradients.append({name: parameter.grad for name, parameter in learner.network.named_parameters()})
    for name, gradient in gradients[0].items():
        if gradient is None:
            assert gradients[1][name] is None
        else:
            torch.testing.assert_close(gradient, 2 * gradients[1][name], rtol=1e-5, atol=1e-7)


def test_in_the_limit_dietcl_learns_what_balanced_replay_learns(blobs):
    # AdamW does not feel the factor of two but for its epsilon, and for signs of gradients near zero.
    start = tiny_learner(tiny_config(blobs)).network.state_dict()
    weights = []
    for learner in in_the_limit(blobs, budget="4"):
        if isinstance(method := learner.method, DietCL):  # whose first time step has a rule of its own
            joint = Phase(name="joint", mix=method._joint_mix())
            method.next_phase = lambda step, done, remaining, joint=joint: None if done else joint
        for _ in learn(learner):
            pass
        weights.append(learner.network.state_dict())
    encoder = [name for name in start if name.startswith("encoder")]
    before, one, other = (torch.cat([state[name].flatten() for name in encoder]) for state in (start, *weights))
    assert (one - other).norm() < 0.01 * (one - before).norm()


# Options.


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("dietcl", {"threshold": "-1"}, "--threshold -1: give a number of updates from 0"),
        ("dietcl", {"threshold": "nan"}, "--threshold nan: give a number of updates from 0"),
        ("dietcl", {"threshold": "150%"}, "--threshold 150%: give a number of updates from 0"),
        ("dietcl", {"threshold": "most"}, "--threshold most: give a number of updates from 0"),
        ("dietcl", {"unlabeled": 0, "labeled": 0, "memory": 0}, "--unlabeled, --labeled, --memory: give shares"),
        ("dietcl", {"labeled": -0.1}, "--unlabeled, --labeled, --memory: give shares"),
        ("dietcl", {"balance_lr": 0}, "--balance-lr 0: give a factor above 0"),
        ("dietcl", {"balance_lr": math.inf}, "--balance-lr inf: give a factor above 0"),
        ("er", {"memory": 0}, "--memory 0: keep at least one label"),
        ("ewc", {"strength": -1.0}, "--strength -1.0: give a weight from 0"),
        ("ewc", {"strength": math.nan}, "--strength nan: give a weight from 0"),
        ("ewc", {"strength": math.inf}, "--strength inf: give a weight from 0"),
        ("ewc", {"decay": 1.5, "online": True}, "--decay 1.5: give a factor from 0 to 1"),
        ("ewc", {"decay": -0.1, "online": True}, "--decay -0.1: give a factor from 0 to 1"),
        ("ewc", {"decay": math.nan, "online": True}, "--decay nan: give a factor from 0 to 1"),
        ("ewc", {"decay": 0.5}, "--decay 0.5: only with --online"),
        ("ewc", {"fisher": "exact"}, "--fisher 'exact': give per_sample or batch_mean"),
        ("mas", {"strength": -1.0}, "--strength -1.0: give a weight from 0"),
        ("mas", {"strength": math.nan}, "--strength nan: give a weight from 0"),
        ("mas", {"strength": math.inf}, "--strength inf: give a weight from 0"),
        ("mas", {"decay": -0.1}, "--decay -0.1: give a share from 0 to 1"),
        ("mas", {"decay": 1.1}, "--decay 1.1: give a share from 0 to 1"),
        ("mas", {"decay": math.nan}, "--decay nan: give a share from 0 to 1"),
        ("lwf", {"strength": -1.0}, "--strength -1.0: give a weight from 0"),
        ("lwf", {"strength": math.nan}, "--strength nan: give a weight from 0"),
        ("lwf", {"strength": math.inf}, "--strength inf: give a weight from 0"),
        ("lwf", {"temperature": 0.0}, "--temperature 0.0: give a number above 0"),
        ("lwf", {"temperature": -2.0}, "--temperature -2.0: give a number above 0"),
        ("lwf", {"temperature": math.inf}, "--temperature inf: give a number above 0"),
        ("acm", {"neighbors": 0}, "--neighbors 0: let at least one neighbor vote"),
        ("acm", {"neighbors": -1}, "--neighbors -1: let at least one neighbor vote"),
        ("ranpac", {"random_features": 0}, "--random-features 0: give at least 1"),
    ],
)
def test_impossible_options_are_refused(method, options, words):
    with pytest.raises(UserError, match=words):
        method_class(method).Config(**options)


def test_the_registry_names_every_method_and_helps_with_typing_errors():
    assert [entry.name for entry in describe()] == list(METHODS)
    assert all(entry.description and entry.keeps for entry in describe())
    with pytest.raises(UserError, match="did you mean dietcl"):
        method_class("dietlc")
    with pytest.raises(UserError, match="dietcl:release"):
        method_config("dietcl:relase")
    assert method_config("dietcl") == DietCL.Config()
