"""A learner: a method, its network and everything it learns with, built from a configuration."""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from dietcl.budget.budget import Budget
from dietcl.budget.ledger import Ledger
from dietcl.config import RunConfig
from dietcl.engine.distributed import World, default_threads
from dietcl.engine.evaluator import ClassCounts, Counts, Evaluator
from dietcl.engine.remembered import Remembered
from dietcl.engine.resume_position import Position
from dietcl.errors import UserError
from dietcl.methods import METHODS, method_class, needed_abilities
from dietcl.methods.base import Method
from dietcl.models.checkpoints import load_weights, shipped
from dietcl.models.encoder import Encoder
from dietcl.models.flops import cost_model
from dietcl.models.known_features import feature_lookup
from dietcl.models.net import Net
from dietcl.models.network import Network, Weights, build_network
from dietcl.models.presets import ABILITIES
from dietcl.streams.feature_lookup import CACHE_SIZE
from dietcl.streams.index import Index
from dietcl.streams.loader import Loader
from dietcl.streams.options import BAD_SHARE
from dietcl.streams.storage import Storage
from dietcl.streams.stream import Stream


class Recorder(Protocol):
    """Receives what happens in a run."""

    def event(self, event: str, **fields: object) -> None:
        """Record an event."""

    def progress(self, t: int, fraction: float) -> None:
        """Record the spent share of time step t's budget."""

    def notify(self, sentence: str) -> None:
        """Pass a sentence on to the user."""


@dataclass(frozen=True)
class Equipment:
    """What learners work with: where their images are, what computes, and the processes that share the work."""

    index: Index
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: torch.dtype = torch.float32
    bad_share: float = BAD_SHARE  # share of the images that may be unreadable
    world: World = field(default_factory=World)
    cache_size: int = CACHE_SIZE  # bytes of features that may be kept on disk


@dataclass
class Learner:
    """A method, its network and everything it learns with."""

    config: RunConfig
    stream: Stream
    loader: Loader
    network: Network
    net: Net
    ledger: Ledger
    method: Method
    remembered: Remembered
    evaluator: Evaluator
    counts: Counts
    class_counts: ClassCounts
    recorder: Recorder
    world: World
    origin: str  # where the first weights came from
    position: Position = field(default_factory=Position)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)  # of the current phase

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return self.network.head.weight.device


def assemble(config: RunConfig, stream: Stream, equipment: Equipment, recorder: Recorder) -> Learner:
    """Build a learner that has learned nothing yet."""
    world, device, precision = equipment.world, equipment.device, equipment.precision
    method = method_class(config.method)(config.method_config)
    stream = stream.union() if method.learns == "union" else stream
    network, origin = starting_network(config)
    refuse_unfit(config, method, network.encoder)
    network.to(device)
    network.head.cosine_scale = method.cosine_scale
    budget = Budget.parse(config.budget)
    # If the budget is time, all processes must read the same clock to decide alike.
    clocks = (world.clock, world.tick) if world.size > 1 and budget.unit == "seconds" else (time.monotonic,)
    ledger = Ledger(budget, config.accounting, config.training.batch, cost_model(config.model), *clocks)
    model, threads = config.model, default_threads(world)
    storage = Storage(equipment.index, model.image_size, equipment.bad_share, threads, model.resizing)
    is_frozen = network.is_frozen or not method.trains_encoder
    lookup = feature_lookup(network, equipment.cache_size, precision, method.view) if is_frozen else None
    if lookup is not None:
        lookup.open(storage.reader)
    loader = Loader(stream, storage, device, lookup)
    initial = partial(_initial_weights, config)
    net = Net(network, ledger, config.seed, initial, recorder.notify, precision, lookup)
    method.setup(net)
    answers = Remembered(stream), Evaluator(stream, loader, ledger, config.evaluation, world)
    counts = Counts.empty(len(stream.tests)), ClassCounts.empty(len(stream.tests), len(stream.classes))
    return Learner(config, stream, loader, network, net, ledger, method, *answers, *counts, recorder, world, origin)


def refuse_unfit(config: RunConfig, method: Method, encoder: Encoder) -> None:
    """Raise, naming the methods that fit, if a method needs what the encoder cannot do."""
    if missing := method.needs - encoder.abilities:
        lack = " and ".join(words for ability, words in ABILITIES.items() if ability in missing)
        fit = ", ".join(name for name in METHODS if needed_abilities(name) <= encoder.abilities)
        what = f"--method {config.method}: needs an encoder with {lack}"
        raise UserError(f"{what}, which {config.model.encoder} does not have; methods that fit are {fit}")


def _initial_weights(config: RunConfig) -> Weights:
    return starting_network(config)[0].state_dict()


def starting_network(config: RunConfig) -> tuple[Network, str]:
    """Build the network that the run starts from, and say where its weights came from."""
    network = build_network(config.model, config.seed)
    if config.weights is None:
        return network, "random weights"
    source = shipped(config.model.encoder) if config.weights == "shipped" else config.weights
    return network, f"{config.weights}: {load_weights(network, source)}"
