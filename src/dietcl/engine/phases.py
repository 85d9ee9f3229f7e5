"""Phases and sweeps: their micro-batches drawn, shared out to the processes, charged, and put together again."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from dietcl.budget.ledger import Overdraft
from dietcl.engine.curve import Curve
from dietcl.engine.deferred_charges import DeferredCharges, deferring, settle
from dietcl.engine.gradients import Gradients
from dietcl.engine.learner import Learner
from dietcl.engine.optimizer import build_optimizer, set_learning_rate
from dietcl.engine.resume_position import StepPosition
from dietcl.engine.state import ADVICE, require_finite
from dietcl.errors import NotFinite
from dietcl.methods.base import Phase, Sweep
from dietcl.streams.augment import make_batch, plain_part
from dietcl.streams.batch import Batch, Part
from dietcl.streams.loader import Loaded
from dietcl.streams.options import Mix
from dietcl.streams.sampler import Draw, pools_of, sample_updates, walk
from dietcl.streams.stream import TimeStep

LOG_EVERY = 10
Losses = dict[str, torch.Tensor]
Draws = tuple[Draw, ...]


def run_phase(learner: Learner, step: TimeStep, position: StepPosition, phase: Phase, curve: Curve) -> Iterator[None]:
    """Spend a phase's budget on updates; yields after each."""
    config, ledger, world = learner.config.training, learner.ledger, learner.world
    pools = pools_of(learner.stream, step.t, phase.mix, learner.remembered.pool(learner.method, step))
    counts = phase.mix.counts(config.micro_batch, pools)
    if not counts:
        return
    if position.allotment is None:
        position.allotment, position.cost = ledger.allot(phase.share, phase.updates), phase.price * config.batch
        if phase.fresh and ledger.affords(position.cost, learner.position.pace, position.allotment):
            learner.net.reset(step)
            learner.optimizers.clear()  # they hold the head that was
    allotment = position.allotment
    key = (learner.config.seed, step.t, len(position.done))
    micros = range(config.batch // config.micro_batch)
    draws = sample_updates(pools, counts, key, position.made, [*world.own_share(micros)])
    augmentation = None if phase.plain else learner.config.augmentation
    ready = learner.loader.iterate(draws, ahead=augmentation)
    classes = torch.from_numpy(step.classes).to(learner.device)

    def micro_batch(micro: int) -> Batch:
        drawn, images = next(ready)
        return make_batch(drawn, images, classes, augmentation, (*key, position.made, micro))

    while ledger.affords(position.cost, learner.position.pace, allotment):
        started, spent, (first, last) = ledger.clock(), ledger.spent, phase.schedule
        fraction = first + (last - first) * ledger.spent_fraction(allotment)
        turn = learner.method.optimizer_name(learner.net, (*key, position.made, 0), counts)
        if turn not in learner.optimizers:
            learner.optimizers[turn] = build_optimizer(learner.network, learner.method.modules(), config)
        optimizer = learner.optimizers[turn]
        lr = set_learning_rate(optimizer, config, phase.lr_scale, fraction)
        optimizer.zero_grad(set_to_none=True)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = Gradients(parameters, len(micros), world)
        losses: Losses = {}
        try:
            with ledger.update():
                for of_micro in _micro_batch_losses(learner, phase, micros, micro_batch, gradients):
                    for name, value in of_micro.items():
                        losses[name] = losses[name] + value if name in losses else value
        except Overdraft:
            break  # what is paid is spent, but half an update is not applied
        if ledger.spent == spent:
            raise RuntimeError(f"phase {phase.name}: an update that runs nothing is free and would never end")
        values = {name: float(value) for name, value in losses.items()}
        if not all(math.isfinite(value) for value in values.values()):
            where = f"time step {step.t}, phase {phase.name}, update {position.made}"
            raise NotFinite(f"the loss is {values} at {where}; {ADVICE}")
        gradients.finish()
        optimizer.step()
        with within_budget(learner, "after_update"):
            learner.method.after_update(learner.net, phase)
        ledger.tick()
        position.cost, learner.position.pace = ledger.spent - spent, ledger.clock() - started
        ledger.pass_seconds = learner.position.pace / position.cost
        if position.made % LOG_EVERY == 0:
            learner.recorder.event(
                "update", t=step.t, phase=phase.name, update=position.made, loss=values, lr=lr, spent=ledger.spent
            )
        learner.recorder.progress(step.t, ledger.spent_fraction())
        position.made += 1
        position.updates += 1
        curve.measure_if_due()
        yield
    ready.close()
    learner.method.end_phase(learner.net, phase)
    if position.made:
        require_finite(learner)


def run_sweep(learner: Learner, step: TimeStep, position: StepPosition, sweep: Sweep) -> Iterator[None]:
    """Show the method a pool once, as far as the budget goes; yields after a micro-batch of each process."""
    remembered = learner.remembered.pool(learner.method, step)
    mix = Mix(past_only=sweep.past_only, placed_only=sweep.placed_only)
    pool = pools_of(learner.stream, step.t, mix, remembered)[sweep.pool]
    key, size = (learner.config.seed, step.t, len(position.done)), learner.config.training.micro_batch
    draws = list(walk(sweep.pool, pool, size, key, sweep.most))
    ready = learner.loader.iterate(learner.world.own_share(draws[position.made :]))
    if position.allotment is None:
        position.allotment = learner.ledger.allot(sweep.share)
    is_over = False
    while position.made < len(draws) and not is_over:
        learner.ledger.tick()
        round_ = draws[position.made : position.made + learner.world.size]
        for (draw,), images in zip(round_, _one_each(learner, sweep, round_, ready), strict=True):
            position.gathered += images
            position.made += 1
            later = position.gathered * sweep.later / learner.ledger.pass_flops
            is_within = learner.ledger.affords(later, within=position.allotment)
            if is_over := images < len(draw.rows) or not is_within:
                break
        learner.recorder.progress(step.t, learner.ledger.spent_fraction())
        if not is_over:
            yield
    ready.close()
    learner.ledger.release()  # for what the sweep's end computes
    with within_budget(learner, "end_sweep"):
        learner.method.end_sweep(learner.net, step, sweep)
    learner.recorder.event("sweep", t=step.t, name=sweep.name, images=position.gathered, of=len(pool.rows))


def backward(learner: Learner, phase: Phase, batch: Batch, micro_batches: int) -> Losses:
    """Add one micro-batch's gradients; returns its share of each term's value."""
    terms = list(learner.method.losses(learner.net, phase, batch))
    if terms:
        # The update's loss is the mean over micro-batches of the sum of the terms.
        torch.stack([term.weight * term.value for term in terms]).sum().div(micro_batches).backward()
    return {term.name: term.value.detach() / micro_batches for term in terms}


def _micro_batch_losses(
    learner: Learner, phase: Phase, micros: range, micro_batch: Callable[[int], Batch], gradients: Gradients
) -> Iterator[Losses]:
    """Add the gradients of this process's micro-batches; yields the losses of each micro-batch of all processes."""
    world, ledger, loader = learner.world, learner.ledger, learner.loader
    if world.size == 1:
        for micro in micros:
            losses = backward(learner, phase, micro_batch(micro), len(micros))
            gradients.add()
            yield losses
        return
    own: dict[int, tuple[DeferredCharges, dict[str, float]]] = {}
    for micro in world.own_share(micros):
        with deferring(ledger, loader) as notes:
            losses = backward(learner, phase, micro_batch(micro), len(micros))
        gradients.add()
        own[micro] = notes, {name: float(value) for name, value in losses.items()}
    every = {micro: entry for entries in world.exchange(own) for micro, entry in entries.items()}
    for notes, values in (every[micro] for micro in micros):
        settle(ledger, loader, notes)
        yield {name: torch.tensor(value) for name, value in values.items()}


def _one_each(learner: Learner, sweep: Sweep, draws: Sequence[Draws], ready: Iterator[Loaded]) -> Iterator[int]:
    """Gather a micro-batch in each process and absorb them in order; yields how many images of each were absorbed."""
    world, ledger, loader, method = learner.world, learner.ledger, learner.loader, learner.method
    if world.size == 1:
        yield _offer(learner, sweep, _part(next(ready)))
        return
    own: tuple[DeferredCharges, dict[str, tuple[torch.Tensor, bool]]] | None = None
    if world.rank < len(draws):
        with deferring(ledger, loader) as notes:
            gathered = method.gather(learner.net, sweep, _part(next(ready)))
        own = notes, {name: (value.cpu(), value.device == learner.device) for name, value in gathered.items()}
    for draw, entry in zip(draws, world.exchange(own), strict=False):
        assert entry is not None
        notes, values = entry
        try:
            settle(ledger, loader, notes)
        except Overdraft:
            with deferring(ledger, loader):  # its images were counted where they were read first
                part = _part(next(loader.iterate(iter([draw]))))
            yield _offer(learner, sweep, part, halved=True)
        else:
            found = {name: value.to(learner.device) if there else value for name, (value, there) in values.items()}
            method.absorb(learner.net, sweep, found)
            yield len(draw[0].rows)


def _offer(learner: Learner, sweep: Sweep, part: Part, halved: bool = False) -> int:
    """Let the method gather a part, in halves when it is refused; returns how many images were gathered."""
    start, size = 0, len(part) // 2 if halved else len(part)
    while start < len(part) and size:
        try:
            gathered = learner.method.gather(learner.net, sweep, part.take(slice(start, start + size)))
        except Overdraft:
            size //= 2
        else:
            learner.method.absorb(learner.net, sweep, gathered)
            start += size
    return min(start, len(part))


def _part(loaded: Loaded) -> Part:
    (drawn,), (images,) = loaded
    return plain_part(drawn, images)


@contextmanager
def within_budget(learner: Learner, hook: str) -> Iterator[None]:
    """Turn an Overdraft of a hook into an error: only losses and gather may exceed the budget."""
    try:
        yield
    except Overdraft as refused:
        name = type(learner.method).__name__
        raise RuntimeError(f"{name}.{hook} must be paid from what its phases leave over: {refused}") from refused
