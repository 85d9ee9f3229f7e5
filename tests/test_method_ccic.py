"""CCIC term by term against plain loops, its limits, its phases and its neighbors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dietcl.engine import checkpoint
from dietcl.engine.checkpoint import Progress
from dietcl.engine.loop import backward, learn
from dietcl.errors import UserError
from dietcl.keys import numpy_generator
from dietcl.methods.base import Phase, Sweep
from dietcl.methods.ccic import CCIC
from dietcl.methods.pieces.triplet import batch_hard, push_apart
from dietcl.streams.mix import Mix
from dietcl.streams.sampler import pools_of
from fixed import CLASSES, KEY, compare, fixed_batch, fixed_learner, part
from plain import plain_cross_entropy, plain_encoder, plain_logits
from tiny import tiny_config, tiny_learner
from watching import Notes, equal, run_through, updates_of

POOLS = ("labeled", "memory", "unlabeled")


def plain_guess(unlabeled, weights, augmentations, temperature):
    """Return one guess per image: the mean softmax of its views, sharpened."""
    guesses = []
    for image in range(len(unlabeled)):
        mean = torch.zeros(CLASSES, dtype=torch.float64)
        for view in range(augmentations):
            logits = plain_logits(unlabeled.view(f"guess {view}")[image : image + 1], weights)[0].detach()
            mean += logits.exp() / logits.exp().sum() / augmentations
        powers = mean ** (1 / temperature)
        guesses.append(powers / powers.sum())
    return guesses


def plain_mixmatch(batch, weights, augmentations=3, temperature=0.5, beta=0.75):
    """Return mixed images and targets as lists by pool, image by image."""
    pools, images, targets = [], [], []
    for drawn in (batch.labeled, batch.memory):
        if drawn is not None:
            for image, label in zip(drawn.view("mixmatch"), drawn.labels.tolist(), strict=True):
                target = torch.full((CLASSES,), drawn.smoothing / CLASSES, dtype=torch.float64)
                target[label] += 1 - drawn.smoothing
                pools.append(drawn.pool)
                images.append(image)
                targets.append(target)
    if batch.unlabeled is not None:
        guesses = plain_guess(batch.unlabeled, weights, augmentations, temperature)
        for view in range(augmentations):
            for image, target in zip(batch.unlabeled.view(f"guess {view}"), guesses, strict=True):
                pools.append("unlabeled")
                images.append(image)
                targets.append(target)
    generator = numpy_generator(*KEY, "mixmatch")
    partners = generator.permutation(len(images)) if beta else range(len(images))
    shares = generator.beta(beta, beta, len(images)) if beta else [1.0] * len(images)
    mixed = {pool: ([], []) for pool in POOLS}
    for i, (j, share) in enumerate(zip(partners, shares, strict=True)):
        share = max(share, 1 - share)
        mixed[pools[i]][0].append(share * images[i] + (1 - share) * images[j])
        mixed[pools[i]][1].append(share * targets[i] + (1 - share) * targets[j])
    return mixed


def mixmatch_term(batch, pool, **options):
    def loss(weights):
        images, targets = plain_mixmatch(batch, weights, **options)[pool]
        total = 0.0
        for logits, target in zip(plain_logits(torch.stack(images), weights), targets, strict=True):
            p = logits.exp() / logits.exp().sum()
            if pool == "unlabeled":
                total = total + sum((p[c] - target[c]) ** 2 for c in range(CLASSES)) / CLASSES
            else:
                total = total - sum(target[c] * p[c].log() for c in range(CLASSES))
        return total / len(images)

    return loss


def plain_embeddings(parts, name, weights):
    features = plain_encoder(torch.cat([p.view(name) for p in parts]), weights)[:, 1:].mean(1)
    return [f / f.square().sum().sqrt() for f in features]


def plain_distance(one, other):
    return (one - other).square().sum().sqrt()


def plain_batch_hard(points, labels):
    losses = []
    for i, anchor in enumerate(points):
        own = [plain_distance(anchor, p) for j, p in enumerate(points) if j != i and labels[j] == labels[i]]
        others = [plain_distance(anchor, p) for j, p in enumerate(points) if labels[j] != labels[i]]
        if own and others:
            losses.append(max(max(own) - min(others) + 1, 0 * own[0]))
    return sum(losses) / len(losses) if losses else torch.zeros((), dtype=torch.float64)


def triplet_term(batch):
    parts = [p for p in (batch.labeled, batch.memory) if p is not None]
    labels = [label for p in parts for label in p.labels.tolist()]
    return lambda weights: plain_batch_hard(plain_embeddings(parts, "triplet", weights), labels)


def cross_term(batch):
    def loss(weights):
        new = plain_embeddings([batch.unlabeled], "cross", weights)
        past = plain_embeddings([batch.memory], "cross", weights)
        losses = [1 - min(plain_distance(u, m) for m in past) for u in new]
        return sum(max(value, 0 * value) for value in losses) / len(losses)

    return loss


def expected_terms(batch, **options):
    return {
        "labeled": (1.0, mixmatch_term(batch, "labeled", **options)),
        "memory": (1.0, mixmatch_term(batch, "memory", **options)),
        "unlabeled": (0.5, mixmatch_term(batch, "unlabeled", **options)),
        "triplet": (1.0, triplet_term(batch)),
        "cross": (0.5, cross_term(batch)),
    }


def names_of(learner, batch, phase="mixmatch"):
    return [term.name for term in learner.method.losses(learner.net, Phase(name=phase, mix=Mix()), batch)]


def test_ccic_equals_the_plain_implementation(blobs):
    batch = fixed_batch()
    compare(fixed_learner(blobs, "ccic"), batch, expected_terms(batch), phase="mixmatch")


@pytest.mark.parametrize("options", [{"augmentations": 1}, {"augmentations": 2, "temperature": 1.0}])
def test_views_and_temperature_of_the_guess_can_be_chosen(blobs, options):
    batch = fixed_batch()
    learner = fixed_learner(blobs, "ccic", triplet=False, cross=0.0, memory_weight=0.3, **options)
    expected = expected_terms(batch, **options)
    expected = {name: expected[name] for name in POOLS} | {"memory": (0.3, expected["memory"][1])}
    compare(learner, batch, expected, phase="mixmatch")


def test_settling_leaves_the_past_and_the_present_where_they_are(blobs):
    batch = fixed_batch()
    expected = {name: term for name, term in expected_terms(batch).items() if name != "cross"}
    compare(fixed_learner(blobs, "ccic"), batch, expected, phase="settle")


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ("labeled", {"memory", "unlabeled", "triplet", "cross"}),
        ("memory", {"labeled", "unlabeled", "triplet"}),
        ("unlabeled", {"labeled", "memory", "triplet"}),
    ],
)
def test_a_missing_part_drops_its_terms(blobs, missing, left):
    batch = fixed_batch(**{missing: None})
    expected = {name: term for name, term in expected_terms(batch).items() if name in left}
    compare(fixed_learner(blobs, "ccic"), batch, expected, phase="mixmatch")


def test_the_views_of_one_image_are_averaged_and_not_those_of_different_images(blobs):
    # Each of four images is told by a class of its own, so that a mean across images would be seen.
    learner = fixed_learner(blobs, "ccic", temperature=1.0)
    four = part("unlabeled", [0, 0, 0, 0], 5)
    scores = torch.full((12, CLASSES), 0.0)
    for view in range(3):
        for image in range(4):
            scores[4 * view + image, image] = 5.0 + view
    shown = []

    class Known:
        def scores(self, images, purpose):
            shown.append((images, purpose))
            return scores

    views, guesses = learner.method._guess(Known(), four)
    assert shown[0][1] == "guess"
    assert torch.equal(views, torch.cat([four.view(f"guess {i}") for i in range(3)]))
    assert guesses.argmax(1).tolist() == [0, 1, 2, 3] * 3
    sure = sum(math.exp(5 + view) / (math.exp(5 + view) + CLASSES - 1) for view in range(3)) / 3
    for row, image in zip(guesses, [0, 1, 2, 3] * 3, strict=True):
        assert float(row[image]) == pytest.approx(sure)


def test_four_images_of_three_views_equal_the_plain_implementation(blobs):
    batch = fixed_batch(unlabeled=part("unlabeled", [0, 0, 0, 0], 5))
    learner = fixed_learner(blobs, "ccic", beta=0.0, triplet=False, cross=0.0)
    expected = {pool: term for pool, term in expected_terms(batch, beta=0).items() if pool in POOLS}
    compare(learner, batch, expected, phase="mixmatch")


def test_a_guess_stays_finite_at_any_temperature(blobs):
    learner = fixed_learner(blobs, "ccic", temperature=1e-4)
    terms = list(learner.method.losses(learner.net, Phase(name="mixmatch", mix=Mix()), fixed_batch()))
    assert all(bool(term.value.isfinite()) for term in terms)


# Limits.


def test_without_its_own_parts_it_is_the_sum_of_two_means_of_replay_on_plain_crops(blobs):
    batch = fixed_batch()

    def replay(drawn):
        plain = replace(drawn, partners=drawn.labels, weight=torch.ones(len(drawn), dtype=torch.float64))
        return lambda weights: plain_cross_entropy(plain_logits(drawn.view("mixmatch"), weights), plain)

    learner = fixed_learner(blobs, "ccic", strength=0.0, cross=0.0, beta=0.0, triplet=False)
    expected = {"labeled": (1.0, replay(batch.labeled)), "memory": (1.0, replay(batch.memory))}
    compare(learner, batch, expected, phase="mixmatch")
    # The gradient is that of replay, whose one mean weighs both parts by their images, if it is weighed back.
    other = fixed_learner(blobs, "er")
    for drawn in (batch.labeled, batch.memory):
        plain = replace(drawn, images=drawn.view("mixmatch"), partners=None, weight=None)
        alone = replace(batch, **{"labeled": None, "memory": None, "unlabeled": None, drawn.pool: plain})
        backward(other, Phase(name="replay", mix=Mix()), alone, 1)
    for name, parameter in other.network.named_parameters():
        if parameter.grad is not None:
            found = learner.network.get_parameter(name).grad
            torch.testing.assert_close(found, parameter.grad, rtol=1e-9, atol=1e-12)


def test_what_is_switched_off_is_neither_drawn_nor_run(blobs):
    batch = fixed_batch()
    assert names_of(fixed_learner(blobs, "ccic", strength=0.0), batch) == ["labeled", "memory", "triplet", "cross"]
    assert names_of(fixed_learner(blobs, "ccic", cross=0.0), batch) == ["labeled", "memory", "unlabeled", "triplet"]
    learner = fixed_learner(blobs, "ccic", triplet=False, strength=0.0)
    assert names_of(learner, batch, "settle") == ["labeled", "memory"]
    learner.method.begin_step(learner.net, learner.stream.steps[1])
    first = learner.method.next_phase(learner.stream.steps[1], (), 9.0)
    assert first.mix.unlabeled > 0
    assert learner.method.next_phase(learner.stream.steps[1], (first,), 9.0).mix.unlabeled == 0
    assert learner.method.next_phase(learner.stream.steps[0], (), 9.0).mix.unlabeled == 0


@pytest.mark.parametrize("number", [2, 7])
def test_equal_embeddings_lose_the_margin_and_have_a_finite_gradient(number):
    features = torch.ones(number, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(number) % 2
    apart = push_apart(features, features.detach())
    assert apart.item() == pytest.approx(1)
    hard = batch_hard(features, labels)
    assert hard.item() == (0 if number == 2 else 1)  # two images of two classes have no other of their own
    (apart + hard).backward()
    assert bool(features.grad.isfinite().all())


def test_hand_values_of_the_triplet():
    # On the circle: class 0 at 0° and 90°, class 1 at 180°.
    points = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-0.5, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    first = max(0, math.sqrt(2) - 2 + 1)
    second = max(0, math.sqrt(2) - math.sqrt(2) + 1)
    assert float(batch_hard(points, labels)) == pytest.approx((first + second) / 2)
    assert float(push_apart(points[:1], points[1:])) == 0  # the nearest is farther than the margin
    near = torch.tensor([[math.cos(0.3), math.sin(0.3)]], dtype=torch.float64)
    assert float(push_apart(near, points)) == pytest.approx(1 - 2 * math.sin(0.15))


@pytest.mark.parametrize("labels", [[0], [0, 0, 0], [0, 1, 2]])
def test_a_batch_without_triplets_has_no_loss(labels):
    features = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = batch_hard(features, torch.tensor(labels))
    loss.backward()
    assert loss.item() == 0
    assert not features.grad.any()


@pytest.mark.parametrize("seed", range(5))
def test_triplets_equal_plain_loops(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (9,), generator=generator)
    points = [f / f.square().sum().sqrt() for f in features]
    assert float(batch_hard(features, labels)) == pytest.approx(float(plain_batch_hard(points, labels.tolist())))


# Phases, neighbors, receipts.


@pytest.fixture(scope="module")
def run(blobs):
    learner = tiny_learner(tiny_config(blobs, "ccic", budget="30"))
    return learner, updates_of(learner)


def test_a_time_step_is_mixed_then_settled_then_embedded(blobs):
    learner = tiny_learner(tiny_config(blobs, "ccic"))
    method, steps = learner.method, learner.stream.steps
    assert method.next_phase(steps[0], (), 9.0) is None  # no label has been revealed
    for t, counts in ((1, {"unlabeled": 4, "labeled": 8}), (2, {"unlabeled": 4, "labeled": 4, "memory": 4})):
        method.begin_step(learner.net, steps[t - 1])
        done = ()
        while stretch := method.next_phase(steps[t - 1], done, 9.0):
            done += (stretch,)
        mixmatch, settle, embed = done
        assert (mixmatch.name, mixmatch.share, settle.name, settle.share) == ("mixmatch", 0.9, "settle", 1.0)
        assert embed == Sweep(name="embed", pool="memory")
        for phase in (mixmatch, settle):
            assert phase.reserve.forward == 8 * t
            assert phase.mix.counts(12, pools_of(learner.stream, t, phase.mix)) == counts
        past = set(pools_of(learner.stream, t, mixmatch.mix)["memory"].rows)
        assert past == {row for step in steps[: t - 1] for row in step.labeled}


def test_receipts_have_ten_passes_for_three_images(run):
    learner, events = run
    for receipt in learner.ledger.closed:
        paid = {(item.purpose, item.operation): item.passes for item in receipt.items if item.passes}
        made = {
            name: sum((event["t"], event["phase"]) == (receipt.t, name) for event in events)
            for name in ("mixmatch", "settle")
        }
        both = sum(made.values())
        assert min(made.values()) > 0
        expected = {
            ("guess", "forward"): both * 3 * 4 / 3,
            ("unlabeled", "train"): both * 3 * 4,
            ("labeled", "train"): both * (4 if receipt.t > 1 else 8),
            ("memory", "train"): both * 4,
            ("triplet", "train"): both * 8,
            ("cross", "train"): made["mixmatch"] * 8,
            ("embed", "forward"): receipt.t * 8 / 3,
        }
        if receipt.t == 1:
            expected = {key: value for key, value in expected.items() if key[0] not in ("memory", "cross")}
        assert paid == {key: pytest.approx(value) for key, value in expected.items()}
        price = 12 * ((10 if receipt.t > 1 else 8) * made["mixmatch"] + 8 * made["settle"]) / 3
        assert receipt.spent == pytest.approx(price + receipt.t * 8 / 3)


def test_all_labels_so_far_are_embedded_by_the_last_encoder(run):
    learner, _ = run
    store = learner.method._store
    rows = np.concatenate([step.labeled for step in learner.stream.steps])
    labels = np.concatenate([step.labels for step in learner.stream.steps])
    assert sorted(store.rows.tolist()) == sorted(rows.tolist())
    assert dict(zip(store.rows.tolist(), store.labels.tolist(), strict=True)) == dict(zip(rows, labels, strict=True))
    state = learner.network.state_dict()
    images = learner.loader.read(store.rows.numpy()).float().div(255).sub(0.5).div(0.25)
    torch.testing.assert_close(store.values, plain_encoder(images, state)[:, 1:].mean(1), rtol=1e-3, atol=1e-4)


def test_the_nearest_remembered_labels_decide(run):
    learner, _ = run
    images = learner.loader.read(learner.stream.tests[1].rows).float().div(255).sub(0.5).div(0.25)
    with torch.no_grad(), learner.ledger.free():
        scores = learner.method.predict(learner.net, images)
        features = learner.net.features(images, "predict").double()
    assert scores.shape == (len(images), learner.net.classes)
    values, labels = learner.method._store.values.double(), learner.method._store.labels.tolist()
    for feature, row in zip(features, scores, strict=True):
        cosines = [float(feature @ v / (feature.norm() * v.norm())) for v in values]
        near = sorted(range(len(labels)), key=lambda i, c=cosines: -c[i])[:3]
        votes = {label: sum(labels[i] == label for i in near) for label in {labels[i] for i in near}}
        most = max(votes.values())
        winner = next(labels[i] for i in near if votes[labels[i]] == most)
        assert int(row.argmax()) == winner


def test_without_embeddings_the_head_decides(blobs):
    learner = fixed_learner(blobs, "ccic")
    images = fixed_batch().memory.images
    with torch.no_grad(), learner.ledger.free():
        assert torch.equal(learner.method.predict(learner.net, images), learner.net.scores(images))


def test_a_budget_too_small_for_all_labels_embeds_as_many_as_fit(blobs):
    learner = tiny_learner(tiny_config(blobs, "ccic", budget="0.5"))  # six passes, an update costs more
    learner.witness = notes = Notes()
    run_through(learner)
    assert notes.of("update") == []
    assert [event["images"] for event in notes.of("sweep")] == [8, 16, 18]
    assert len(learner.method._store) == 18
    assert [receipt.spent for receipt in learner.ledger.closed] == pytest.approx([8 / 3, 16 / 3, 6])


def test_ccic_goes_on_from_a_checkpoint(blobs, run, tmp_path):
    whole, _ = run
    config = tiny_config(blobs, "ccic", budget="30")
    stopped, resumed = tiny_learner(config), tiny_learner(config)
    for t in learn(stopped):
        if t == 2:
            break
    checkpoint.save(stopped, tmp_path / "checkpoint", Progress(2, 0))
    checkpoint.load(resumed, tmp_path / "checkpoint")
    assert equal(resumed.method.state(), stopped.method.state())
    for _ in learn(resumed, finished=2):
        pass
    assert equal(dict(resumed.network.state_dict()), dict(whole.network.state_dict()))
    assert equal(resumed.method.state(), whole.method.state())
    assert int(resumed.method.state()["revealed"]) == 24
    assert (resumed.counts.loss_sum == whole.counts.loss_sum).all()
    assert resumed.ledger.receipts() == whole.ledger.receipts()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"augmentations": 0}, "--augmentations 0"),
        ({"neighbors": 0}, "--neighbors 0"),
        ({"temperature": 0.0}, "--temperature 0.0"),
        ({"temperature": math.nan}, "--temperature nan"),
        ({"beta": -0.1}, "--beta -0.1"),
        ({"strength": math.inf}, "--strength inf"),
        ({"cross": -1.0}, "--cross -1.0"),
        ({"memory_weight": -1.0}, "--memory-weight -1.0"),
    ],
)
def test_impossible_options_are_refused(options, named):
    with pytest.raises(UserError, match=named):
        CCIC.Config(**options)
