"""The whole contract of a method, used to the full by one that is made up."""

from dataclasses import dataclass

import pytest
import torch

from dietcl.engine.loop import learn
from dietcl.engine.resume_position import Position
from dietcl.methods.base import Method, Phase, Reserve, Sweep, Term
from dietcl.models.net import Unmetered
from dietcl.streams.sampler import Mix
from helpers.recording import Notes, equal, hand_over, run_through, weights
from helpers.tiny import tiny_config, tiny_learner


class Toy(Method):
    """Uses every hook: a module of its own, a count of updates, a mean feature per class, and its own prediction."""

    keeps = "everything"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Nothing to choose."""

    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.nn.Linear(1, 1)
        with torch.no_grad():
            self.scale.weight.fill_(1.0)
            self.scale.bias.zero_()
        self.updates = torch.zeros((), dtype=torch.int64)
        self.average = torch.zeros(0)
        self.begun, self.ended = [], []

    def next_phase(self, step, done, remaining):
        first = Phase(name="half", mix=Mix(labeled=1), share=0.5)
        second = Phase(name="rest", mix=Mix(unlabeled=0.5, memory=0.5), updates=1, lr_scale=0.5)
        return (first, second, None)[len(done)]

    def losses(self, net, phase, batch):
        for part, logits in zip(batch.supervised, net.logits(*batch.supervised), strict=True):
            yield Term(part.pool, part.cross_entropy(self.scale(logits[..., None])[..., 0]))
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key), weight=0.1)

    def begin_step(self, net, step):
        assert net.classes == step.seen_classes
        self.begun.append(step.t)

    def after_update(self, net, phase):
        self.updates += 1

    def end_step(self, net, step):
        images = torch.zeros(3, 3, 16, 16)
        self.average = net.features(images, "average").mean(0)
        self.ended.append(step.t)

    def predict(self, net, images):
        scores = net.scores(images)
        net.features(images, "again")
        return self.scale(scores[..., None])[..., 0] + 0 * self.average.sum()

    def modules(self):
        return {"scale": self.scale}

    def state(self):
        return {"updates": self.updates, "average": self.average}

    def load_state(self, state):
        self.updates, self.average = state["updates"], state["average"]


def toy_learner(blobs):
    learner = tiny_learner(tiny_config(blobs, budget="5"))
    learner.method = Toy(Toy.Config())
    learner.recorder = Notes()
    return learner


def test_a_method_may_use_every_hook_and_go_on_from_a_checkpoint(blobs, tmp_path):
    whole = run_through(toy_learner(blobs))
    assert whole.method.begun == whole.method.ended == [1, 2, 3]
    # Of 5 updates' worth: half for the first phase (2 fit), one for the second; the average is charged after them.
    assert whole.method.updates.item() == 3 * (2 + 1)
    for receipt in whole.ledger.closed:
        items = {(item.purpose, item.operation): item for item in receipt.items}
        assert items["average", "forward"].passes == pytest.approx(1)
        assert receipt.spent == pytest.approx(3 * 12 + 1)
        assert items["evaluation", "forward"].passes == 0
    assert whole.method.scale.weight.item() != 1  # the engine trains the method's own module

    stopped = toy_learner(blobs)
    for t in learn(stopped):
        if t == 2:
            break
    resumed = toy_learner(blobs)
    assert hand_over(stopped, resumed, tmp_path / "checkpoint") == 17
    assert resumed.position == stopped.position == Position(finished=2, pace=stopped.position.pace)
    for _ in learn(resumed):
        pass
    assert equal(weights(resumed), weights(whole))
    assert equal(resumed.method.scale.state_dict(), whole.method.scale.state_dict())
    assert equal(resumed.method.state(), whole.method.state())
    assert (resumed.counts.loss_sum == whole.counts.loss_sum).all()
    assert resumed.ledger.receipts() == whole.ledger.receipts()


class Wants(Toy):
    """Makes updates, then walks through its labels; what it asks for is given to it."""

    def __init__(self, config, phase, sweep=None):
        super().__init__(config)
        self.segments = [segment for segment in (phase, sweep) if segment is not None]
        self.gathered = 0

    def next_phase(self, step, done, remaining):
        return self.segments[len(done)] if len(done) < len(self.segments) else None

    def gather(self, net, sweep, part):
        net.features(part.images, "walk")
        return {"images": torch.tensor(len(part))}

    def absorb(self, net, sweep, gathered):
        self.gathered += int(gathered["images"])

    def end_step(self, net, step):
        pass


def learn_with(blobs, method, budget="5"):
    learner = tiny_learner(tiny_config(blobs, budget=budget))
    learner.method, learner.recorder = method, Notes()
    return learner


def test_a_reserve_is_left_for_the_sweep_after_a_phase(blobs):
    # 24 labels forward are 8 passes: of 60, 48 go to updates of 12 and 8 to the sweep.
    phase = Phase(name="half", mix=Mix(labeled=1), reserve=Reserve(forward=24))
    method = Wants(Toy.Config(), phase, Sweep(name="walk", pool="memory"))
    learner = learn_with(blobs, method)
    for t in learn(learner):
        items = {(item.purpose, item.operation): item for item in learner.ledger.closed[t - 1].items}
        assert items["labeled", "train"].images == 48
        assert items["walk", "forward"].images == 8 * t
    assert method.gathered == 8 + 16 + 24


def test_no_more_than_half_is_held_back_and_one_update_is_left(blobs):
    for budget, updates in (("5", 2), ("1.5", 1)):
        phase = Phase(name="half", mix=Mix(labeled=1), reserve=Reserve(importance=1000))
        learner = learn_with(blobs, Wants(Toy.Config(), phase), budget)
        next(learn(learner))
        assert learner.ledger.closed[0].spent == 12 * updates


def test_a_sweep_goes_as_far_as_the_budget_does(blobs):
    method = Wants(Toy.Config(), None, Sweep(name="walk", pool="unlabeled"))
    learner = learn_with(blobs, method, budget="0.5")
    next(learn(learner))
    assert method.gathered == 18  # of 32, a third of a pass each, for six passes
    (event,) = learner.recorder.of("sweep")
    assert (event["images"], event["of"]) == (18, 32)


def test_a_fresh_phase_begins_from_the_first_weights_if_an_update_fits(blobs):
    phase = Phase(name="half", mix=Mix(labeled=1), updates=1, fresh=True)
    learner, once = learn_with(blobs, Wants(Toy.Config(), phase)), learn_with(blobs, Wants(Toy.Config(), phase))
    start = {name: value for name, value in weights(learner).items() if name.startswith("encoder")}
    steps = learn(learner)
    next(steps)
    next(learn(once))
    moved = weights(learner)
    assert any(not torch.equal(start[name], moved[name]) for name in start)
    learner.net.reset(learner.stream.steps[0])
    assert all(torch.equal(weights(learner)[name], value) for name, value in start.items())
    poor = learn_with(blobs, Wants(Toy.Config(), phase), budget="0.5")
    for parameter in poor.network.encoder.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    next(learn(poor))
    assert all(float(value.mean()) == pytest.approx(0.01) for name, value in weights(poor).items() if "encoder" in name)


def test_turns_have_moments_of_their_own(blobs):
    class Turns(Wants):
        def optimizer_name(self, net, key, pools):
            assert pools.keys() == {"labeled"}
            return "odd" if key[3] % 2 else "even"

    phase = Phase(name="half", mix=Mix(labeled=1))
    runs = [run_through(learn_with(blobs, kind(Toy.Config(), phase), "4")) for kind in (Wants, Turns)]
    assert not equal(weights(runs[0]), weights(runs[1]))


def test_a_method_that_never_ends_is_stopped(blobs):
    class Endless(Wants):
        def next_phase(self, step, done, remaining):
            return Phase(name="again", mix=Mix(labeled=1), updates=0)

    with pytest.raises(RuntimeError, match="return None when the time step is over"):
        next(learn(learn_with(blobs, Endless(Toy.Config(), None))))


@pytest.mark.parametrize("hook", ["begin_step", "after_update", "end_step"])
def test_a_hook_that_overdraws_is_named(blobs, hook):
    class Greedy(Wants):
        pass

    setattr(Greedy, hook, lambda self, net, *rest: net.features(torch.zeros(1000, 3, 16, 16), "much"))
    learner = learn_with(blobs, Greedy(Toy.Config(), Phase(name="half", mix=Mix(labeled=1))))
    with pytest.raises(RuntimeError, match=f"Greedy.{hook} must be paid"):
        next(learn(learner))


def test_evaluation_must_not_learn(blobs):
    class Cheat(Wants):
        def predict(self, net, images):
            with torch.enable_grad():
                return net.classify(net.encode(images, "cheat"), "cheat")

    learner = learn_with(blobs, Cheat(Toy.Config(), Phase(name="half", mix=Mix(labeled=1))))
    with pytest.raises(Unmetered, match="must not compute gradients"):
        next(learn(learner))


def test_the_union_of_a_stream_has_all_images_and_all_budgets_in_its_last_time_step(blobs):
    learner = tiny_learner(tiny_config(blobs, "joint", budget="4"))
    stream = tiny_learner(tiny_config(blobs)).stream
    (whole,) = learner.stream.steps
    assert (whole.t, whole.spans, whole.seen_classes) == (3, 3, 6)
    assert set(whole.unlabeled) == {row for step in stream.steps for row in step.unlabeled}
    truth = {row: label for step in stream.steps for row, label in zip(step.labeled, step.labels, strict=True)}
    assert dict(zip(whole.labeled, whole.labels, strict=True)) == truth
    assert list(learn(learner)) == [3]
    (receipt,) = learner.ledger.closed
    assert receipt.budget == 3 * 4 * 12
    assert learner.counts.count[:2].sum() == 0 < learner.counts.count[2].min()


def test_a_module_is_paid_by_its_shape_and_by_what_learns(blobs):
    learner = tiny_learner(tiny_config(blobs, budget="50"))
    learner.ledger.open(1, 2)
    module = learner.net.build(lambda: torch.nn.Linear(8, 5), "toy")
    learner.net.run(module, torch.zeros(3, 8), purpose="toy")
    with torch.no_grad():
        learner.net.run(module, torch.zeros(3, 8), purpose="toy still")
    module.requires_grad_(False)
    learner.net.run(module, torch.zeros(3, 8), purpose="toy frozen")
    flops = {item.purpose: item.flops for item in learner.ledger.close().items}
    assert flops == {"toy": 3 * 2 * (2 * 8 * 5), "toy still": 3 * 2 * 8 * 5, "toy frozen": 3 * 2 * 8 * 5}
    with pytest.raises(ValueError, match="rows differ"):
        learner.net.run(torch.nn.Bilinear(8, 8, 1), torch.zeros(1, 8), torch.zeros(9, 8), purpose="toy")
    with pytest.raises(Unmetered):
        module(torch.zeros(3, 8))


def test_a_method_may_make_its_modules_from_its_state(blobs, tmp_path):
    class Late(Toy):
        def __init__(self, config):
            super().__init__(config)
            self.scale = None

        def begin_step(self, net, step):
            if self.scale is None:
                self.scale = torch.nn.Linear(1, 1)

        def load_state(self, state):
            super().load_state(state)
            self.scale = torch.nn.Linear(1, 1)

    first, second = toy_learner(blobs), toy_learner(blobs)
    first.method, second.method = Late(Toy.Config()), Late(Toy.Config())
    next(learn(first))
    hand_over(first, second, tmp_path / "checkpoint")
    assert equal(first.method.scale.state_dict(), second.method.scale.state_dict())
