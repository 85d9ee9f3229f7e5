"""The whole contract of a method, used to the full by one that is made up."""

from dataclasses import dataclass

import pytest
import torch

from dietcl.engine import checkpoint
from dietcl.engine.loop import learn
from dietcl.methods.base import Method, Phase, Term
from dietcl.streams.sampler import Mix
from tiny import tiny_config, tiny_learner
from watching import Notes, equal, run_through, weights


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
    learner.witness = Notes()
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
            checkpoint.save(stopped, tmp_path / "checkpoint", checkpoint.Progress(2, 0))
            break
    resumed = toy_learner(blobs)
    assert checkpoint.load(resumed, tmp_path / "checkpoint") == checkpoint.Progress(2, 0)
    for _ in learn(resumed, finished=2):
        pass
    assert equal(weights(resumed), weights(whole))
    assert equal(resumed.method.scale.state_dict(), whole.method.scale.state_dict())
    assert equal(resumed.method.state(), whole.method.state())
    assert (resumed.counts.loss_sum == whole.counts.loss_sum).all()
    assert resumed.ledger.receipts() == whole.ledger.receipts()


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
    checkpoint.save(first, tmp_path / "checkpoint", checkpoint.Progress(1, 0))
    checkpoint.load(second, tmp_path / "checkpoint")
    assert equal(first.method.scale.state_dict(), second.method.scale.state_dict())
