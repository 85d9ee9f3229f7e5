"""The network runs only through the object that charges: counters on every module agree with the ledger."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dietcl.budget.ledger import Overdraft
from dietcl.budget.receipts import StepReceipt
from dietcl.engine.loop import learn
from dietcl.methods import METHODS
from dietcl.models.net import Unmetered
from dietcl.streams.batch import Part
from helpers.tiny import tiny_config, tiny_learner

# Where counts may differ, method by method: an update of ccic may be refused before it goes backward; some run the
# encoder at its full price and leave the head out; dualnet takes the norm at four depths, and l2p's frozen patches get
# no gradient.
REFUSED = {"ccic"}
WITHOUT_HEAD = {"cassle", "l2p", "dualnet", "ccic", "linear_probe", "ncm", "ranpac", "acm", "larder"}
BLOCKS_ONLY = {"dualnet", "l2p"}
GRADIENT = {"train", "importance", "reconstruct", "prompt", "prompt_train", "head_train"}


class Meter:
    """Counts the images that go forward and backward through every leaf module of a network."""

    def __init__(self, network):
        self.forward, self.backward = Counter(), Counter()
        self.names = [name for name, module in network.named_modules() if not list(module.children())]
        for name in self.names:
            module = network.get_submodule(name)
            module.register_forward_hook(self._counter(self.forward, name, lambda inputs, output: len(output)))
            module.register_full_backward_pre_hook(self._counter(self.backward, name, lambda grads: len(grads[0])))

    def reset(self):
        self.forward.clear()
        self.backward.clear()

    @staticmethod
    def _counter(counter, name, images):
        def count(module, *arguments):
            counter[name] += images(*arguments)

        return count


def booked(receipt: StepReceipt) -> tuple[dict[str, int], dict[str, int]]:
    """Return the images that the receipt says went forward and backward through encoder, decoder and head."""
    forward, backward = Counter(), Counter()
    for item in receipt.items:
        match item.operation:
            case "reconstruct" | "reconstruct_forward":
                parts = ("encoder", "decoder")
            case "head_train" | "head_forward":
                parts = ("head",)
            case "module" | "solve":  # no part of the network
                parts = ()
            case _:
                parts = ("encoder", "head")
        for part in parts:
            forward[part] += item.images
            backward[part] += item.images if item.operation in GRADIENT and item.purpose != "evaluation" else 0
    return forward, backward


def check(meter: Meter, names: set[str], receipt: StepReceipt, method: str) -> None:
    """Compare what every module of the network ran with the receipt, exactly but for the exceptions above."""
    forward, backward = booked(receipt)
    for name in names:
        part = name.partition(".")[0]
        if part == "head" and method in WITHOUT_HEAD:
            assert meter.forward[name] <= forward[part], name
            assert meter.backward[name] <= backward[part], name
            continue
        if part == "encoder" and method in BLOCKS_ONLY and ".blocks." not in name:
            continue
        assert meter.forward[name] == forward[part], name
        if method in REFUSED:
            assert meter.backward[name] <= backward[part], name
        else:
            assert meter.backward[name] == backward[part], name


@pytest.mark.filterwarnings("ignore:Full backward hook")  # the first layer: images need no gradient
@pytest.mark.parametrize("accounting", ["images", pytest.param("flops", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("method", "options"),
    [(name, {}) for name in METHODS]
    + [("dietcl", {"threshold": "2.0"}), ("er", {"sampling": "uniform"}), ("dietcl", {"unlabeled": 0.0})],
)
def test_every_module_runs_as_often_as_the_ledger_says(blobs, method, options, accounting):
    config = replace(tiny_config(blobs, method, budget="3", **options), accounting=accounting)
    config = replace(config, evaluation=replace(config.evaluation, curves=2))
    learner = tiny_learner(config)
    meter = Meter(learner.network)
    weighty = {name.rpartition(".")[0] for name, _ in learner.network.named_parameters()} & set(meter.names)
    for _ in learn(learner):
        # Layers without weights that timm skips (identities) may stay silent; all that do run must agree.
        check(meter, weighty | set(meter.forward), learner.ledger.closed[-1], method)
        assert meter.forward["encoder.vit.blocks.0.attn.qkv"] > 0
        if method not in WITHOUT_HEAD:
            assert meter.forward["head"] > 0 < meter.backward["encoder.vit.blocks.0.attn.qkv"]
        meter.reset()


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("seconds", [2, pytest.param(9, marks=pytest.mark.long)])
@pytest.mark.parametrize("method", METHODS)
def test_every_module_runs_as_often_as_the_ledger_says_when_time_runs_out(blobs, method, seconds):
    learner = tiny_learner(tiny_config(blobs, method, budget=f"{seconds}s"))
    ticks = itertools.count()
    learner.ledger.clock = lambda: next(ticks) / 4  # every look at the clock takes a quarter of a second
    meter = Meter(learner.network)
    for _ in learn(learner):
        check(meter, set(meter.forward), learner.ledger.closed[-1], method)
        meter.reset()


def test_parts_that_do_not_fit_together_are_not_paid_at_all(blobs):
    learner = tiny_learner(tiny_config(blobs, budget="1"))
    learner.network.head.grow(2, torch.Generator())
    learner.ledger.open(1, 2)
    images = torch.zeros(8, 3, 16, 16)
    with pytest.raises(Overdraft):
        learner.net.logits(Part("labeled", images), Part("memory", images))
    assert learner.ledger.spent == 0


def test_the_counted_images_are_the_paid_ones(blobs):
    learner = tiny_learner(tiny_config(blobs, "dietcl", budget="3"))
    for _ in learn(learner):
        pass
    for receipt in learner.ledger.closed:
        paid = {item.purpose: item.images for item in receipt.items if item.passes}
        assert sum(paid.values()) == 3 * 12 == receipt.spent
        assert paid["reconstruct"] == 12


@pytest.mark.parametrize(
    "part", ["encoder", "encoder.vit.patch_embed", "encoder.vit.blocks.2", "decoder", "decoder.blocks.0", "head"]
)
def test_running_a_part_of_the_network_directly_is_refused(blobs, part):
    learner = tiny_learner(tiny_config(blobs))
    learner.network.head.grow(2, torch.Generator())
    width = {"decoder.blocks.0": 16}.get(part, 96)
    tokens, images = torch.zeros(2, 5, width), torch.zeros(2, 3, 16, 16)
    inputs = {
        "encoder": (images,),
        "encoder.vit.patch_embed": (images,),
        "decoder": (tokens, torch.zeros(2, 4, dtype=torch.int64)),
        "head": (tokens[:, 0],),
    }.get(part, (tokens,))
    with pytest.raises(Unmetered, match="call it through net"):
        learner.network.get_submodule(part)(*inputs)


def test_nothing_runs_without_an_open_time_step_or_beyond_the_budget(blobs):
    learner = tiny_learner(tiny_config(blobs, budget="1"))
    learner.network.head.grow(2, torch.Generator())
    meter = Meter(learner.network)
    images = torch.zeros(8, 3, 16, 16)
    with pytest.raises(RuntimeError, match="No time step is open"):
        learner.net.scores(images)
    learner.ledger.open(1, 2)
    learner.net.logits(Part("memory", images))
    meter.reset()
    for run in (
        lambda: learner.net.logits(Part("memory", images)),
        lambda: learner.net.reconstruct(Part("unlabeled", images), (0,)),
    ):
        with pytest.raises(Overdraft):
            run()
    assert not meter.forward
    learner.net.features(images, "query")
    learner.net.scores(images[:4], "query")
    assert learner.ledger.spent == pytest.approx(12)
    with pytest.raises(Overdraft):
        learner.net.reconstructions(images[:1], (0,))


def test_a_failed_run_leaves_the_network_guarded(blobs):
    learner = tiny_learner(tiny_config(blobs))
    learner.network.head.grow(2, torch.Generator())
    learner.ledger.open(1, 2)
    with pytest.raises((RuntimeError, AssertionError)):
        learner.net.scores(torch.zeros(2, 3, 8, 8))
    with pytest.raises(Unmetered):
        learner.network.encoder(torch.zeros(2, 3, 16, 16))
